"""Catalogs and stores as a company has them: PostgreSQL, Iceberg's REST server, an S3-compatible store."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from scripts.fetch_rest_catalog import ensure_rest_catalog
from tests.support.servers import QUICK_JVM, free_port, server

BUCKET = "lake"
_KEYS = {"access-key-id": "key-of-the-tests", "secret-access-key": "secret-of-the-tests", "region": "us-east-1"}
_PATIENCE = {"s3.connect-timeout": "60", "s3.request-timeout": "60"}
"""Seconds. Arrow's client waits three and tries three times, which a busy machine may use up without any fault."""
_SOON = {"s3.retry-strategy-impl": "pyarrow.fs.AwsDefaultS3RetryStrategy"}
"""As many tries, but milliseconds apart instead of seconds, in which nobody else in the process can open a store."""


@contextmanager
def s3_store() -> Iterator[dict[str, str]]:
    """An object store with one bucket; yields the properties by which a catalog reaches it."""
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
    """A database server with a folder of its own; yields the URI of its database for SQLAlchemy."""
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
    """The store as the server is told of it: properties as names of variables."""
    told = {key: value for key, value in store.items() if key.startswith("s3.") and key != "s3.region"}
    if told:
        told |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}
        told |= {"client.region": store["s3.region"]}
    return {f"CATALOG_{key.upper().replace('-', '__').replace('.', '_')}": value for key, value in told.items()}
