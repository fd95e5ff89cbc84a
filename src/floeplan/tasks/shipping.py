"""Sending the package to executors that lack it.

Rule: before the first Python task of a session on a cluster or through Connect, one task looks whether the package can
be imported there; where it cannot, the package is sent. It travels as a zip of its Python files: compiled kernels stay
behind, and their Python stand-ins do the work there.

Fail-safe: what the package stands on (PyIceberg, pyarrow, NumPy, …) cannot be sent; when it is missing, one error
names it before any work is done.
"""

from __future__ import annotations

import atexit
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

import floeplan
from floeplan.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ready: WeakSet[SparkSession] = WeakSet()


def ensure_package(spark: SparkSession) -> None:
    """Make sure that tasks of a session can import the package; looked at once a session.

    Raises:
        UnsupportedError: A library that the package needs is not installed where the tasks run.
    """
    if spark in _ready:
        return
    if not _in_this_process(spark):
        missing = _missing_in_tasks(spark)
        if missing is not None and missing.partition(".")[0] == floeplan.__name__:
            ship(spark)
            missing = _missing_in_tasks(spark)
        if missing is not None:
            raise UnsupportedError(
                f"Spark's executors have no Python module {missing}; install floeplan there, with what it depends on, "
                "or set spark.pyspark.python to an interpreter that has it",
                context={"module": missing},
            )
    _ready.add(spark)


def ship(spark: SparkSession) -> None:
    """Make ``import floeplan`` work in the tasks of a session, classic or Connect."""
    spark.addArtifacts(str(_archive()), pyfile=True)


@cache
def _archive() -> Path:
    """The package as a zip, for as long as this process lives: executors fetch it when their first task starts."""
    folder = tempfile.TemporaryDirectory(prefix="floeplan-ship-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    archive = Path(folder.name) / "floeplan.zip"
    write_package(archive)
    return archive


def write_package(archive: Path) -> None:
    """Zip the package as it is installed here."""
    (home,) = floeplan.__path__
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(Path(home).rglob("*.py")):
            bundle.write(file, Path("floeplan") / file.relative_to(home))


def _in_this_process(spark: SparkSession) -> bool:
    """Whether tasks run on this machine with this interpreter: a local session that is not reached through Connect."""
    return not is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")


def _missing_in_tasks(spark: SparkSession) -> str | None:
    """The module that keeps tasks from importing the package."""
    from pyspark.errors import PySparkException

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        from importlib import import_module

        missing = None
        try:
            import_module("floeplan.scan.read")
        except ModuleNotFoundError as error:
            missing = error.name
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"missing": pa.array([missing], pa.string())})

    try:
        found = spark.range(0, 1, 1, 1).mapInArrow(look, "missing string").toArrow()
    except PySparkException as error:
        named = re.search(r"No module named '([\w.]+)'", str(error))
        if named is None:
            raise
        return named[1]
    name: str | None = found.column("missing")[0].as_py()
    return name


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is the client of another process: it has no JVM, and that process may be on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
