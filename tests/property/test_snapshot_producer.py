"""Random histories of changes with races, merges and any hints, against a dictionary of live files."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floeplan.metadata.manifests.entries import Content, Status
from floeplan.transaction.change import Operation, SnapshotChange
from floeplan.transaction.producer import ProducedSnapshot, SnapshotProducer
from tests.support.tables.producing import V1, V2, V3, Line, new_files

pytestmark = pytest.mark.property

REGIONS = st.sampled_from([None, "", "eu", "us"])
PLACES = st.one_of(
    st.just({"spec_id": 0}),
    st.builds(lambda value: {"spec_id": 1, "partition.1000": value}, REGIONS),
    st.builds(lambda value: {"spec_id": 2, "partition.1001": value}, st.sampled_from([None, 0, 7])),
)
CHANGES = st.fixed_dictionaries(
    {
        "add": st.lists(PLACES, max_size=4),
        "remove": st.lists(st.integers(0, 30), max_size=3),
        "hint": st.sampled_from(["none", "tuples", "manifests", "some"]),
        "raced_by": st.lists(PLACES, max_size=2),
        "race_removes": st.booleans(),
        "merge": st.booleans(),
    }
)
PROPERTIES = st.fixed_dictionaries(
    {
        "commit.manifest.min-count-to-merge": st.sampled_from(["2", "3", "100"]),
        "commit.manifest.target-size-bytes": st.sampled_from(["6000", "20000", "8388608"]),
    }
)


class History:
    """A table and its expected live files with their sequence numbers."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.files: dict[str, dict[str, Any]] = {}
        self.sequence: dict[str, int] = {}
        self.row_ids: dict[str, int] = {}
        self.made = 0

    def new(self, places: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [
            place | {"file_path": f"f{self.made + n}.parquet", "record_count": n + 1} for n, place in enumerate(places)
        ]
        self.made += len(rows)
        return rows

    def change(self, rows: list[dict[str, Any]], removed: list[str], hint: str, merge: bool) -> SnapshotChange:
        layout = self.line.layout
        entries = self.line.entries().live()
        known = np.isin(entries.path.to_pylist(), removed[: 1 if hint == "some" else None])
        return SnapshotChange(
            Operation.OVERWRITE,
            added_data=new_files(layout, rows) if rows else None,
            removed_data=frozenset(removed),
            removed_entries=None if hint == "none" else entries.filter(known),
            planned_on=self.line.metadata.current_snapshot_id if hint == "manifests" else None,
            merge_manifests=merge,
        )

    def committed(self, produced: ProducedSnapshot, rows: list[dict[str, Any]], removed: list[str]) -> None:
        self.line.accept(produced)
        for path in removed:
            self.files.pop(path, None)
        self.files |= {row["file_path"]: row for row in rows}
        number = self.line.metadata.last_sequence_number if self.line.layout.version > 1 else 0
        self.sequence |= dict.fromkeys((row["file_path"] for row in rows), number)

    def step(self, step: dict[str, Any], snapshot_id: int) -> None:
        rows = self.new(step["add"])
        removed = [path for n, path in enumerate(sorted(self.files)) if n in step["remove"]]
        producer = SnapshotProducer(self.change(rows, removed, step["hint"], step["merge"]), snapshot_id)
        produced = producer.produce(self.line.metadata, self.line.head)
        assert not produced.missing_data
        gone: list[str] = []
        if step["raced_by"] or step["race_removes"]:
            theirs = self.new(step["raced_by"])
            gone = [*removed[:1], *sorted(set(self.files) - set(removed))[:1]] if step["race_removes"] else []
            other = SnapshotProducer(self.change(theirs, gone, "none", True), snapshot_id + 1000)
            self.committed(other.produce(self.line.metadata, self.line.head), theirs, gone)
            produced = producer.produce(self.line.metadata, self.line.head)
        assert produced.missing_data == set(gone) & set(removed)
        self.committed(produced, rows, removed)
        self.check(produced)

    def check(self, produced: ProducedSnapshot) -> None:
        line = self.line
        assert line.entry_values("sequence_number") == {path: self.sequence[path] for path in self.files}
        entries, listed = line.entries(), line.manifests()
        live = entries.live()
        for path, row in zip(live.path.to_pylist(), live.table.to_pylist(), strict=True):
            assert {name: row[name] for name in self.files[path]} == self.files[path]
        own = entries.ints("snapshot_id") == produced.snapshot.snapshot_id
        assert set(entries.filter(own & (entries.status == Status.DELETED)).path.to_pylist()) == set(
            produced.removed.path.to_pylist()
        )
        for status in Status:
            counted = np.bincount(entries.ints("manifest")[entries.status == status], minlength=len(listed))
            assert getattr(listed, f"{status.name.lower()}_files").tolist() == counted.tolist()
        summary = produced.snapshot.summary
        assert summary is not None
        assert summary["total-data-files"] == str(len(self.files))
        assert summary["total-records"] == str(sum(row["record_count"] for row in self.files.values()))
        assert set(produced.written) >= {m.path for m in produced.manifests_written}
        if line.layout.version > 2:
            self.check_row_ids()

    def check_row_ids(self) -> None:
        """Row ids are assigned once, never change and are unique."""
        entries = self.line.entries().live()
        found = dict(zip(entries.path.to_pylist(), entries.ints("first_row_id").tolist(), strict=True))
        assert {path: row_id for path, row_id in self.row_ids.items() if path in found}.items() <= found.items()
        self.row_ids |= found
        data = entries.filter(entries.content == Content.DATA)
        spans = sorted(zip(data.ints("first_row_id").tolist(), data.record_count.tolist(), strict=True))
        ends = 0
        for first, rows in spans:
            assert first >= ends
            ends = first + rows
        assert ends <= (self.line.metadata.next_row_id or 0)


@pytest.mark.parametrize("layout", [V1, V2, V3])
@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(st.lists(CHANGES, min_size=1, max_size=5), PROPERTIES)
def test_the_table_holds_what_its_history_says(
    layout: Any, steps: list[dict[str, Any]], properties: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(Line.start(replace(layout), Path(folder), properties))
        for number, step in enumerate(steps):
            history.step(step, 100 + number)
