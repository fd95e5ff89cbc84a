"""Plan, prune and rewrite Iceberg tables that have changed their mind about partitioning."""
