"""A stream from one table into another whose driver is killed continues from its checkpoint.

The process and its JVM are killed at steps of a batch; this session restarts the query. That a repeated batch is not
committed again is also tested without a killed process (``test_spark_read_source.py`` with Spark,
``test_spark_read_streams.py`` without), so this test, which takes a minute, runs only in CI.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from floeplan.datasource.io import BATCH_ID
from tests.support.faults.killed_stream import FIRST, MORE, STEPS, add, open_catalog, stream
from tests.support.faults.writer_processes import ROOT
from tests.support.fuzz import fuzzing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = open_catalog(tmp_path)
    made.create_namespace("db")
    for name in ("db.source", "db.sink"):
        made.create_table(name, pa.schema({"k": pa.int64()}))
    yield made
    made.close()


def sink_rows(catalog: SqlCatalog) -> list[int]:
    return sorted(catalog.load_table("db.sink").scan().to_arrow()["k"].to_pylist())


def few_steps() -> tuple[str, ...]:
    """The step after which a batch is repeated; all steps with ``FLOEPLAN_FUZZ_SECONDS``, since each starts a JVM."""
    return STEPS if fuzzing.SECONDS else ("committed",)


@pytest.mark.parametrize("step", few_steps())
def test_nothing_is_lost_or_repeated(spark: SparkSession, catalog: SqlCatalog, tmp_path: Path, step: str) -> None:
    add(catalog.load_table("db.source"), FIRST)
    stream(spark, tmp_path, "floeplan")
    add(catalog.load_table("db.source"), MORE)
    command = [sys.executable, "-m", "tests.support.faults.killed_stream", str(tmp_path), step]
    output = tmp_path / "output"
    with output.open("w") as log:
        killed = subprocess.run(command, cwd=ROOT, start_new_session=True, stdout=log, stderr=log, check=False)
    assert killed.returncode == -signal.SIGKILL, output.read_text()
    assert sink_rows(catalog) == [*FIRST, *(MORE if step == "committed" else ())]
    assert sorted(path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")) == ["0", "1"]
    assert [path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]

    stream(spark, tmp_path, "floeplan")
    assert sink_rows(catalog) == [*FIRST, *MORE]
    history = catalog.load_table("db.sink").metadata.snapshots
    assert [snapshot.summary.additional_properties[BATCH_ID] for snapshot in history if snapshot.summary] == ["0", "1"]
