"""Which columns of manifest entries are wanted, and where they are found in a manifest.

Column names are the specification's. Per partition field of the union tuple there is ``partition.<id>``; per requested
field id there are ``lower.<id>``, ``upper.<id>``, ``null_count.<id>``, ``nan_count.<id>``, ``value_count.<id>`` and
``column_size.<id>``.

A plan wants the statistics of few columns as vectors; who writes entries again wants the maps whole, with every key
there is. A map is read in one of the two ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from floeplan.metadata.program import Fields, Items, Keyed, Scalar, Want

STATUS, SNAPSHOT_ID, DATA_FILE, SEQUENCE_NUMBER, FILE_SEQUENCE_NUMBER = 0, 1, 2, 3, 4
PARTITION = 102

REQUIRED = frozenset({"status", "file_path", "record_count", "file_size_in_bytes"})
"""Columns every manifest must have."""


def _map(name: str, key_id: int, value_id: int) -> Items:
    return Items(name, Fields(((key_id, Scalar(f"{name}.key")), (value_id, Scalar(f"{name}.value")))))


_ENTRY: Mapping[str, tuple[int, Want]] = {
    "status": (STATUS, Scalar("status")),
    "snapshot_id": (SNAPSHOT_ID, Scalar("snapshot_id")),
    "sequence_number": (SEQUENCE_NUMBER, Scalar("sequence_number")),
    "file_sequence_number": (FILE_SEQUENCE_NUMBER, Scalar("file_sequence_number")),
}
_DATA_FILE: Mapping[str, tuple[int, Want]] = {
    "content": (134, Scalar("content")),
    "file_path": (100, Scalar("file_path")),
    "file_format": (101, Scalar("file_format")),
    "record_count": (103, Scalar("record_count")),
    "file_size_in_bytes": (104, Scalar("file_size_in_bytes")),
    "key_metadata": (131, Scalar("key_metadata")),
    "split_offsets": (132, Items("split_offsets", Scalar("split_offsets[]"))),
    "equality_ids": (135, Items("equality_ids", Scalar("equality_ids[]"))),
    "sort_order_id": (140, Scalar("sort_order_id")),
    "first_row_id": (142, Scalar("first_row_id")),
    "referenced_data_file": (143, Scalar("referenced_data_file")),
    "content_offset": (144, Scalar("content_offset")),
    "content_size_in_bytes": (145, Scalar("content_size_in_bytes")),
}
_MAPS: Mapping[str, tuple[int, Want]] = {
    "column_sizes": (108, _map("column_sizes", 117, 118)),
    "value_counts": (109, _map("value_counts", 119, 120)),
    "null_value_counts": (110, _map("null_value_counts", 121, 122)),
    "nan_value_counts": (137, _map("nan_value_counts", 138, 139)),
    "lower_bounds": (125, _map("lower_bounds", 126, 127)),
    "upper_bounds": (128, _map("upper_bounds", 129, 130)),
}
_STATS = {
    "value_count.": 109,
    "null_count.": 110,
    "nan_count.": 137,
    "lower.": 125,
    "upper.": 128,
}
_COLUMN_SIZES = 108

ALL_COLUMNS = frozenset({*_ENTRY, *_DATA_FILE})
"""Everything but statistics."""

FIELD_IDS = {name: found[0] for name, found in {**_ENTRY, **_DATA_FILE}.items()} | {"spec_id": 141}
"""The field ids of the specification."""

STAT_MAPS = tuple(_MAPS)
"""The statistics as whole maps from field id to value."""

WHOLE = ALL_COLUMNS | frozenset(_MAPS)
"""All there is: what it takes to write an entry again."""

NEEDED = frozenset({"status", "sequence_number", "content", "file_path", "file_format", "record_count"}) | REQUIRED
"""Columns that are always read: without them no entry can be judged."""


def partition_column(field_id: int | str) -> str:
    """The column of a field of the union partition tuple."""
    return f"partition.{field_id}"


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Wanted columns.

    Attributes:
        names: Column names out of ``WHOLE``; the needed ones are read anyway.
        stats: Field ids whose bounds and counts are read.
        sizes: Field ids whose column sizes are read.
        partition: Whether the partition tuple is read.
    """

    names: frozenset[str] = ALL_COLUMNS
    stats: frozenset[int] = frozenset()
    sizes: frozenset[int] = frozenset()
    partition: bool = True

    def __post_init__(self) -> None:
        assert not (self.maps and (self.stats or self.sizes)), "maps are read whole or by key, not both"

    @property
    def maps(self) -> tuple[str, ...]:
        """The maps that are read whole."""
        return tuple(name for name in _MAPS if name in self.names)

    def want(self, partition: Mapping[int, str]) -> Fields:
        """What to decode of a manifest; ``partition`` names the column of each partition field id of its spec."""
        names = self.names | NEEDED
        of_file = {**_DATA_FILE, **_MAPS}
        data_file: list[tuple[int, Want]] = [want for name, want in of_file.items() if name in names]
        if self.partition and partition:
            columns = tuple((field_id, Scalar(name)) for field_id, name in sorted(partition.items()))
            data_file.append((PARTITION, Fields(columns)))
        if self.stats:
            keys = tuple(sorted(self.stats))
            data_file += [(field_id, Keyed(prefix, keys)) for prefix, field_id in _STATS.items()]
        if self.sizes:
            data_file.append((_COLUMN_SIZES, Keyed("column_size.", tuple(sorted(self.sizes)))))
        entry = [want for name, want in _ENTRY.items() if name in names]
        return Fields((*entry, (DATA_FILE, Fields(tuple(data_file)))))

    def column_names(self, partition: Iterable[int]) -> list[str]:
        """The columns asked for, without those that only tell where an entry comes from."""
        names = [name for name in (*_ENTRY, *_DATA_FILE, *_MAPS) if name in self.names | NEEDED]
        if self.partition:
            names += [partition_column(field_id) for field_id in partition]
        names += [f"{prefix}{field_id}" for field_id in sorted(self.stats) for prefix in _STATS]
        return names + [f"column_size.{field_id}" for field_id in sorted(self.sizes)]

    def only(self, names: Iterable[str]) -> EntryColumns:
        """As little as possible with these of the columns asked for."""
        few = frozenset(names)
        return EntryColumns(
            names=self.names & few,
            stats=frozenset(
                field_id for field_id in self.stats if any(f"{prefix}{field_id}" in few for prefix in _STATS)
            ),
            sizes=frozenset(field_id for field_id in self.sizes if f"column_size.{field_id}" in few),
            partition=self.partition and any(name.startswith(partition_column("")) for name in few),
        )
