"""What several parts need and no user calls: whole folders, pages, compiled loops and their threads."""
