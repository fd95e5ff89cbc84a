"""A catalog that Iceberg's JdbcCatalog in Spark and PyIceberg's SqlCatalog open at the same time.

Both use the same SQLite file and the same catalog name, so each sees the other's tables.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from pyiceberg.catalog.sql import SqlCatalog

from scripts.fetch_jars import ensure_jars
from scripts.share_classes import SHARED_CLASSES
from tests.support.spark.daemon import DAEMON, ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "local"
QUICK_JVM = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m {SHARED_CLASSES}"
"""For short jobs on little data: the C2 compiler and the parallel collector would triple the CPU time, the default
code cache of C1 is too small, and loading classes is half of a start.
"""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Without code generation: for a few hundred rows, compiling a query costs more than running it."""


@dataclass(frozen=True, slots=True)
class Lake:
    """The folder with the catalog's SQLite file and the warehouse."""

    home: Path

    @property
    def database(self) -> Path:
        return self.home / "catalog.db"

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse"

    def open_catalog(self) -> SqlCatalog:
        self.warehouse.mkdir(parents=True, exist_ok=True)
        return SqlCatalog(NAME, uri=f"sqlite:///{self.database}", warehouse=self.warehouse.as_uri())

    def environment(self) -> dict[str, str]:
        """The variables with which the command line opens the catalog."""
        local = {"TYPE": "sql", "URI": f"sqlite:///{self.database}", "WAREHOUSE": self.warehouse.as_uri()}
        return {f"PYICEBERG_CATALOG__{NAME.upper()}__{key}": value for key, value in local.items()}

    def start_spark(self) -> SparkSession:
        from pyspark.sql import SparkSession

        jars = ",".join(str(jar) for jar in ensure_jars())
        self.warehouse.mkdir(parents=True, exist_ok=True)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        catalog = f"spark.sql.catalog.{NAME}"
        builder = SparkSession.builder.master("local[2, 2]").appName("floeplan tests")
        for key, value in {
            "spark.jars": jars,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Xmn384m",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self.home / "spark-warehouse"),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:sqlite:{self.database}",
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.jdbc.synchronous": "OFF",
            f"{catalog}.warehouse": self.warehouse.as_uri(),
            f"{catalog}.cache-enabled": "false",
            **DAEMON,
            # Outside of CI, which runs the queries as users do. Without the second setting of ``INTERPRETED``, which
            # breaks the listing of tables.
            **({} if os.environ.get("CI") else {"spark.sql.codegen.wholeStage": "false"}),
        }.items():
            builder = builder.config(key, value)
        # The JVM's own environment, because the workers that plan a Python data source do not see `spark.executorEnv`.
        with patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
            return builder.getOrCreate()
