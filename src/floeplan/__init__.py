"""Plan, prune and rewrite Iceberg tables that have changed their mind about partitioning."""

from floeplan.catalog import load_table
from floeplan.errors import FloeplanError

__all__ = ["FloeplanError", "load_table"]
