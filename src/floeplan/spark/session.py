"""Opening Spark sessions: local, on a cluster, or through Spark Connect.

A failure is told once, by the error that is raised: Spark's own log stays off unless more logging is asked for.
Workers must run the interpreter that runs the driver, or a task could not unpickle what it is sent; on this machine
that is arranged here unless the environment already says otherwise.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from floeplan.errors import BadInputError, InvalidOptionError, UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT = "sc://"
_MASTERS = ("local[", "spark://", "k8s://", _CONNECT)


def open_session(url: str) -> SparkSession:
    """A session for ``local[*]``, ``spark://host:port`` or ``sc://host:port``, started or joined.

    Raises:
        InvalidOptionError: The URL names no kind of session.
        UnsupportedError: PySpark is not installed.
    """
    if not url.startswith(_MASTERS) and url not in ("local", "yarn"):
        raise InvalidOptionError(
            f"{url!r} is no Spark session; use local[*], spark://host:port or sc://host:port", context={"spark": url}
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
    for name, value in _logging().items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _logging() -> dict[str, str]:
    """Settings for Spark's log; where Spark is configured by hand, its own configuration says where the log goes."""
    level = "ERROR" if logging.getLogger("floeplan").isEnabledFor(logging.INFO) else "OFF"
    if os.environ.keys() & {"SPARK_CONF_DIR", "SPARK_HOME"}:
        return {"spark.log.level": level}
    configuration = Path(__file__).with_name("log4j2.properties").as_uri()
    options = f"-Dlog4j2.configurationFile={configuration} -Dfloeplan.log.level={level}"
    return {"spark.driver.defaultJavaOptions": options}


# A Spark session that is opened only when something needs it.
#
# Rule: work that Arrow does in this process starts no JVM. Fail-safe: where only Spark can do it and there is no
# way to a
# session, that is said before anything is written.


class SparkOnDemand:
    """A session that is there, or the URL of one that can be had.

    Args:
        session: A session to use for everything.
        url: What to open when a session is needed and none is there.
    """

    def __init__(self, session: SparkSession | None = None, url: str | None = None) -> None:
        self.session = session
        self._url = url

    @property
    def can_be_opened(self) -> bool:
        """Whether there is a session, or a way to one."""
        return self.session is not None or self._url is not None

    def needed(self, what: str) -> SparkSession:
        """The session, for something that only Spark can do."""
        if self.session is None:
            if self._url is None:
                raise BadInputError(f"{what} needs a Spark session; pass one", context={"needs": "spark"})
            self.session = open_session(self._url)
        return self.session
