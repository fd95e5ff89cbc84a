"""Row-level changes: append, delete, update, merge and overwrite, planned file by file."""
