"""A disk that fills up at any step of a change: a clear error and an unchanged table.

A file size limit simulates the full disk: a write beyond it fails in the middle, in any library.
"""

from __future__ import annotations

import resource
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table

import floeplan as fp
from floeplan.errors import CommitError, FloeplanError
from floeplan.metadata.files import write_file
from tests.support.faults.full_filesystem import full_after
from tests.support.tables.commits import (
    arrow,
    create_table,
    files_under,
    fork,
    open_catalog,
    patient,
    reachable,
    read_rows,
    rows_of,
)

pytestmark = pytest.mark.unit

NOTHING, LITTLE = 0, 300
"""Bytes that fit: none, or the beginning of a file."""


def _merge(table: Table, options: Any) -> object:
    merge = fp.merge(table, arrow(rows_of(25, 35)), "id", options=options)
    return merge.when_matched_update().when_not_matched_insert().execute()


CHANGES: dict[str, Callable[[Table, Any], object]] = {
    "append": lambda t, how: fp.append(t, arrow(rows_of(100, 105)), options=how),
    "copy-on-write": lambda t, how: fp.delete(t, "id IN (3, 14)", mode="copy-on-write", options=how),
    "merge-on-read": lambda t, how: fp.delete(t, "id IN (3, 14)", mode="merge-on-read", options=how),
    "merge": _merge,
    "sort": lambda t, how: fp.rewrite_data_files(
        t, strategy="sort", by=["id"], options={"rewrite-all": "true"}, commit=how
    ),
    "stitch": lambda t, how: fp.rewrite_data_files(t, strategy="stitch", options={"rewrite-all": "true"}, commit=how),
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    opened = open_catalog(tmp_path_factory.mktemp("lake"))
    for version in (2, 3):
        create_table(opened, version, name=f"db.v{version}")
    yield opened
    opened.close()


@pytest.fixture(params=[2, 3])
def table(request: pytest.FixtureRequest, catalog: SqlCatalog) -> Table:
    return fork(catalog.load_table(f"db.v{request.param}"), f"db.t{uuid.uuid4().hex}")


@pytest.mark.parametrize("size", [NOTHING, LITTLE])
@pytest.mark.parametrize("change", CHANGES)
def test_data_files_that_do_not_fit(table: Table, change: str, size: int) -> None:
    rows, files = read_rows(table), files_under(table)
    with full_after(size), pytest.raises(FloeplanError, match=r"cannot be written.*File too large") as raised:
        CHANGES[change](table, patient())
    assert not raised.value.committed
    assert read_rows(table) == rows
    assert files_under(table) == files, "nothing is left over"


@pytest.mark.parametrize(("step", "size"), [("validated", LITTLE), ("manifests-written", NOTHING)])
@pytest.mark.parametrize("change", CHANGES)
def test_manifests_and_lists_that_do_not_fit(table: Table, change: str, step: str, size: int) -> None:
    rows, files = read_rows(table), files_under(table)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(at: str) -> None:
        if at == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    try:
        with pytest.raises(FloeplanError, match=r"avro cannot be written.*File too large") as raised:
            CHANGES[change](table, patient(on_step=fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.kind == "unwritable"
    assert not raised.value.committed
    assert read_rows(table) == rows
    assert files_under(table) == files, "nothing is left over"


@pytest.mark.parametrize("change", ["append", "merge-on-read", "sort"])
def test_a_catalog_that_cannot_write_the_metadata(table: Table, change: str) -> None:
    rows, files = read_rows(table), files_under(table)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(at: str) -> None:
        if at == "before-commit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE, hard))
        elif at == "refreshed":
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        with pytest.raises(CommitError, match=r"gave up committing to.*File too large") as raised:
            CHANGES[change](table, patient(on_step=fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.retryable
    assert read_rows(table) == rows
    assert not reachable(table) - files, "new files are unreferenced"
    CHANGES[change](table, patient())
    assert len(table.refresh().metadata.snapshots) == 4


def test_earlier_commits_of_a_rewrite_are_reported(table: Table) -> None:
    rows, files = read_rows(table), files_under(table)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    commits = []

    def fill(at: str) -> None:
        commits.extend([at] if at == "validated" else [])
        resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE if len(commits) > 1 else soft, hard))

    options = {"rewrite-all": "true", "partial-progress.enabled": "true", "partial-progress.max-commits": "2"}
    try:
        done = fp.rewrite_data_files(table, options=options, commit=patient(on_step=fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(done.snapshot_ids) == 1
    assert [failure.error.kind for failure in done.failures] == ["unwritable"]
    assert read_rows(table) == rows
    assert files_under(table) - files <= reachable(table), "nothing is left over"


class NoSpace(PyArrowFileIO):
    """A FileIO on a full device."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        output.create = lambda overwrite=False: pa.OSFile("/dev/full", "wb")  # type: ignore[assignment,method-assign]
        return output


def test_the_reason_is_named(catalog: SqlCatalog, table: Table) -> None:
    rows = read_rows(table)
    full = SqlCatalog("local", **catalog.properties | {PY_IO_IMPL: f"{__name__}.{NoSpace.__name__}"})
    with pytest.raises(FloeplanError, match=r"parquet cannot be written: .*No space left on device") as raised:
        fp.append(full.load_table(table.name()), arrow(rows_of(100, 105)))
    assert (raised.value.kind, raised.value.retryable) == ("unwritable", True)
    assert read_rows(table) == rows
    full.close()


def test_a_partial_metadata_file_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "metadata" / "m0.avro"
    with full_after(LITTLE), pytest.raises(FloeplanError, match="cannot be written: File too large"):
        write_file(place.as_uri(), b"x" * 100_000)
    assert not place.exists()
    write_file(place.as_uri(), b"whole")
    assert place.read_bytes() == b"whole"


@pytest.mark.parametrize("size", [NOTHING, LITTLE])
def test_plans_without_room_for_their_cache(
    table: Table, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, options = "id IN (3, 14)", fp.ScanOptions(report=False)
    monkeypatch.setenv("FLOEPLAN_CACHE", str(tmp_path))
    with full_after(size):
        found = fp.plan_scan(table, where, options=options).to_arrow().to_pylist()
    assert sorted(row["id"] for row in found) == [3, 14]
    assert sorted(row["id"] for row in fp.plan_scan(table, where, options=options).to_arrow().to_pylist()) == [3, 14]
    monkeypatch.setenv("FLOEPLAN_CACHE", "/dev/full/cache")
    assert sorted(row["id"] for row in fp.plan_scan(table, where, options=options).to_arrow().to_pylist()) == [3, 14]
