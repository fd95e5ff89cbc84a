"""The Spark session of the suites that measure against Iceberg's own runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scripts.fetch_jars import ensure_jars
from tests.support.spark.lake import NAME, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(lake: Lake, master: str = "local[2]", more: Mapping[str, str] | None = None) -> SparkSession:
    """A default session with Iceberg's jar; workers use this interpreter and write bytecode."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    catalog = f"spark.sql.catalog.{NAME}"
    settings = {
        "spark.jars": ",".join(map(str, ensure_jars())),
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{lake.database}",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": lake.warehouse.as_uri(),
        f"{catalog}.cache-enabled": "false",
        **(more or {}),
    }
    builder = SparkSession.builder.master(master).appName("floeplan bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
