"""A Spark session that is opened only when something needs it.

Rule: work that Arrow does in this process starts no JVM. Fail-safe: where only Spark can do it and there is no way to a
session, that is said before anything is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from floeplan.errors import BadInputError
from floeplan.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
