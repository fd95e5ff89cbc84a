"""Parquet files on their own: statistics, page index, bloom filters, pruning and page-level reads."""
