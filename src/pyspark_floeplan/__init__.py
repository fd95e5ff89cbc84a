"""Makes ``format("floeplan")`` known to Spark, which looks for data sources in modules called ``pyspark_…``."""

from floeplan.datasource.source import FloeplanSource as DefaultSource

__all__ = ["DefaultSource"]
