"""Opening Spark sessions: local, on a cluster, or through Spark Connect.

Spark's own log stays off unless -v is given: a failure is reported once, by the error that is raised. Workers must run
the driver's Python interpreter, or they could not unpickle tasks: `open_session` sets `PYSPARK_PYTHON` if unset.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from floeplan.errors import BadInputError, FloeplanError, InvalidOptionError, UnsupportedError
from floeplan.text import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")

_CONNECT = "sc://"
_ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_INCUBATOR = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
_MASTERS = ("local[", "spark://", "k8s://", _CONNECT)


def open_session(url: str) -> SparkSession:
    """A session for ``local[*]``, ``spark://host:port`` or ``sc://host:port``, started or joined.

    Raises:
        InvalidOptionError: The URL names no kind of session.
        UnsupportedError: PySpark is not installed.
    """
    if not url.startswith(_MASTERS) and url not in ("local", "yarn"):
        raise InvalidOptionError(
            f"{url!r} is not a Spark session; use local[*], spark://host:port or sc://host:port", context={"spark": url}
        )
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UnsupportedError("this needs Spark; install floeplan[spark]") from error
    if url.startswith(_CONNECT):
        return SparkSession.builder.remote(url).getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(url).appName("floeplan").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", sys.stderr.isatty())
    level = "ERROR" if logging.getLogger("floeplan").isEnabledFor(logging.INFO) else "OFF"
    if os.environ.keys() & {"SPARK_CONF_DIR", "SPARK_HOME"}:
        # Where Spark is configured by hand, its own configuration says where the log goes.
        builder = builder.config("spark.log.level", level)
    else:
        configuration = Path(__file__).with_name("log4j2.properties").as_uri()
        log_options = f"-Dlog4j2.configurationFile={configuration} -Dfloeplan.log.level={level}"
        builder = builder.config("spark.driver.defaultJavaOptions", log_options)
        builder = builder.config("spark.sql.warehouse.dir", _warehouse())
    with _filtered_stderr():
        return builder.getOrCreate()


@cache
def _warehouse() -> str:
    """An empty folder while this process runs: Spark makes one for its own tables, by default in the current folder."""
    folder = tempfile.mkdtemp(prefix="floeplan-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _filtered_stderr() -> Iterator[None]:
    """Let a process that starts now write to our stderr, without the warning that every JVM of Spark prints first."""
    stderr, (read, write) = os.dup(2), os.pipe()

    def forward() -> None:
        while chunk := os.read(read, 1 << 16):
            os.write(stderr, chunk.replace(_INCUBATOR, b""))

    threading.Thread(target=forward, name="floeplan-stderr", daemon=True).start()
    os.dup2(write, 2)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(stderr, 2)


def active_session() -> SparkSession | None:
    """The session that this thread or process uses; ``None`` when there is none, or without PySpark."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


@contextmanager
def spark_errors_translated() -> Iterator[None]:
    """Raise Spark's errors as Floeplan's: analysis and parse errors are bad input, everything else is a failure."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException
    from pyspark.logger import PySparkLogger

    # These loggers of PySpark log every error with its Java stack in addition to raising it.
    loggers = [logger for name in _ERROR_LOGGERS if not (logger := PySparkLogger.getLogger(name)).disabled]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise BadInputError(f"Spark cannot run the query: {reason(error, lines=1, with_class=False)}") from error
    except PySparkException as error:
        raise FloeplanError(
            f"Spark failed, and nothing was committed: {reason(error, lines=1, with_class=False)}", kind="spark-failed"
        ) from error
    finally:
        for logger in loggers:
            logger.disabled = False


class SparkOnDemand:
    """A Spark session that is opened when something needs it; what Arrow can evaluate starts no JVM.

    Args:
        session: An open session to use for everything.
        url: The session to open when one is needed and none was given.
        opened: Called after it was opened.
    """

    def __init__(
        self,
        session: SparkSession | None = None,
        url: str | None = None,
        opened: Callable[[], None] | None = None,
    ) -> None:
        self.session = session
        self._url = url
        self._opened = opened

    def needed(self, what: str) -> SparkSession:
        """The session, opened now, for ``what``, which only Spark can do.

        Raises:
            BadInputError: There is neither a session nor a URL; nothing was written.
        """
        if self.session is None:
            if self._url is None:
                raise BadInputError(f"{what} needs a Spark session; pass one", context={"needs": "spark"})
            self.session = open_session(self._url)
            if self._opened is not None:
                self._opened()
        return self.session

    def run(self, change: Callable[[SparkSession | None], Result]) -> Result:
        """Run a change on the open session; without one in this process, and on Spark if Arrow cannot evaluate it.

        A change raises `UnsupportedError` before it writes anything, so running it a second time is safe.
        """
        if self.session is None:
            try:
                return change(None)
            except UnsupportedError as error:
                # Another kind is a refusal, which Spark does not change.
                if self._url is None or error.kind != UnsupportedError.default_kind:
                    raise
        session = self.needed("this statement")
        with spark_errors_translated():
            return change(session)
