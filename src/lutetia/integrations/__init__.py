"""Other libraries and file formats: each module here needs its own package, and nothing else needs them."""
