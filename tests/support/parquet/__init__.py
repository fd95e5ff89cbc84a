"""Parquet files of several writers, footers made by hand, and properties of files to compare."""
