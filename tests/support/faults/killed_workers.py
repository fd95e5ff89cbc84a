"""A FileIO that kills one worker in the middle of writing a data file: as when a machine takes a process away.

It does so once, for the first worker that begins a Parquet file while the file ``KILL`` names is there; whoever takes
that file away dies. The process that opened the table is spared.

What the file says is killed: nothing or ``task`` for the process itself; ``executor`` for the JVM it works for;
``worker`` for the one that started that as well. Then the process itself lives on, and writes its file for nobody.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

import floeplan as fp
from floeplan.tasks import runner
from tests.support.tables.commits import arrow, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILL, SPARED = "test.kill", "test.spared"
NAME = f"{__name__}.KillingFileIO"


class KillingFileIO(PyArrowFileIO):
    """See the module's text."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        if location.endswith(".parquet") and str(os.getpid()) != self.properties[SPARED]:
            taken = Path(f"{self.properties[KILL]}.{os.getpid()}")
            try:
                Path(self.properties[KILL]).rename(taken)
            except FileNotFoundError:
                return output
            whom = taken.read_text()
            taken.unlink()
            _kill(whom, output)
        return output


def _kill(whom: str, output: PyArrowFile) -> None:
    if whom in ("executor", "worker"):
        executor = _ancestor("CoarseGrainedExecutorBackend", os.getpid())
        if whom == "worker":
            os.kill(_ancestor("deploy.worker.Worker", executor), signal.SIGKILL)
        os.kill(executor, signal.SIGKILL)
        return
    with output.create() as half:
        half.write(b"PAR1 and no more")
    os.kill(os.getpid(), signal.SIGKILL)


def _ancestor(command: str, pid: int) -> int:
    """The process that this one was started by, directly or not, with a command that names something."""
    while command not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, f"nobody above runs {command}"
    return pid


# --- changes by Spark tasks, run in a process with a session on a cluster (``tests.support.servers.client``)

NEW = rows_of(100, 150, "a") + rows_of(150, 200, "b")


def own_pid(_: SparkSession) -> int:
    return os.getpid()


def change(spark: SparkSession, properties: Mapping[str, str], name: str, what: str) -> None:
    """Do it, in tasks however little there is to do."""
    runner.LOCAL_BYTES = -1
    catalog = SqlCatalog("local", **properties)
    table = catalog.load_table(name)
    if what == "append":
        fp.append(table, spark.createDataFrame(arrow(NEW)).repartition(2))
    elif what == "delete":
        fp.delete(table, "id % 10 = 3", spark=spark, mode="copy-on-write")
    else:
        fp.rewrite_data_files(table, spark=spark, strategy="sort", by=["id"], options={"rewrite-all": "true"})
    catalog.close()
