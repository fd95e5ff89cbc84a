"""Bytes and files of one-file appends, on average over 1,000: manifests of format 3, and variants of the metadata tree.

``metadata.json``, which both write, is not counted. Of the roots of a tree one out of 10 or 25 is measured and stands
for the others; leaves are all counted. Files have statistics of their first 100 columns, as Iceberg's default.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from floeplan.metadata.manifests.list_writer import ListedSnapshot, encode_manifest_list
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.writer import write_manifest
from floeplan.metadata.v4.commits import ScratchTree, TreeOptions
from floeplan.metadata.v4.writer import ManifestOptions
from tests.support.tables.layouts import Layout

MERGE_AFTER, MERGE_BYTES = 100, 8 * 1024**2
"""Manifests after which Iceberg merges them, and the size of those it does not merge any more (``commit.manifest``)."""

INFERRED = 100
"""Columns that have statistics by default (``write.metadata.metrics.max-inferred-column-defaults``)."""

WIDE, STEPS = 100, (10, 25)
"""One append out of 10 is measured, and one out of 25 for tables of 100 columns and more."""

FEW = frozenset(range(1, 4))
LEAN = ManifestOptions(dictionaries=False, statistics=False)
VARIANTS = {
    "100 inline": TreeOptions(inline_files=100),
    "10 inline": TreeOptions(inline_files=10),
    "1000 inline": TreeOptions(inline_files=1000),
    "100 inline, statistics of 3 columns": TreeOptions(inline_files=100, stats=FEW),
    "100 inline, no statistics": TreeOptions(inline_files=100, stats=frozenset()),
    "10 inline, no statistics of leaves": TreeOptions(inline_files=10, leaf_stats=False),
    "10 inline, no Parquet statistics": TreeOptions(inline_files=10, files=ManifestOptions(statistics=False)),
    "10 inline, no dictionaries": TreeOptions(inline_files=10, files=ManifestOptions(dictionaries=False)),
    "10 inline, neither": TreeOptions(inline_files=10, files=LEAN),
    "10 inline, neither, statistics of 3 columns": TreeOptions(inline_files=10, files=LEAN, stats=FEW),
}
OF_WIDE = frozenset(VARIANTS) - {
    "1000 inline",
    "10 inline, no statistics of leaves",
    "10 inline, no Parquet statistics",
    "10 inline, no dictionaries",
}
"""Variants that are measured for wide tables, too."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """What an append writes on average."""

    variant: str
    columns: int
    bytes: float
    files: float


def commit_costs(folder: Path, columns: int, appends: int) -> Iterator[Cost]:
    """Manifests of format 3 first, then the variants of the tree."""
    layout = _layout(columns)
    table = layout.write_table(folder / f"t{columns}", layout.entries([]))
    rows = [_file(table.location(), number, columns) for number in range(appends)]
    yield _Manifests(folder / f"v3-{columns}", layout).cost(rows, columns)
    chosen = [one for one in VARIANTS.items() if columns < WIDE or one[0] in OF_WIDE]
    for number, (name, options) in enumerate(chosen):
        yield _tree_cost(folder / f"{columns}-{number}", name, options, table, layout, rows)


def _tree_cost(folder: Path, name: str, options: TreeOptions, table: Table, layout: Layout, rows: list[Row]) -> Cost:
    """The roots that are measured stand for the others; leaves are all counted."""
    tree = ScratchTree(table.metadata, str(folder), options)
    columns = len(layout.schema.fields)
    step = STEPS[columns >= WIDE]
    roots = leaves = spills = at = 0
    while at < len(rows):
        # Files move to a leaf when there is one more than may be inline: appends of several end there.
        inline = at % (options.inline_files + 1)
        last = at % step == step - 1
        count = 1 if last else min(step - 1 - at % step, options.inline_files + 1 - inline)
        commit = tree.append(layout.entries(rows[at : at + count]))
        root = os.path.getsize(commit.root)
        roots, leaves, spills = roots + root * step * last, leaves + commit.bytes - root, spills + commit.files - 1
        at += count
    return Cost(name, columns, (roots + leaves) / len(rows), 1 + spills / len(rows))


def _layout(columns: int) -> Layout:
    schema = Schema(*(NestedField(n, f"c{n}", LongType()) for n in range(1, columns + 1)))
    return Layout(schema, (PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "c1"), spec_id=0),), version=4)


def _file(location: str, number: int, columns: int) -> Row:
    keys = range(1, min(columns, INFERRED) + 1)
    low = {key: struct.pack("<q", (number * 7919 + key * 31) % 100_003) for key in keys}
    high = {key: struct.pack("<q", (number * 7919 + key * 31) % 100_003 + 1000) for key in keys}
    counts = {"value_counts": dict.fromkeys(keys, 10), "null_value_counts": dict.fromkeys(keys, 0)}
    path = f"{location}/data/{number:08d}-{number * 2654435761 % 2**64:016x}.parquet"
    return {"file_path": path, "partition.1000": number % 10, "lower_bounds": low, "upper_bounds": high} | counts


@dataclass(slots=True)
class _Manifests:
    """A table of format 3 as Iceberg appends to it: a manifest and a list each time, and a merge after 100 manifests.

    A merged manifest is merged again until it has 8 MB.
    """

    folder: Path
    layout: Layout
    bytes: int = 0
    files: int = 0
    listed: list[tuple[ManifestListTable, list[Row]]] = field(default_factory=list)

    def cost(self, rows: list[Row], columns: int) -> Cost:
        for number, row in enumerate(rows):
            self._append(number, row | {"sequence_number": number + 1})
        return Cost("v3", columns, self.bytes / len(rows), self.files / len(rows))

    def _append(self, number: int, row: Row) -> None:
        self._write(f"m{number}", [row])
        small = [one for one in self.listed if int(one[0].length[0]) < MERGE_BYTES]
        if len(small) >= MERGE_AFTER:
            self.listed = [one for one in self.listed if int(one[0].length[0]) >= MERGE_BYTES]
            self._write(f"merged{number}", [row | {"status": 0} for _, rows in small for row in rows])
        tables = concat_manifest_lists([one for one, _ in self.listed])
        encoded = encode_manifest_list(tables, ListedSnapshot(3, 70, None, number + 1, 0))
        self.bytes, self.files = self.bytes + len(encoded.data), self.files + 1

    def _write(self, name: str, rows: list[Row]) -> None:
        written = write_manifest(
            (self.folder / f"{name}.avro").as_uri(),
            self.layout.entries(rows),
            self.layout.specs[0],
            self.layout.schema,
            union=self.layout.union,
            format_version=3,
            content=DATA,
            snapshot_id=70,
        )
        self.bytes, self.files = self.bytes + int(written.length[0]), self.files + 1
        self.listed.append((written, rows))
