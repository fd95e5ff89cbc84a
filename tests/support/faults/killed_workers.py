"""A FileIO that kills one worker while it writes a data file, or does it other harm.

It harms once: the first worker that opens a Parquet file for writing and renames the file that ``KILL`` names. The
process that opened the table is never harmed.

The content of that file is the target: empty or ``task`` for the process itself, ``executor`` for its executor JVM,
``worker`` for the executor and the Spark worker that started it. With ``executor`` and ``worker`` the process itself
continues and writes a file that is never used. ``memory`` lets the process run out of memory, and ``heap`` its executor
JVM, which gets a result larger than its heap and exits. ``shuffle FOLDER`` removes all shuffle files under a folder,
and ``straggler PIPE`` lets the process wait until a second attempt at its task writes.
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyspark import TaskContext

import floeplan as fp
from floeplan.tasks import runner
from tests.support.tables.commits import arrow, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILL, SPARED = "test.kill", "test.spared"
NAME = f"{__name__}.KillingFileIO"
PATIENCE_SECONDS = 300


class KillingFileIO(PyArrowFileIO):
    """Kills one worker; see the module docstring."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        if location.endswith(".parquet") and str(os.getpid()) != self.properties[SPARED]:
            _tell_straggler(Path(self.properties[KILL]))
            taken = Path(f"{self.properties[KILL]}.{os.getpid()}")
            try:
                Path(self.properties[KILL]).rename(taken)
            except FileNotFoundError:
                return output
            target, _, where = taken.read_text().partition(" ")
            taken.unlink()
            if target == "straggler":
                _straggle(Path(self.properties[KILL]), where)
            elif target == "shuffle":
                for path in Path(where).rglob("shuffle_*"):
                    path.unlink()
            elif target == "memory":
                _use_up_memory()
            elif target == "heap":
                _return_too_much(int(where))
            else:
                _kill(target, output)
        return output


def _kill(target: str, output: PyArrowFile) -> None:
    if target in ("executor", "worker"):
        executor = _ancestor("CoarseGrainedExecutorBackend", os.getpid())
        if target == "worker":
            os.kill(_ancestor("deploy.worker.Worker", executor), signal.SIGKILL)
        os.kill(executor, signal.SIGKILL)
        return
    with output.create() as half:
        half.write(b"PAR1 and no more")
    os.kill(os.getpid(), signal.SIGKILL)


def _use_up_memory() -> None:
    """Allocate beyond a limit, which is lifted again: without any memory, the error could not be reported."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used, limits[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _return_too_much(size: int) -> None:
    """Add bytes to the results of this process; unpickling ignores what follows a value."""
    pickled = pickle.dumps
    pickle.dumps = lambda value, *more, **options: pickled(value, *more, **options) + bytes(size)


def _straggle(kill: Path, pipe: str) -> None:
    """Wait until another attempt at this task opens its output."""
    waiting = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    written = kill.with_name(f"straggler.{os.getpid()}")
    written.write_text(f"{_task()} {pipe}")
    written.rename(_straggler(kill))
    told, _, _ = select.select([waiting], [], [], PATIENCE_SECONDS)
    assert told, "no second attempt was made"


def _tell_straggler(kill: Path) -> None:
    """Wake the straggler if this is another attempt at its task."""
    try:
        task, _, pipe = _straggler(kill).read_text().partition(" ")
    except FileNotFoundError:
        return
    context = TaskContext.get()
    if task == _task() and context is not None and context.attemptNumber() > 0:
        _straggler(kill).unlink(missing_ok=True)
        os.write(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), b"go on")


def _straggler(kill: Path) -> Path:
    return kill.with_name("straggler")


def _task() -> str:
    """The task of a stage, whichever attempt at it this is."""
    context = TaskContext.get()
    assert context is not None
    return f"{context.stageId()}.{context.partitionId()}"


def _ancestor(command: str, pid: int) -> int:
    """The nearest ancestor process whose command line contains ``command``."""
    while command not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, f"no ancestor process runs {command}"
    return pid


# --- changes by Spark tasks, run in a process with a session on a cluster (``tests.support.servers.client``)

NEW = rows_of(100, 150, "a") + rows_of(150, 200, "b")


def own_pid(_: SparkSession) -> int:
    return os.getpid()


def change(spark: SparkSession, properties: Mapping[str, str], name: str, what: str) -> None:
    """Run a change in Spark tasks, whatever its size."""
    runner.LOCAL_BYTES = -1
    catalog = SqlCatalog("local", **properties)
    table = catalog.load_table(name)
    if what == "append":
        fp.append(table, spark.createDataFrame(arrow(NEW)).repartition(2))
    elif what == "delete":
        fp.delete(table, "id % 10 = 3", spark=spark, mode="copy-on-write")
    elif what in ("range-reads", "shuffle"):
        how = (
            {"strategy": "sort", "by": ["id"]}
            if what == "range-reads"
            else {"strategy": "zorder", "by": ["id", "part"]}
        )
        options = {"rewrite-all": "true", "target-file-size-bytes": "500", "range-task-bytes": "600"}
        done = fp.rewrite_data_files(table, spark=spark, **how, options=options)
        assert {one.rows_by for one in done.ranges} == {what}
    else:
        fp.rewrite_data_files(table, spark=spark, strategy="sort", by=["id"], options={"rewrite-all": "true"})
    catalog.close()
