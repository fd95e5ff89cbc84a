"""Contenders that read all manifests of a table; as a program, runs one of them once in a new process.

Prints entries, CPU seconds and peak memory as JSON. Everything is imported before the clock starts.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy.ma  # noqa: F401 - Arrow imports it on first use, which is no part of reading
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from floeplan.metadata.avro.decoder import AvroReader, load_decoder
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.files import read_files
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType

PLAN = EntryColumns(frozenset({"key_metadata", "first_row_id", "sort_order_id"}))
BOUNDS = EntryColumns(PLAN.names, stats=frozenset({4}))


def floor(table: StaticTable, _: Path) -> int:
    """Only reading and decompressing."""
    reader, entries = AvroReader(), 0
    paths = listed(table).path.to_pylist()
    for path, data in zip(paths, read_files(paths), strict=True):
        entries += sum(block.count for block in reader.blocks(data, reader.header(data, path), path))
    return entries


def pyiceberg(table: StaticTable, _: Path) -> int:
    io = PyArrowFileIO()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return len([entry for manifest in snapshot.manifests(io) for entry in manifest.fetch_manifest_entry(io, False)])


def decoded(columns: EntryColumns, pure_python: bool = False) -> Callable[[StaticTable, Path], int]:
    decoder = load_decoder(pure_python)
    return lambda table, _: len(read_entries(listed(table), union(table), columns, decoder=decoder))


def cached(columns: EntryColumns) -> Callable[[StaticTable, Path], int]:
    return lambda table, cache: len(EntriesCache(cache).read_entries(listed(table), union(table), columns))


def union(table: StaticTable) -> UnionPartitionType:
    return UnionPartitionType.of_table(table.metadata)


def listed(table: StaticTable) -> ManifestListTable:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return read_manifest_list(snapshot.manifest_list)


CONTENDERS: dict[str, Callable[[StaticTable, Path], int]] = {
    "read and inflate": floor,
    "PyIceberg": pyiceberg,
    "no filter": decoded(PLAN),
    "bounds of one column": decoded(BOUNDS),
    "Python decoder": decoded(PLAN, pure_python=True),
    "no filter, cached": cached(PLAN),
    "bounds of one column, cached": cached(BOUNDS),
}


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    name, metadata, cache = sys.argv[1:]
    table = StaticTable.from_metadata(metadata)
    started = cpu_seconds()
    entries = CONTENDERS[name](table, Path(cache))
    seconds = cpu_seconds() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"entries": entries, "cpu": seconds, "megabytes": peak}))


if __name__ == "__main__":
    main()
