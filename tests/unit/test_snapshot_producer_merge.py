"""Manifest merging on commit: per spec and content, with a minimum count for the newest, and bounded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.errors import InvalidOptionError
from floeplan.metadata.manifests.entries import Status
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.manifests import MergeOptions, due_bin, pack_from_the_end
from tests.support.tables.layouts import Layout
from tests.support.tables.producing import (
    V1,
    V2,
    V3,
    Line,
    appending,
    data,
    deleting,
    new_files,
    positions,
    removing,
    superseded,
)

pytestmark = pytest.mark.unit

EARLY = {"commit.manifest.min-count-to-merge": "3"}


def appends(line: Line, count: int, *spec_ids: int) -> None:
    for number in range(count):
        line.commit(appending(line.layout, *(data(f"{spec_id}-{number}.parquet", spec_id) for spec_id in spec_ids)))


def entry_counts(line: Line) -> list[tuple[int, int]]:
    """Spec and number of live files of each manifest."""
    listed = line.manifests()
    return list(zip(listed.spec_id.tolist(), (listed.added_files + listed.existing_files).tolist(), strict=True))


@pytest.mark.parametrize("layout", [V1, V2, V3])
def test_small_manifests_are_merged_when_enough_have_gathered(layout: Layout, tmp_path: Path) -> None:
    line = Line.start(layout, tmp_path, EARLY)
    appends(line, 2, 1)
    assert entry_counts(line) == [(1, 1), (1, 1)]
    produced = line.commit(appending(layout, data("last.parquet", 1)))
    assert entry_counts(line) == [(1, 3)]
    entries = line.entries()
    assert entries.path.to_pylist() == ["last.parquet", "1-1.parquet", "1-0.parquet"]
    assert [Status(s).name for s in entries.status] == ["ADDED", "EXISTING", "EXISTING"]
    assert entries.ints("snapshot_id").tolist() == [102, 101, 100]
    assert entries.sequence_number.tolist() == ([0, 0, 0] if layout is V1 else [3, 2, 1])
    assert len(superseded(produced)) == 1, "the manifest that was merged at once"
    assert {name: produced.snapshot.summary[f"manifests-{name}"] for name in ("created", "kept", "replaced")} == {
        "created": "1",
        "kept": "0",
        "replaced": "2",
    }


def test_row_ids_survive_a_merge(tmp_path: Path) -> None:
    line = Line.start(V3, tmp_path, EARLY)
    appends(line, 2, 1)
    before = line.entry_values("first_row_id")
    line.commit(appending(V3, data("last.parquet", 1)))
    after = line.entry_values("first_row_id")
    assert {path: after[path] for path in before} == before
    assert len(set(after.values())) == 3
    assert line.metadata.next_row_id >= max(after.values()) + 10


def test_the_newest_manifest_of_every_spec_waits_for_the_minimum(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path, EARLY)
    appends(line, 2, 0, 1, 2)
    assert entry_counts(line) == [(0, 1), (1, 1), (2, 1)] * 2
    appends(line, 1, 1)
    assert entry_counts(line) == [(1, 3), (0, 1), (2, 1), (0, 1), (2, 1)]


def test_deletes_are_merged_with_deletes(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path, EARLY)
    line.commit(appending(V2, data("a.parquet")))
    for number in range(3):
        line.commit(deleting(V2, positions(f"p{number}.parquet", "a.parquet")))
    listed = line.manifests()
    assert list(
        zip(listed.content.tolist(), listed.added_files.tolist(), listed.existing_files.tolist(), strict=True)
    ) == [
        (0, 1, 0),
        (1, 1, 2),
    ]


def test_what_this_snapshot_removed_stays_deleted_in_a_merged_manifest(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path, EARLY)
    appends(line, 2, 0)
    line.commit(replace(removing("0-0.parquet"), added_data=new_files(V2, [data("n.parquet")])))
    entries = line.entries()
    statuses = dict(zip(entries.path.to_pylist(), entries.status.tolist(), strict=True))
    assert statuses == {"n.parquet": Status.ADDED, "0-1.parquet": Status.EXISTING, "0-0.parquet": Status.DELETED}
    assert len(line.manifests()) == 1


@pytest.mark.parametrize(
    ("properties", "change"), [({"commit.manifest-merge.enabled": "false"}, {}), ({}, {"merge_manifests": False})]
)
def test_nothing_is_merged_when_it_is_turned_off(
    properties: dict[str, str], change: dict[str, Any], tmp_path: Path
) -> None:
    line = Line.start(V2, tmp_path, EARLY | properties)
    for number in range(4):
        line.commit(appending(V2, data(f"{number}.parquet"), **change))
    assert len(line.manifests()) == 4


def test_a_merge_is_written_once_for_all_attempts(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path, EARLY)
    appends(line, 2, 0)
    producer = replace(line.producer(appending(V2, data("n.parquet"))), snapshot_id=900)
    first = producer.produce(line.metadata, line.head)
    line.commit(SnapshotChange(Operation.APPEND, added_data=new_files(V2, [data("theirs.parquet", 1)])))
    second = producer.produce(line.metadata, line.head)
    assert set(second.written) - set(first.written) == {second.snapshot.manifest_list}
    line.accept(second)
    assert line.live() == {"0-0.parquet", "0-1.parquet", "n.parquet", "theirs.parquet"}


def test_a_backlog_is_merged_one_bin_at_a_time(tmp_path: Path) -> None:
    line = Line.start(V2, tmp_path)
    for number in range(12):
        line.commit(appending(V2, data(f"{number}.parquet"), merge_manifests=False))
    size = int(line.manifests().length.max())
    options = MergeOptions(target_bytes=4 * size, min_count=100)
    assert due_bin(line.manifests().length, options) == slice(8, 12)
    line.metadata = line.metadata.model_copy(
        update={"properties": {"commit.manifest.target-size-bytes": str(4 * size)}}
    )
    for number in range(3):
        before = len(line.manifests())
        produced = line.commit(appending(V2, data(f"late{number}.parquet")))
        assert 2 <= int(produced.snapshot.summary["manifests-replaced"]) <= 4
        assert len(line.manifests()) < before
    assert len(line.live()) == 15


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40))
def test_bins_cover_the_list_in_order_and_do_not_exceed_the_target(lengths: list[int], target: int) -> None:
    bins = pack_from_the_end(np.array(lengths), target)
    assert [number for run in bins for number in range(run.start, run.stop)] == list(range(len(lengths)))
    for run in bins:
        assert run.stop - run.start == 1 or sum(lengths[run]) <= target
    for newer, older in pairwise(bins):
        assert lengths[newer.stop - 1] + sum(lengths[older]) > target, "a bin is as full as it can be"


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_property_that_is_no_number_is_named(value: str) -> None:
    with pytest.raises(InvalidOptionError, match="min-count-to-merge"):
        MergeOptions.of({"commit.manifest.min-count-to-merge": value})
