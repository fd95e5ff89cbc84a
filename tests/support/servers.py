"""Server processes; each runs within its ``with`` block, which starts when the server is ready."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyspark

from scripts.fetch_rest_catalog import ensure_rest_catalog
from tests.support.spark.daemon import DAEMON
from tests.support.spark.lake import QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = Path(pyspark.__file__).parent
_OF_SPARK = {"SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
_SPARK_CLASS, _DEPLOY = str(SPARK / "bin/spark-class"), "org.apache.spark.deploy"
_DAEMON = _OF_SPARK | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
WAIT_SECONDS = 120


@contextmanager
def server(
    command: Sequence[str], ready: str, environment: Mapping[str, str] | None = None, *, wait: float = WAIT_SECONDS
) -> Iterator[None]:
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
        if not listener.found.wait(wait) or listener.ended or process.poll() is not None:
            raise RuntimeError(f"{command[0]} did not start:\n{''.join(listener.last)}")
        yield
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


class _Listener(threading.Thread):
    """Waits for a line in the output of a process, then keeps reading it."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        super().__init__(daemon=True)
        self._process, self._ready = process, re.compile(ready)
        self.found, self.ended = threading.Event(), False
        self.last: deque[str] = deque(maxlen=40)

    def run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.last.append(line)
                if self._ready.search(line):
                    self.found.set()
        self.ended = not self.found.is_set()
        self.found.set()


def free_port() -> int:
    """A free local port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def spark_connect(settings: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
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
    with server(command, "Spark Connect server started", _OF_SPARK | dict(environment or {})):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def spark_cluster(work: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A standalone master with workers of one core each, on hosts of different names; yields the URL of the master."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as started:
        master = [_SPARK_CLASS, f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        started.enter_context(server([*master, "--webui-port", "0"], "New state: ALIVE", _DAEMON))
        for number in range(workers):
            started.enter_context(spark_worker(address, work / str(number), f"127.0.0.{number + 1}", environment))
        yield address


@contextmanager
def spark_worker(
    cluster: str, work: Path, host: str = "127.0.0.1", environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """One more worker of a cluster; Spark makes a speculative copy of a task on another host only."""
    options = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(work)]
    command = [_SPARK_CLASS, f"{_DEPLOY}.worker.Worker", "--host", host, *options, cluster]
    own = _DAEMON | {"SPARK_LOCAL_IP": host} | dict(environment or {})
    with server(command, "Successfully registered", own):
        yield


# --- catalogs and stores: PostgreSQL, Iceberg's REST server, an S3-compatible store

BUCKET = "lake"
_KEYS = {"access-key-id": "key-of-the-tests", "secret-access-key": "secret-of-the-tests", "region": "us-east-1"}
_PATIENCE = {"s3.connect-timeout": "60", "s3.request-timeout": "60"}
"""In seconds. Arrow's default of 3 attempts of 3 seconds can fail on a busy machine."""
_SOON = {"s3.retry-strategy-impl": "pyarrow.fs.AwsDefaultS3RetryStrategy"}
"""Retries after milliseconds instead of seconds: no other thread can open a store while Arrow waits."""


@contextmanager
def s3_store() -> Iterator[dict[str, str]]:
    """An object store with one bucket; yields catalog properties for it."""
    # Imported here: these imports take a second, and most processes start no store.
    import boto3
    from moto.server import ThreadedMotoServer

    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    try:
        host, port = started.get_host_and_port()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            aws_access_key_id=_KEYS["access-key-id"],
            aws_secret_access_key=_KEYS["secret-access-key"],
            region_name=_KEYS["region"],
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        keys = {f"s3.{key}": value for key, value in _KEYS.items()}
        impl = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
        yield {"s3.endpoint": f"http://{host}:{port}", **keys, **impl, **_PATIENCE, **_SOON}
    finally:
        started.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """A database server with a temporary folder; yields the SQLAlchemy URI of its database."""
    tools, port = _postgres_tools(), free_port()
    with tempfile.TemporaryDirectory(prefix="floeplan-postgres-") as data:
        as_owner = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(data, "postgres")
            as_owner = ["runuser", "-u", "postgres", "--"]
        make = [*as_owner, str(tools / "initdb"), "-D", data, "-U", "lake", "-A", "trust", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, cwd="/")
        listen = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-k", data, "-p", str(port)]
        with server([*as_owner, str(tools / "postgres"), "-D", data, *listen], "ready to accept connections"):
            yield f"postgresql+psycopg2://lake@127.0.0.1:{port}/postgres"


def _postgres_tools() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: int(place.parent.name))
    if found:
        return found[-1]
    place = shutil.which("postgres")
    assert place is not None, "PostgreSQL is not installed; `make setup` installs it"
    return Path(place).parent


@contextmanager
def rest_catalog(home: Path, warehouse: str, store: Mapping[str, str]) -> Iterator[str]:
    """Iceberg's own REST catalog server; yields its URI."""
    port = free_port()
    settings = {
        "CATALOG_URI": f"jdbc:sqlite:{home}/rest.db",
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_REST_PORT": str(port),
        "JAVA_TOOL_OPTIONS": QUICK_JVM,
        **_as_environment(store),
    }
    command = ["java", "-cp", f"{ensure_rest_catalog()}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    with server(command, "Started oejs.Server|Started Server", settings):
        yield f"http://127.0.0.1:{port}"


def _as_environment(store: Mapping[str, str]) -> dict[str, str]:
    """The store's properties as environment variables of the REST catalog server."""
    properties = {key: value for key, value in store.items() if key.startswith("s3.") and key != "s3.region"}
    if properties:
        properties |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}
        properties |= {"client.region": store["s3.region"]}
    return {f"CATALOG_{key.upper().replace('-', '__').replace('.', '_')}": value for key, value in properties.items()}


class Places:
    """The properties of a catalog for each combination with a store; servers start on first use."""

    def __init__(self, home: Path, started: ExitStack) -> None:
        self._home, self._started = home, started

    @cached_property
    def _store(self) -> dict[str, str]:
        return self._started.enter_context(s3_store())

    @cached_property
    def _rest(self) -> str:
        return self._started.enter_context(rest_catalog(self._home, f"s3://{BUCKET}/warehouse", self._store))

    @cached_property
    def _database(self) -> str:
        return self._started.enter_context(postgres())

    def properties(self, place: str) -> dict[str, str]:
        files = {"type": "sql", "warehouse": (self._home / "warehouse").as_uri()}
        match place:
            case "sqlite and files":
                return files | {"uri": f"sqlite:///{self._home}/files.db"}
            case "postgres and files":
                return files | {"uri": self._database}
            case "sqlite and s3":
                bucket = {"uri": f"sqlite:///{self._home}/s3.db", "warehouse": f"s3://{BUCKET}/warehouse"}
                return files | bucket | self._store
            case "rest and s3":
                return {"type": "rest", "uri": self._rest, **self._store}
        raise AssertionError(place)


# --- processes with their own Spark session: a process has one kind of session, and the test process has a local one

BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
LIBRARIES = str(Path(pa.__file__).parent.parent)
"""All packages except Floeplan: links of editable installs are not followed on ``PYTHONPATH``."""
CONNECT = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", **DAEMON}
"""Settings of a Spark Connect server."""
DRIVER = {
    **CONNECT,
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
}
"""Driver settings of a session on a cluster, or of a local session in a separate process."""
Answer = TypeVar("Answer")


class Client:
    """Runs functions in the process, with the session as the first argument."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a function and return its result; function, arguments and result are pickled."""
        return self._pool.submit(_with_session, function, arguments).result()


@contextmanager
def client(url: str, settings: Mapping[str, str] | None = None, python: str = sys.executable) -> Iterator[Client]:
    """A process with a session on a cluster or Connect server; ``python`` is the interpreter of its tasks."""
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
    except Exception as error:  # exceptions of Spark refer to the JVM and cannot be pickled
        raise AssertionError("".join(traceback.format_exception(error))) from None


def _stop(spark: SparkSession) -> None:
    spark.stop()
