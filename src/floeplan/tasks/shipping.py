"""Sending the package to Spark executors that do not have it.

Rule: before the first Python task of a session on a cluster or through Connect, one task tries to import the package;
if that fails, the package is sent as a zip of its Python files. Python cannot import extension modules from a zip, so
the compiled kernels are sent as files, which executors keep in the same folder (``kernels.load_kernel`` finds them
there).

Fail-safe: kernels are sent only where the executors have the Python version and platform of this process. Where they
have not, or where this installation has no kernels, the slower pure-Python code runs, which is logged. Dependencies
(PyIceberg, pyarrow, NumPy, …) are not sent; an error names a missing one before any work is done.
"""

from __future__ import annotations

import atexit
import logging
import platform
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

from floeplan.errors import UnsupportedError
from floeplan.kernels import KERNEL_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOME = Path(__file__).resolve().parents[1]
INTERPRETER = f"{KERNEL_SUFFIX} on {platform.machine()}"
"""What decides whether an interpreter can load the kernels of this installation: extension suffix and machine."""

_log = logging.getLogger(__name__)
_ready: WeakSet[SparkSession] = WeakSet()


@dataclass(frozen=True, slots=True)
class _Probe:
    """What a task reported: the module that it cannot import, and its interpreter; ``None`` when not known."""

    missing: str | None
    interpreter: str | None


def ensure_package(spark: SparkSession) -> None:
    """Make sure that the tasks of a session can import the package; checked once per session.

    Raises:
        UnsupportedError: A dependency of the package is not installed on the executors.
    """
    if spark in _ready:
        return
    # A local session without Connect runs tasks on this machine with this interpreter.
    if is_connect(spark) or not str(spark.conf.get("spark.master", "")).startswith("local"):
        found = _probe(spark)
        if found.missing is not None and found.missing.partition(".")[0] == "floeplan":
            _send(spark, found.interpreter)
            found = _probe(spark)
        if found.missing is not None:
            raise UnsupportedError(
                f"Spark's executors have no Python module {found.missing}; install floeplan there, with what it "
                "depends on, or set spark.pyspark.python to an interpreter that has it",
                context={"module": found.missing},
            )
    _ready.add(spark)


def ship(spark: SparkSession) -> None:
    """Make ``import floeplan`` work in the tasks of a session, classic or Connect, with kernels where they can run."""
    _send(spark, _probe(spark).interpreter)


def _send(spark: SparkSession, interpreter: str | None) -> None:
    """Send the package to executors with an interpreter."""
    archive, *kernels = _artifacts()
    spark.addArtifacts(str(archive), pyfile=True)
    if kernels and interpreter == INTERPRETER:
        for kernel in kernels:  # one by one: a classic session takes a second path for another argument
            spark.addArtifacts(str(kernel), file=True)
        return
    why = f"the executors run {interpreter or 'an unknown Python'}, this process {INTERPRETER}"
    _log.warning(
        "sent floeplan to the executors without compiled kernels, so slower Python code runs: %s",
        why if kernels else "this installation has none",
    )


@cache
def _artifacts() -> list[Path]:
    """The package as a zip, and its kernels; kept while this process lives, as executors fetch them later."""
    temporary = tempfile.TemporaryDirectory(prefix="floeplan-ship-", ignore_cleanup_errors=True)
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    write_package(folder / "floeplan.zip")
    files = [folder / "floeplan.zip"]
    for kernel in sorted(_HOME.rglob(f"*{KERNEL_SUFFIX}")):
        # Named by its module, which is unique in the folder of an executor.
        files.append(folder / ".".join(("floeplan", *kernel.relative_to(_HOME).parts)))
        shutil.copyfile(kernel, files[-1])
    return files


def write_package(archive: Path) -> None:
    """Zip the Python files of this installation."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(_HOME.rglob("*.py")):
            bundle.write(file, Path("floeplan") / file.relative_to(_HOME))


def _probe(spark: SparkSession) -> _Probe:
    """Import the package in a task."""
    from pyspark.errors import PySparkException

    # The task must not refer to this module, which executors may not have: cloudpickle sends a nested function whole.
    def report(batches: Iterable[Any]) -> Iterator[Any]:
        import platform
        from importlib import import_module
        from importlib.machinery import EXTENSION_SUFFIXES

        missing = None
        try:
            import_module("floeplan.scan.read")
        except ModuleNotFoundError as error:
            missing = error.name
        interpreter = f"{EXTENSION_SUFFIXES[0]} on {platform.machine()}"  # as INTERPRETER
        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {"missing": pa.array([missing], pa.string()), "interpreter": pa.array([interpreter])}
            )

    try:
        found = spark.range(0, 1, 1, 1).mapInArrow(report, "missing string, interpreter string").toArrow()
    except PySparkException as error:
        named = re.search(r"No module named '([\w.]+)'", str(error))
        if named is None:
            raise
        return _Probe(named[1], None)
    return _Probe(**found.to_pylist()[0])


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect client: it has no JVM, and the server may be on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
