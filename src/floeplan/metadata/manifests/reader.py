"""Reads the entries of many manifests into one ``EntriesTable``; detects truncated manifests and manifest lists.

Rule: Avro blocks, and Parquet manifests (format 4), are decoded straight into typed columns; a manifest costs a few
Python calls, an entry none.
Fail-safe: a manifest that is damaged, possibly truncated, or lacks a required column is an error that names it; a plan
made without it would lose rows.

Truncation: an Avro file cut between two blocks reads as a valid shorter file. What proves a file complete:

=============  =======================================================================================
manifest       its length in the manifest list equals the file's
manifest       other length, but the live files and rows counted in the manifest list are there
manifest list  the number of manifests in its header, which Floeplan writes; fewer manifests: truncated
manifest list  total-data-files and total-delete-files of the snapshot; fewer files: possibly truncated
=============  =======================================================================================

A manifest that neither proves complete is an error. Both proofs are needed because some writers get one wrong:
Iceberg's rewrite_table_path keeps the lengths of the original files, and some writers count one file per manifest.
Snapshot totals are a running sum that one wrong commit spoils for good, so scans only warn about them; operations that
delete files or write rows refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import UnknownType

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.metadata.avro.decoder import DECODER, AvroReader, Block, ColumnReader, Decoder, Header, RawColumn, corrupt
from floeplan.metadata.avro.program import Fields, Program, compile_program
from floeplan.metadata.files import MAX_WORKERS, read_files
from floeplan.metadata.manifests.assemble import DecodedManifests, assemble
from floeplan.metadata.manifests.entries import (
    REQUIRED,
    STAT_MAPS,
    EntriesTable,
    EntryColumns,
    Origin,
    Status,
    partition_column,
)
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.parquet_reader import MAGIC as PARQUET_MAGIC
from floeplan.metadata.manifests.parquet_reader import ParquetManifests, concat_decoded
from floeplan.metadata.manifests.values import lengths
from floeplan.partition.union import UnionPartitionType
from floeplan.text import counted, parse_count
from floeplan.vectors import Ints, Mask

_TOTALS = (("total-data-files", "data file"), ("total-delete-files", "delete file"))
_EVERYTHING = EntryColumns()
_LEAST_BYTES = 16
"""The smallest compressed size expected of an entry."""
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
        live: Leave out DELETED entries.
    """
    chosen = np.arange(len(manifests)) if rows is None else np.asarray(rows, dtype=np.int64)
    if manifests.has_key_metadata[chosen].any():
        path = manifests.path[int(chosen[np.argmax(manifests.has_key_metadata[chosen])])].as_py()
        raise UnsupportedError(f"{path} is encrypted, which Floeplan does not read", context={"file": path})
    # Allocate for the files that the list counts, as far as manifests of that length can hold them.
    most = manifests.length[chosen] // _LEAST_BYTES
    counted = np.maximum(manifests.added_files[chosen], 0) + np.maximum(manifests.existing_files[chosen], 0)
    expected = max(0, min(int(np.minimum(counted, most).sum()), _MOST_EXPECTED))
    wanted = _Wanted(partition, columns)
    drop = ("status", int(Status.DELETED)) if live else None
    avro = _AvroManifests(wanted, ColumnReader(decoder, drop, expected), decoder)
    parquet: ParquetManifests | None = None  # only tables of format 4 have Parquet manifests
    paths, spec_ids, sizes = manifests.paths(chosen), manifests.spec_id[chosen].tolist(), []
    files = zip(read_files(paths, io, max_workers), paths, spec_ids, strict=True)
    for position, (data, path, spec_id) in enumerate(files):
        sizes.append(len(data))
        if data.startswith(PARQUET_MAGIC):
            parquet = parquet or ParquetManifests(manifests.table_location, Status.DELETED if live else None)
            found = parquet.read(data, path, position, spec_id, wanted.fields(spec_id, path))
            wanted.check(found, spec_id, path, parquet=True)
        else:
            avro.read(data, path, position, spec_id)
    decoded = avro.finish()
    if parquet is not None:
        decoded = concat_decoded([decoded, *parquet.finish()])
    # Avro and Parquet manifests, and Parquet manifests of different schemas, are decoded apart.
    order = np.array(decoded.positions, dtype=np.int64)
    rows, counts = chosen[order], np.array(decoded.counts, dtype=np.int64)
    _check_manifests(manifests, rows, np.array(sizes, dtype=np.int64)[order], counts, decoded.columns, live=live)
    entries = assemble(decoded.columns, Origin.of(manifests, rows, counts), partition, columns)
    if (np.diff(order) > 0).all():
        return entries
    return entries.take(np.argsort(np.repeat(order, counts), kind="stable"))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The requested columns, and what a manifest of each spec must have."""

    partition: UnionPartitionType
    columns: EntryColumns
    _fields: dict[int, Fields] = field(default_factory=dict)

    def names(self, spec_id: int, path: str, *, typed: bool = False) -> dict[int, str]:
        """The column of each partition field of a spec by field id; with ``typed`` only those of a known type."""
        if spec_id not in self.partition.specs:
            specs = ", ".join(map(str, sorted(self.partition.specs)))
            raise corrupt(path, 0, f"it belongs to partition spec {spec_id}, the table has only {specs}")
        fields = [field for field in self.partition.fields if spec_id in field.positions]
        if typed:
            fields = [field for field in fields if not isinstance(field.bound.column.type, UnknownType)]
        return {field.field_id: partition_column(field.id) for field in fields}

    def fields(self, spec_id: int, path: str) -> Fields:
        """What to decode of a manifest."""
        if spec_id not in self._fields:
            self._fields[spec_id] = self.columns.want(self.names(spec_id, path))
        return self._fields[spec_id]

    def check(self, found: Set[str], spec_id: int, path: str, *, parquet: bool = False) -> None:
        """Refuse a manifest that lacks a required column."""
        # Iceberg Java writes no Parquet column for a partition field whose source column was dropped.
        names = self.names(spec_id, path, typed=parquet)
        expected = REQUIRED | (set(names.values()) if self.columns.partition else set())
        expected |= {f"{name}.{part}" for name in found & set(STAT_MAPS) for part in ("key", "value")}
        missing = expected - found
        if missing:
            raise corrupt(path, 0, f"its schema lacks {', '.join(sorted(missing))}")


@dataclass(slots=True)
class _AvroManifests:
    """Decodes Avro manifests into one set of columns."""

    wanted: _Wanted
    reader: ColumnReader
    decoder: type[Decoder]
    avro: AvroReader = field(default_factory=AvroReader)
    programs: dict[tuple[int, int], tuple[Header, Program]] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def read(self, data: bytes, path: str, position: int, spec_id: int) -> None:
        """Decode a manifest."""
        # One program per header and spec. The header is kept with it: its id must not be given to another one.
        header = self.avro.header(data, path)
        known = self.programs.get((id(header), spec_id))
        if known is None:
            program, certain = self._compile(header.schema, self.avro.blocks(data, header, path), path, spec_id)
            if certain:
                self.programs[id(header), spec_id] = (header, program)
        else:
            program = known[1]
        before = self.reader.records
        for block in self.avro.blocks(data, header, path):
            self.reader.read(program, block, path)
        self.positions.append(position)
        self.counts.append(self.reader.records - before)

    def finish(self) -> DecodedManifests:
        """The columns of all of them."""
        return DecodedManifests(self.reader.finish(), self.positions, self.counts)

    def _compile(self, written: str, blocks: Iterable[Block], path: str, spec_id: int) -> tuple[Program, bool]:
        """The decode program of a manifest, and whether it fits every manifest with the same schema and spec."""
        want, columns = self.wanted.fields(spec_id, path), self.wanted.columns
        names = self.wanted.names(spec_id, path)
        trial = want if columns.partition else replace(columns, partition=True).want(names)
        schema, certain = _written_schema(written, trial, blocks, self.decoder)
        try:
            program = compile_program(schema, want)
        except CorruptMetadataError as error:
            raise corrupt(path, 0, error.message) from error
        self.wanted.check(program.found, spec_id, path)
        return program, certain


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
    has_values = False
    for column in reader.finish().values():
        match column.stored_type:
            case {"type": "bytes", "size": int(size)}:  # a type that ``_with_lengths`` replaced
                if not (~column.valid | (lengths(column.to_arrow()) == size)).all():
                    return schema, True
                has_values |= bool(column.valid.any())
    return with_lengths, has_values


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


def _check_manifests(
    manifests: ManifestListTable, rows: Ints, sizes: Ints, counts: Ints, raw: Mapping[str, RawColumn], *, live: bool
) -> None:
    """Refuse manifests that may be truncated.

    Args:
        manifests: The manifest list.
        rows: The rows of the manifests that were read.
        sizes: Their lengths in bytes.
        counts: The number of entries read from each.
        raw: The columns of these entries, one manifest after the other.
        live: Whether DELETED entries were left out.

    Raises:
        CorruptMetadataError: Neither the length nor the counts in the list prove a manifest complete.
    """
    recorded = manifests.length[rows]
    differs = sizes != recorded
    if not differs.any():
        return

    ends = np.cumsum(counts)

    def per_manifest(values: Ints | Mask) -> Ints:
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.asarray(running[ends] - running[ends - counts])

    def listed(*names: str) -> Ints:
        """The sum of these counts of the list; -1 where one was not written."""
        parts = np.stack([getattr(manifests, name)[rows] for name in names])
        return np.where((parts < 0).any(axis=0), -1, parts.sum(axis=0))

    files = records = np.zeros_like(counts)
    if "status" in raw and "record_count" in raw:
        alive = raw["status"].values != Status.DELETED
        files, records = per_manifest(alive), per_manifest(np.where(alive, raw["record_count"].values, 0))
    complete = files == listed("added_files", "existing_files")
    complete &= records == listed("added_rows", "existing_rows")
    if not live:
        complete &= counts - files == listed("deleted_files")
    # A longer file than recorded is truncated only when files are missing from it.
    missing = files < listed("added_files", "existing_files")
    truncated = differs & np.where(sizes < recorded, ~complete, missing)
    if truncated.any():
        at = int(np.argmax(truncated))
        path = str(manifests.path[int(rows[at])].as_py())
        expected = f"the manifest list records {counted(int(recorded[at]), 'byte')}, and more files or rows"
        raise corrupt(path, int(sizes[at]), f"the file ends here, {expected}")


class TruncatedList(NamedTuple):
    """A manifest list with fewer files than the summary of its snapshot counts: it is probably truncated."""

    manifest_list: str
    noun: str
    listed: int
    total: int

    @property
    def message(self) -> str:
        """The missing files and the possible cause."""
        return (
            f"{self.manifest_list} has {self.listed:,} of the {counted(self.total, self.noun)} that the snapshot "
            "summary counts: the file is truncated, or a writer recorded a wrong total"
        )

    def error(self, risk: str) -> CorruptMetadataError:
        """The error that refuses this list; ``risk`` names what continuing could do."""
        return CorruptMetadataError(
            f"{self.message}; {risk}: restore the manifest list, or pass --trust-lists to go on with it",
            context=self.to_dict(),
        )

    def to_dict(self) -> dict[str, str | int]:
        """For contexts of errors and warnings."""
        return {"file": self.manifest_list, "what": f"{self.noun}s", "listed": self.listed, "total": self.total}


def find_truncation(snapshot: Snapshot, manifests: ManifestListTable) -> TruncatedList | None:
    """Compare the files of a manifest list with the totals of the snapshot summary, where both are written."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    for counts, (name, noun) in zip(manifests.counts, _TOTALS, strict=True):
        total, listed = parse_count(summary.get(name)), counts.files
        if total is not None and listed is not None and listed < total:
            return TruncatedList(snapshot.manifest_list, noun, listed, total)
    return None
