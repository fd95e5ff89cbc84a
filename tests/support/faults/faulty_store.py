"""Every operation on a table, on an object store behind a proxy with faults.

A small table of format 3 with files of two specs, one of them with a deletion vector, is created once and forked for
every attempt: forks share its files, and only ``expire`` removes any. Each operation has its expected result in plain
Python beside it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileSelector
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

import floeplan as fp
from floeplan.maintenance.expire import reachable_files
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.faults.proxies import FaultProxy, fault_proxy
from tests.support.servers import BUCKET, s3_store
from tests.support.tables.commits import NO_WAITING

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])
QUIET = fp.ScanOptions(report=False, cache=False)
PATIENT = CommitOptions(timing=NO_WAITING)
Rows = dict[int, int]
"""Values by id."""

START: Rows = {number: 0 for number in range(40) if number % 9}


def arrow(rows: Rows) -> pa.Table:
    columns = {"id": list(rows), "part": ["ab"[number % 2] for number in rows], "v": list(rows.values())}
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Operation:
    """An operation on a table, and its expected effect on the rows."""

    run: Callable[[Table], object]
    of_rows: Callable[[Rows], Rows]


NEW: Rows = {100: 7, 101: 8}
UPSERT: Rows = {3: 33, 30: 330, 300: 3, 301: 4}


def _merge(table: Table) -> object:
    merge = fp.merge(table, arrow(UPSERT), "id", options=PATIENT)
    return merge.when_matched_update().when_not_matched_insert().execute()


OPERATIONS = {
    "append": Operation(lambda t: fp.append(t, arrow(NEW), options=PATIENT), lambda rows: rows | NEW),
    "delete": Operation(
        lambda t: fp.delete(t, "id % 5 = 3", mode="merge-on-read", options=PATIENT),
        lambda rows: {i: v for i, v in rows.items() if i % 5 != 3},
    ),
    "update": Operation(
        lambda t: fp.update(t, {"v": "v + 1"}, "id % 4 = 1", mode="copy-on-write", options=PATIENT),
        lambda rows: {i: v + (i % 4 == 1) for i, v in rows.items()},
    ),
    "merge": Operation(_merge, lambda rows: rows | UPSERT),
    "rewrite": Operation(
        lambda t: fp.rewrite_data_files(t, options={"rewrite-all": "true"}, commit=PATIENT), lambda rows: rows
    ),
    "upgrade": Operation(lambda t: fp.upgrade_spec(t, commit=PATIENT), lambda rows: rows),
    "expire": Operation(
        lambda t: fp.expire_snapshots(
            t, older_than_ms=int(time.time() * 1000) + 1, retain_last=1, dry_run=False, commit=PATIENT
        ),
        lambda rows: rows,
    ),
}


class FaultyStore:
    """A store with tables; ``opened`` returns one behind a proxy with faults, all other methods bypass the proxy."""

    def __init__(self, home: Path, store: dict[str, str]) -> None:
        self._endpoint = store["s3.endpoint"]
        uri = f"sqlite:///{home}/catalog.db"
        self._properties = {"uri": uri, "warehouse": f"s3://{BUCKET}/warehouse", **store}
        self._catalog = SqlCatalog("tables", **self._properties)
        self._catalog.create_namespace("db")
        self._lock = threading.Lock()
        self._base = self._made("db.base")

    def _made(self, name: str) -> Table:
        with writable_metadata(self._catalog._load_file_io()):
            table = self._catalog.create_table(name, SCHEMA, properties={"format-version": "3"})
        fp.append(table, arrow(dict.fromkeys(range(20), 0)))
        fp.sql(None, f"ALTER TABLE {name} ADD PARTITION FIELD part", catalog=self._catalog)
        fp.append(table, arrow(dict.fromkeys(range(20, 40), 0)))
        fp.delete(table, "id % 9 = 0", mode="merge-on-read")
        return table.refresh()

    @contextmanager
    def opened(self, *, own_files: bool = False) -> Iterator[tuple[Table, FaultProxy]]:
        """A new fork of the table, with its own proxy in front of the store."""
        name = f"db.t{uuid.uuid4().hex}"
        with self._lock:
            if own_files:
                self._made(name)
            else:
                self._catalog.register_table(name, self._base.metadata_location)
        with fault_proxy(self._endpoint) as proxy:
            catalog = SqlCatalog("tables", **self._properties | {"s3.endpoint": proxy.url})
            yield catalog.load_table(name), proxy
            catalog.close()

    def newest(self, table: Table) -> Table:
        with self._lock:
            return self._catalog.load_table(table.name())

    def rows(self, table: Table) -> Rows:
        """The rows as stored, read without the proxy."""
        return read(self.newest(table))

    def missing(self, table: Table) -> list[str]:
        """Referenced files that are missing in the store."""
        newest = self.newest(table)
        assert isinstance(newest.io, PyArrowFileIO)
        system = newest.io.fs_by_scheme("s3", BUCKET)
        there = {f"s3://{info.path}" for info in system.get_file_info(FileSelector(BUCKET, recursive=True))}
        return sorted(set(reachable_files(newest, trust_lists=False).to_pylist()) - there)

    def close(self) -> None:
        self._catalog.close()


def read(table: Table) -> Rows:
    found = fp.plan_scan(table, options=QUIET).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a row was read twice"
    return {row["id"]: row["v"] for row in found}


@contextmanager
def faulty_store(home: Path) -> Iterator[FaultyStore]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_store() as store:
        made = FaultyStore(home, store)
        yield made
        made.close()


KINDS = {
    "metadata": r"[^=]*\.metadata\.json",
    "list": r"^[^=]*/snap-[^/]*\.avro",
    "manifest": r"^[^=]*-m\d+\.avro",
    "data": r"\.parquet",
    "vector": r"\.puffin",
    "listing": r"\?.*list-type",
}
"""Patterns of request paths by kind of file."""
