"""A writer killed at each step of a commit: the table is unchanged or fully changed, with known leftover files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floeplan.transaction.change import IsolationLevel
from tests.support.faults.writer_processes import WRITES, KilledWriters, killed_writers
from tests.support.tables.commits import create_table, files_under, leftovers, open_catalog, read_rows

pytestmark = pytest.mark.engines

BEFORE = ("refreshed", "validated", "manifests-written", "list-written", "before-commit", "metadata-written")
AFTER = ("committed", "cleaned")
KINDS = [("merge-on-read", 2), ("copy-on-write", 3)]


@pytest.fixture(scope="module")
def writers() -> Iterator[KilledWriters]:
    with killed_writers() as made:
        yield made


def kinds_of(paths: set[str]) -> dict[str, int]:
    """Files by kind."""
    counts = dict.fromkeys(("files", "manifests", "lists", "metadata"), 0)
    for path in paths:
        name = path.rpartition("/")[2]
        listed = "lists" if name.startswith("snap-") else "manifests"
        what = "metadata" if name.endswith(".json") else listed if name.endswith(".avro") else "files"
        counts[what] += 1
    return counts


@pytest.mark.parametrize("step", BEFORE + AFTER)
@pytest.mark.parametrize(("kind", "version"), KINDS)
def test_a_killed_writer_leaves_a_valid_table(
    writers: KilledWriters, tmp_path: Path, kind: str, version: int, step: str
) -> None:
    catalog = open_catalog(tmp_path)
    table = create_table(catalog, version)
    rows, files = read_rows(table), files_under(table)
    writers.kill_at(tmp_path, kind, step)
    left = leftovers(table)
    assert read_rows(table) == (rows if step in BEFORE else sorted(WRITES[kind].of_rows(rows)))
    assert left == (files_under(table) - files if step in BEFORE else set()), "everything that was written, or nothing"
    found = kinds_of(left)
    assert (found["files"] > 0) is (step in BEFORE)
    assert (found["manifests"] > 0) is (step in BEFORE[2:])
    assert found["lists"] == (1 if step in BEFORE[3:] else 0)
    assert found["metadata"] == (1 if step == "metadata-written" else 0)

    again = WRITES["append"].plan(catalog.load_table("db.t"), IsolationLevel.SERIALIZABLE)
    again.commit()
    assert len(read_rows(table)) == len(rows) + 5 - (0 if step in BEFORE else 2), "the next writer can commit"
    assert leftovers(table) == left
    catalog.close()
