"""IO tables and the domains of their values."""
