"""A PostgreSQL catalog whose connection ends during COMMIT: the change is applied once, or reported as unknown."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitStateUnknownError
from floeplan.maintenance.expire import expire_snapshots
from tests.support.faults.proxies import CommitFault, DatabaseProxy, database_proxy
from tests.support.servers import postgres
from tests.support.tables.commits import Rows, arrow, create_table, files_under, leftovers, patient, read_rows, rows_of

pytestmark = pytest.mark.services

START = rows_of(0, 10, "a") + rows_of(10, 20, "b")
NEW = rows_of(100, 103)
CHANGES: dict[str, tuple[Callable[[Table], object], Rows]] = {
    "append": (lambda t: fp.append(t, arrow(NEW), options=patient()), START + NEW),
    "row delta": (
        lambda t: fp.delete(t, "id IN (3, 14)", mode="merge-on-read", options=patient()),
        [row for row in START if row[0] not in (3, 14)],
    ),
    "replace": (lambda t: fp.rewrite_data_files(t, options={"rewrite-all": "true"}, commit=patient()), START),
}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as uri:
        yield uri


@pytest.fixture(scope="module")
def proxy(database: str) -> Iterator[DatabaseProxy]:
    port = urlsplit(database).port
    assert port is not None
    with database_proxy(port) as started:
        yield started


@contextmanager
def opened(database: str, proxy: DatabaseProxy, folder: Path) -> Iterator[tuple[Table, Table]]:
    """A new table, opened directly and through the proxy."""
    through = database.replace(f":{urlsplit(database).port}", f":{proxy.port}")
    straight, faulty = (SqlCatalog("lake", uri=uri, warehouse=folder.as_uri()) for uri in (database, through))
    name = f"db.t{uuid.uuid4().hex}"
    straight.create_namespace_if_not_exists("db")
    table = create_table(straight, 3, START, name)
    yield table, faulty.load_table(name)
    straight.close()
    faulty.close()


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_is_applied_once_whatever_the_response(
    database: str, proxy: DatabaseProxy, tmp_path: Path, change: str, fault: CommitFault
) -> None:
    run, expected = CHANGES[change]
    with opened(database, proxy, tmp_path) as (table, faulty):
        before = len(table.metadata.snapshots)
        with proxy.with_faults(fault):
            run(faulty)
            assert proxy.applied == 1
        assert read_rows(table) == sorted(expected)
        assert len(table.refresh().metadata.snapshots) == before + 1
        assert not {path for path in leftovers(table) if not path.endswith(".json")}


def test_an_unknown_commit_state_is_reported_and_nothing_is_removed(
    database: str, proxy: DatabaseProxy, tmp_path: Path
) -> None:
    with opened(database, proxy, tmp_path) as (table, faulty):
        before = files_under(table)
        with proxy.with_faults("gone"), pytest.raises(CommitStateUnknownError, match="may have been committed"):
            CHANGES["append"][0](faulty)
        assert read_rows(table) == sorted(START + NEW)
        assert {Path(path).suffix for path in files_under(table) - before} == {".avro", ".parquet", ".json"}


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
def test_snapshots_are_expired_once(database: str, proxy: DatabaseProxy, tmp_path: Path, fault: CommitFault) -> None:
    with opened(database, proxy, tmp_path) as (table, faulty):
        with proxy.with_faults(fault):
            done = expire_snapshots(faulty, older_than_ms=2**53, dry_run=False, commit=patient())
            assert proxy.applied == 1
        assert (done.snapshots_before, done.snapshots_after) == (2, 1)
        assert read_rows(table) == sorted(START)
