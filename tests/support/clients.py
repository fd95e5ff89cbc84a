"""Processes with a Spark session of their own: a process has one kind of session only, and the tests' own is local."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = TypeVar("Answer")


class Client:
    """Runs functions of a module, each with the session as its first argument."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """What a function returns; it, its arguments and its answer are pickled."""
        return self._pool.submit(_with_session, function, arguments).result()


@contextmanager
def client(url: str, settings: Mapping[str, str] | None = None, python: str = sys.executable) -> Iterator[Client]:
    """A process with a session on a cluster or a Connect server; ``python`` is the interpreter of its tasks."""
    with ProcessPoolExecutor(1, get_context("spawn"), _open, (url, dict(settings or {}), python)) as pool:
        opened = Client(pool)
        yield opened
        opened.run(_stop)


_session: list[SparkSession] = []


def _open(url: str, settings: Mapping[str, str], python: str) -> None:
    os.environ["PYSPARK_PYTHON"] = python
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(url) if url.startswith("sc://") else SparkSession.builder.master(url)
    for key, value in settings.items():
        builder = builder.config(key, value)
    _session.append(builder.getOrCreate())


def _with_session(function: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    try:
        return function(_session[0], *arguments)
    except Exception as error:  # what Spark raises holds on to its JVM and cannot be sent
        raise AssertionError("".join(traceback.format_exception(error))) from None


def _stop(spark: SparkSession) -> None:
    spark.stop()
