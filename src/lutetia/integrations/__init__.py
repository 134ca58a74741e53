"""Other libraries and file formats: each module here needs a package of its own, and nothing else needs them."""
