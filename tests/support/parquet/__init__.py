"""Parquet files of several writers, footers made by hand, and what must be true of a file."""
