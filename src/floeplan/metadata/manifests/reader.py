"""Reads the entries of many manifests into one ``EntriesTable``.

Rule: decompressed blocks are decoded straight into typed columns; a manifest costs a few Python calls, an entry none.
Fail-safe: a manifest that is damaged, possibly truncated (``completeness``), or lacks a required column is an error
that names it; a plan made without it would lose rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from pyiceberg.io import FileIO

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.metadata.avro.container import AvroReader, Block, Header, corrupt
from floeplan.metadata.avro.decoder import DECODER, ColumnReader, Decoder, RawColumn
from floeplan.metadata.avro.program import Fields, Program, compile_program
from floeplan.metadata.files import MAX_WORKERS, read_files
from floeplan.metadata.manifests.assemble import Origin, assemble
from floeplan.metadata.manifests.bounds import lengths
from floeplan.metadata.manifests.completeness import check_manifests
from floeplan.metadata.manifests.entries import (
    REQUIRED,
    STAT_MAPS,
    EntriesTable,
    EntryColumns,
    Status,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.partition.union import UnionPartitionType
from floeplan.vectors import Ints

_EVERYTHING = EntryColumns()
_LEAST_BYTES = 16
"""The least compressed size expected of an entry."""
_MOST_EXPECTED = 4_000_000
"""The most entries to allocate memory for in advance: the counts of a manifest list may be wrong."""


def read_entries(
    manifests: ManifestListTable,
    partition: UnionPartitionType,
    columns: EntryColumns = _EVERYTHING,
    *,
    rows: Ints | None = None,
    io: FileIO | None = None,
    max_workers: int = MAX_WORKERS,
    decoder: type[Decoder] = DECODER,
    live: bool = False,
) -> EntriesTable:
    """Read the entries of manifests.

    Args:
        manifests: The manifest list; ``manifest`` in the result counts its rows.
        partition: The partition fields of the table's specs.
        columns: The columns to read.
        rows: Rows of the manifest list to read, in this order; all when not given.
        io: Where the manifests are; local files need none.
        max_workers: Files fetched in parallel from a remote store.
        decoder: The decoder to use.
        live: Leave out DELETED entries; ``ordinal`` then counts the others only.
    """
    chosen = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
    if manifests.has_key_metadata[chosen].any():
        path = manifests.path[int(chosen[np.argmax(manifests.has_key_metadata[chosen])])].as_py()
        raise UnsupportedError(f"{path} is encrypted, which Floeplan does not read", context={"file": path})
    # Allocate for the files that the list counts, as far as manifests of that length can hold them.
    most = manifests.length[chosen] // _LEAST_BYTES
    counted = np.maximum(manifests.added_files[chosen], 0) + np.maximum(manifests.existing_files[chosen], 0)
    expected = max(0, min(int(np.minimum(counted, most).sum()), _MOST_EXPECTED))
    reader = ManifestReader(partition, columns, decoder, live, expected)
    paths = manifests.paths(chosen)
    spec_ids = manifests.spec_id[chosen].tolist()
    for data, path, spec_id in zip(read_files(paths, io, max_workers), paths, spec_ids, strict=True):
        reader.read(data, path, spec_id)
    return reader.finish(manifests, chosen)


class ManifestReader:
    """Collects the entries of manifests of any spec and format version."""

    def __init__(
        self,
        partition: UnionPartitionType,
        columns: EntryColumns,
        decoder: type[Decoder],
        live: bool = False,
        expected: int = 0,
    ) -> None:
        self._avro = AvroReader()
        self._kind = decoder
        self._reader = ColumnReader(decoder, ("status", Status.DELETED) if live else None, expected)
        self._partition = partition
        self._columns = columns
        self._live = live
        self._programs: dict[tuple[int, int], tuple[Header, Program]] = {}
        self._sizes: list[int] = []
        self._counts: list[int] = []

    def read(self, data: bytes, path: str, spec_id: int) -> None:
        """Append the entries of one manifest."""
        header = self._avro.header(data, path)
        program = self._program(header, data, spec_id, path)
        before = self._reader.records
        for block in self._avro.blocks(data, header, path):
            self._reader.read(program, block, path)
        self._sizes.append(len(data))
        self._counts.append(self._reader.records - before)

    def _program(self, header: Header, data: bytes, spec_id: int, path: str) -> Program:
        """The decode program of a manifest, compiled once per header and spec."""
        known = self._programs.get((id(header), spec_id))
        if known is not None:
            return known[1]
        if spec_id not in self._partition.specs:
            specs = ", ".join(map(str, sorted(self._partition.specs)))
            raise corrupt(path, 0, f"it belongs to partition spec {spec_id}, the table has only {specs}")
        names = {
            field.field_id: partition_column(field.id) for field in self._partition.fields if spec_id in field.positions
        }
        want = self._columns.want(names)
        trial = want if self._columns.partition else replace(self._columns, partition=True).want(names)
        schema, certain = _written_schema(header.schema, trial, self._avro.blocks(data, header, path), self._kind)
        try:
            program = compile_program(schema, want)
        except CorruptMetadataError as error:
            raise corrupt(path, 0, error.message) from error
        expected = REQUIRED | (set(names.values()) if self._columns.partition else set())
        expected |= {f"{name}.{part}" for name in program.found.intersection(STAT_MAPS) for part in ("key", "value")}
        missing = expected - program.found
        if missing:
            raise corrupt(path, 0, f"its schema lacks {', '.join(sorted(missing))}")
        if certain:
            self._programs[id(header), spec_id] = (header, program)
        return program

    def finish(self, manifests: ManifestListTable, rows: Ints) -> EntriesTable:
        """The entries read so far, which must be those of these rows of the manifest list."""
        raw = self._reader.finish()
        sizes, counts = (np.array(found, dtype=np.int64) for found in (self._sizes, self._counts))
        check_manifests(manifests, rows, sizes, counts, raw, live=self._live)
        return assemble(raw, Origin.of(manifests, rows, counts), self._partition, self._columns)


def _written_schema(schema: str, want: Fields, blocks: Iterable[Block], decoder: type[Decoder]) -> tuple[str, bool]:
    """The schema that the blocks really follow, and whether there were values to tell it by.

    Iceberg Java writes a length before a partition value of type ``fixed`` although the schema in the file says fixed;
    other writers follow the schema. A manifest in which every such value has its length before it was written the
    first way, any other the second. What fits neither is refused by the decoder.
    """
    with_lengths = _with_lengths(schema)
    if with_lengths == schema:
        return schema, True
    reader = ColumnReader(decoder)
    try:
        program = compile_program(with_lengths, want)
        for block in blocks:
            reader.read(program, block, "")
    except CorruptMetadataError:
        return schema, True
    columns = reader.finish().values()
    sized = [(column, size) for column in columns if (size := _size(column)) is not None]
    if not all((~column.valid | (lengths(column.to_arrow()) == size)).all() for column, size in sized):
        return schema, True
    return with_lengths, any(column.valid.any() for column, _ in sized)


def _size(column: RawColumn) -> int | None:
    """The length that the values must have in a column whose type ``_with_lengths`` replaced."""
    match column.avro_type:
        case {"type": "bytes", "size": int(size)}:
            return size
    return None


def _with_lengths(schema: str) -> str:
    """The schema with ``bytes`` in place of ``fixed`` types without a logical type."""
    if '"fixed"' not in schema:
        return schema
    try:
        parsed = json.loads(schema)
        changed = _replaced(parsed, {})
    except (ValueError, RecursionError, KeyError, TypeError):
        return schema
    return schema if changed == parsed else json.dumps(changed)


def _replaced(avro: Any, sizes: dict[str, int]) -> Any:
    """Replace one type; ``sizes`` has the fixed types defined so far, to which later fields may refer by name."""
    match avro:
        case list():
            return [_replaced(branch, sizes) for branch in avro]
        case str():
            return {"type": "bytes", "size": sizes[avro]} if avro in sizes else avro
        case {"type": "fixed", "name": name, "size": size} if "logicalType" not in avro:
            sizes[name] = size
            return {"type": "bytes", "size": size}
        case {"type": "record"}:
            return avro | {"fields": [item | {"type": _replaced(item["type"], sizes)} for item in avro["fields"]]}
        case {"type": "array"}:
            return avro | {"items": _replaced(avro["items"], sizes)}
        case {"type": dict() | list()}:
            return avro | {"type": _replaced(avro["type"], sizes)}
    return avro
