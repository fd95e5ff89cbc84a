"""Floeplan on Spark. Only this package, the audit job and commands that need Spark import PySpark, and lazily."""
