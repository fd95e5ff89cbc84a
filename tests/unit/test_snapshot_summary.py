"""Snapshot summaries: Java's names, no zeros, totals only if the parent has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from floeplan.metadata.delete_index import DeleteFileId
from floeplan.transaction.producer import running_totals
from tests.support.tables.producing import V2, V3, Line, appending, data, deleting, positions, removing, vector

pytestmark = pytest.mark.unit


def summary_of(line: Line) -> dict[str, str]:
    assert line.head is not None
    assert line.head.summary is not None
    return dict(line.head.summary.additional_properties)


def test_the_first_snapshot_counts_from_zero(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    line.commit(appending(V2, data("a.parquet", 1), data("b.parquet", 2), summary={"engine-name": "floeplan"}))
    assert summary_of(line) == {
        "engine-name": "floeplan",
        "added-data-files": "2",
        "added-records": "20",
        "added-files-size": "2000",
        "changed-partition-count": "2",
        "manifests-created": "2",
        "manifests-kept": "0",
        "manifests-replaced": "0",
        "total-data-files": "2",
        "total-records": "20",
        "total-files-size": "2000",
        "total-delete-files": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }


def test_deletes_are_counted_by_kind(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    line.commit(appending(V2, data("a.parquet")))
    equality = data("e.parquet", content=2, equality_ids=[1], record_count=7)
    line.commit(deleting(V2, positions("p.parquet", "a.parquet"), equality))
    added = {name: value for name, value in summary_of(line).items() if name.startswith(("added", "total", "changed"))}
    assert added == {
        "added-files-size": "2000",
        "added-delete-files": "2",
        "added-position-delete-files": "1",
        "added-equality-delete-files": "1",
        "added-position-deletes": "2",
        "added-equality-deletes": "7",
        "changed-partition-count": "1",
        "total-data-files": "1",
        "total-records": "10",
        "total-files-size": "3000",
        "total-delete-files": "2",
        "total-position-deletes": "2",
        "total-equality-deletes": "7",
    }
    line.commit(removing("a.parquet", removed_deletes=frozenset({DeleteFileId("e.parquet")})))
    removed = {name: value for name, value in summary_of(line).items() if name.startswith(("removed", "deleted"))}
    assert removed == {
        "removed-files-size": "2000",
        "deleted-data-files": "1",
        "deleted-records": "10",
        "removed-delete-files": "1",
        "removed-equality-delete-files": "1",
        "removed-equality-deletes": "7",
    }


def test_of_a_vector_its_own_bytes_count(tmp_path: Path) -> None:
    line = Line.start(V3, tmp_path)
    line.commit(appending(V3, data("a.parquet"), data("b.parquet")))
    line.commit(deleting(V3, vector("v.puffin", 4, "a.parquet"), vector("v.puffin", 44, "b.parquet")))
    stated = summary_of(line)
    assert (stated["added-dvs"], stated["added-delete-files"], stated["added-files-size"]) == ("2", "2", "80")
    assert "added-position-delete-files" not in stated


def test_one_tuple_under_two_specs_is_two_partitions(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    unpartitioned, region = data("a.parquet"), data("b.parquet", 1) | {"partition.1000": None}
    line.commit(appending(V2, unpartitioned, region, data("c.parquet", 1), data("d.parquet", 1)))
    assert summary_of(line)["changed-partition-count"] == "3"


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (None, {"total-records": "5"}),
        ({"total-records": "7"}, {"total-records": "12"}),
        ({}, {}),
        ({"total-records": "seven"}, {}),
        ({"total-records": "-3"}, {}),
        ({"total-records": "²"}, {}),
        ({"total-records": "9" * 5000}, {}),
    ],
)
def test_a_total_that_the_parent_does_not_state_is_not_made_up(
    parent: dict[str, str] | None, expected: dict[str, str]
) -> None:
    found = running_totals({"added-records": "5"}, parent)
    assert {name: value for name, value in found.items() if name == "total-records"} == expected


def test_a_total_never_becomes_negative() -> None:
    assert running_totals({"deleted-records": "5"}, {"total-records": "4"}) == {}
