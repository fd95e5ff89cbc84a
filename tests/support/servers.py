"""Servers in processes of their own, each ready when its output says so and gone with the ``with`` that started it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

SPARK = Path(pyspark.__file__).parent
_OF_SPARK = {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
WAIT_SECONDS = 120
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For short jobs on little data."""


@contextmanager
def server(command: Sequence[str], ready: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a server until the block ends; the block starts when a line of its output matches."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=os.environ | dict(environment or {}),
    )
    try:
        listener = _Listener(process, ready)
        listener.start()
        if not listener.found.wait(WAIT_SECONDS) or process.poll() is not None:
            raise RuntimeError(f"{command[0]} did not start:\n{''.join(listener.last)}")
        yield
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


class _Listener(threading.Thread):
    """Looks for a line in what a process says, and lets it go on talking."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        super().__init__(daemon=True)
        self._process, self._ready = process, re.compile(ready)
        self.found = threading.Event()
        self.last: deque[str] = deque(maxlen=40)

    def run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.last.append(line)
                if self._ready.search(line):
                    self.found.set()
        self.found.set()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def spark_connect(settings: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server with a local Spark; yields its URL."""
    port = free_port()
    given = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.driver.memory": "768m",
        **settings,
    }
    confs = [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command = [str(SPARK / "bin/spark-submit"), "--master", "local[2]", *main, *confs, "spark-internal"]
    with server(command, "Spark Connect server started", _OF_SPARK):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def spark_cluster(work: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A standalone master with workers of one core each; yields the URL of the master."""
    run, deploy = str(SPARK / "bin/spark-class"), "org.apache.spark.deploy"
    daemon = _OF_SPARK | {"SPARK_DAEMON_MEMORY": "256m"}
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as started:
        master = [run, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        started.enter_context(server(master, "New state: ALIVE", daemon))
        for number in range(workers):
            options = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(work / str(number))]
            command = [run, f"{deploy}.worker.Worker", "--host", "127.0.0.1", *options, address]
            started.enter_context(server(command, "Successfully registered", daemon | dict(environment or {})))
        yield address
