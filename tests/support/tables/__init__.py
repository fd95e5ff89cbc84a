"""Small tables: real ones with rows, and tables of metadata alone."""
