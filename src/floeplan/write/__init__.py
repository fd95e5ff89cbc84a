"""Writing files: rows in Arrow go in, Parquet or Puffin files and the manifest entries that describe them come out."""
