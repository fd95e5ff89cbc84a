"""Sending the package to Spark executors that do not have it.

Rule: before the first Python task of a session on a cluster or through Connect, one task tries to import the package;
if that fails, the package is sent as a zip of its Python files. Python cannot import extension modules from a zip, so
the compiled kernels are not sent; their slower pure-Python versions run instead, which is logged once a session.

Fail-safe: dependencies (PyIceberg, pyarrow, NumPy, …) are not sent; an error names a missing one before any work is
done.
"""

from __future__ import annotations

import atexit
import logging
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

from floeplan.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_ready: WeakSet[SparkSession] = WeakSet()


def ensure_package(spark: SparkSession) -> None:
    """Make sure that the tasks of a session can import the package; checked once a session.

    Raises:
        UnsupportedError: A dependency of the package is not installed on the executors.
    """
    if spark in _ready:
        return
    if not _shares_interpreter(spark):
        missing = _missing_in_tasks(spark)
        if missing is not None and missing.partition(".")[0] == "floeplan":
            ship(spark)
            _log.warning("the executors have no floeplan: sent it without compiled kernels, so slower Python code runs")
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
    """The package as a zip, kept while this process lives: executors fetch it when their first task starts."""
    folder = tempfile.TemporaryDirectory(prefix="floeplan-ship-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    archive = Path(folder.name) / "floeplan.zip"
    write_package(archive)
    return archive


def write_package(archive: Path) -> None:
    """Zip the Python files of this installation."""
    home = Path(__file__).resolve().parents[1]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(Path(home).rglob("*.py")):
            bundle.write(file, Path("floeplan") / file.relative_to(home))


def _shares_interpreter(spark: SparkSession) -> bool:
    """Whether tasks run on this machine with this interpreter: a local session without Connect."""
    return not is_connect(spark) and str(spark.conf.get("spark.master", "")).startswith("local")


def _missing_in_tasks(spark: SparkSession) -> str | None:
    """The module that tasks cannot import; ``None`` when all is there."""
    from pyspark.errors import PySparkException

    def try_import(batches: Iterable[Any]) -> Iterator[Any]:
        from importlib import import_module

        missing = None
        try:
            import_module("floeplan.scan.read")
        except ModuleNotFoundError as error:
            missing = error.name
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"missing": pa.array([missing], pa.string())})

    try:
        found = spark.range(0, 1, 1, 1).mapInArrow(try_import, "missing string").toArrow()
    except PySparkException as error:
        named = re.search(r"No module named '([\w.]+)'", str(error))
        if named is None:
            raise
        return named[1]
    name: str | None = found.column("missing")[0].as_py()
    return name


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect client: it has no JVM, and the server may be on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
