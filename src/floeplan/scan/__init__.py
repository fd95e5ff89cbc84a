"""Three-pass scan planning: manifest list, manifest entries, Parquet footers; and reading what a plan keeps."""
