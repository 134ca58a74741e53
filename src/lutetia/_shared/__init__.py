"""What several parts need and no user calls: whole folders, compiled loops."""
