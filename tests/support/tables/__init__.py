"""Small tables, with data files or with metadata only."""
