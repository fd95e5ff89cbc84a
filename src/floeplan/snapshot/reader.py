"""``SnapshotReader``: the one module that loads the metadata of a snapshot.

Scans, rewrites, DML, commits that move entries, maintenance, audit and the explorer read a snapshot's manifest list,
manifest entries and delete files through it, so that all of them see the same files and apply the same checks.

Rule: DELETED entries are never part of a snapshot, and manifests without live files are not opened.
Fail-safe: a damaged or truncated manifest is an error (``metadata.manifests.reader``). A manifest list that may
be truncated is reported by ``truncation``; callers that delete files or write rows call ``check_complete``, because
what they do with a truncated list cannot be undone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from floeplan.errors import BadInputError, UnknownColumnError, UnknownSnapshotError
from floeplan.metadata.cache import EntriesCache
from floeplan.metadata.files import MAX_WORKERS, read_file, read_files
from floeplan.metadata.held import EntriesSource, HeldEntries
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DELETES, ManifestListTable, parse_manifest_list
from floeplan.metadata.manifests.reader import TruncatedList, find_truncation, read_entries
from floeplan.metadata.manifests.stats import manifest_stats
from floeplan.partition.union import UnionField, UnionPartitionType
from floeplan.schemas import fields_by_id
from floeplan.snapshot.passes import DELETE_COLUMNS, RememberAnswer, ScanDeletes
from floeplan.times import time_text
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    from floeplan.metadata.root import RootManifest
    from floeplan.metadata.v4.tree import MetadataTree
    from floeplan.predicate.ir import Column
    from floeplan.predicate.stats import StatsTable

_FILES_OF_A_PART = 65_536
_KEPT_BYTES = 64 * 1024
"""The largest manifest list that stays in memory when it is decoded."""
_decoded = lru_cache(maxsize=4)(parse_manifest_list)
"""Manifest lists by their whole content: many queries of one snapshot read the same one. They are never modified."""


class ScanTarget(NamedTuple):
    """A table, the snapshot to read (``None`` for a table without data) and the schema to read it with."""

    table: Table
    snapshot: Snapshot | None
    schema: Schema

    @property
    def name(self) -> str:
        """The name of the table in its catalog, or the location of its metadata file."""
        return self.table.metadata_location if isinstance(self.table, StaticTable) else ".".join(self.table.name())

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata."""
        return self.table.metadata


def resolve_target(
    table: Table, *, snapshot_id: int | None = None, ref: str | None = None, timestamp_ms: int | None = None
) -> ScanTarget:
    """Find the snapshot by id, by branch or tag, by time, or the current one, and the schema to read it with.

    As in Iceberg: a snapshot id, a timestamp or a tag is read with the schema of that snapshot; a branch, and the table
    itself, with the current schema. At most one of them may be given.
    """
    if sum(choice is not None for choice in (snapshot_id, ref, timestamp_ms)) > 1:
        raise BadInputError("snapshot id, ref and timestamp exclude each other: give one of them")
    is_branch = False
    if timestamp_ms is not None:
        past = [entry for entry in table.metadata.snapshot_log if entry.timestamp_ms <= timestamp_ms]
        if not past:
            log = table.metadata.snapshot_log
            first = f"; its first is of {time_text(log[0].timestamp_ms)}" if log else ""
            raise UnknownSnapshotError(
                f"table has no snapshot as old as {time_text(timestamp_ms)}{first}",
                context={"timestamp_ms": timestamp_ms},
            )
        snapshot_id = past[-1].snapshot_id
    elif snapshot_id is None:
        if ref is None or ref == MAIN_BRANCH:
            return ScanTarget(table, table.current_snapshot(), table.schema())
        named = table.metadata.refs.get(ref)
        if named is None:
            known = ", ".join(sorted(table.metadata.refs)) or "none"
            raise UnknownSnapshotError(f"table has no branch or tag {ref}; it has: {known}", context={"ref": ref})
        snapshot_id, is_branch = named.snapshot_id, named.snapshot_ref_type is SnapshotRefType.BRANCH
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        known = ", ".join(str(s.snapshot_id) for s in table.metadata.snapshots[-5:]) or "none"
        raise UnknownSnapshotError(
            f"table has no snapshot {snapshot_id}; its latest are: {known}", context={"snapshot_id": snapshot_id}
        )
    # Format 1 need not record the schema of a snapshot.
    schemas = {} if is_branch else {schema.schema_id: schema for schema in table.metadata.schemas}
    schema = table.schema() if snapshot.schema_id is None else schemas.get(snapshot.schema_id, table.schema())
    return ScanTarget(table, snapshot, schema)


def branch_head(metadata: TableMetadata, branch: str) -> int | None:
    """The id of the newest snapshot of a branch; ``None`` when there is no such branch yet.

    Raises:
        BadInputError: The name is a tag's.
    """
    ref = metadata.refs.get(branch)
    if ref is None:
        return metadata.current_snapshot_id if branch == MAIN_BRANCH else None
    if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise BadInputError(
            f"{branch} is a tag, and tags do not move: write to a branch, or create one from it",
            context={"ref": branch},
        )
    return ref.snapshot_id


def select(schema: Schema, columns: Sequence[str], case_sensitive: bool = True) -> Schema:
    """Project a schema onto the named columns, nested ones by their path, in this order."""
    for name in columns:
        try:
            schema.find_field(name, case_sensitive)
        except ValueError as error:
            known = [field.name for field in schema.fields]
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the table has {', '.join(known)}"
            raise UnknownColumnError(f"no column {name!r}; {hint}", context={"column": name}) from error
    chosen = schema.select(*columns, case_sensitive=case_sensitive)
    ids = [schema.find_field(name, case_sensitive).field_id for name in columns]

    def first_named(field: NestedField) -> int:
        """The position of the first name that is this top-level field or one nested in it."""
        inside = fields_by_id(Schema(field))
        return next(position for position, field_id in enumerate(ids) if field_id in inside)

    # PyIceberg's select keeps the order of the schema, not of the names.
    return Schema(*sorted(chosen.fields, key=first_named), schema_id=schema.schema_id)


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the metadata of one snapshot.

    Attributes:
        metadata: The table's metadata.
        snapshot: The snapshot; ``None`` for a table or branch without one, which has no files.
        manifests: Its manifest list.
        union: The union of the partition fields of all specs.
        io: Where the files are; local files need none.
        cache: A cache of decoded manifests; ``None`` decodes them every time.
        root: The root manifest or metadata tree to read instead of the manifest list and manifests.
        max_workers: Files fetched in parallel from a remote store.
    """

    metadata: TableMetadata
    snapshot: Snapshot | None
    manifests: ManifestListTable
    union: UnionPartitionType
    io: FileIO | None
    cache: EntriesSource | None = None
    root: RootManifest | MetadataTree | None = None
    max_workers: int = MAX_WORKERS

    @classmethod
    def open(
        cls,
        table: Table,
        snapshot: Snapshot | None,
        *,
        cache: bool = False,
        root: str | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> SnapshotReader:
        """Read the manifest list of a snapshot, or the root manifest at ``root``."""
        opened = None
        if root is not None:
            from floeplan.metadata.root import open_root  # imports pyarrow.parquet, which other plans do not need

            opened = open_root(root, table.metadata, table.io)
            opened.check(table.metadata, None if snapshot is None else snapshot.snapshot_id)
            manifests = opened.manifests
        elif snapshot is None:
            manifests = ManifestListTable.empty()
        else:
            data = read_file(snapshot.manifest_list, table.io)
            parse = _decoded if len(data) <= _KEPT_BYTES else parse_manifest_list
            manifests = parse(data, snapshot.manifest_list, table_location=table.metadata.location)
        union = UnionPartitionType.of_table(table.metadata)
        entries_cache = EntriesCache() if cache else None
        return cls(table.metadata, snapshot, manifests, union, table.io, entries_cache, opened, max_workers)

    @classmethod
    def of_branch(cls, table: Table, branch: str = MAIN_BRANCH) -> SnapshotReader:
        """Open the head of a branch of a loaded table; a branch that does not exist has no files."""
        snapshot_id = branch_head(table.metadata, branch)
        return cls.open(table, None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id))

    def manifest_rows(self, content: int, keep: Mask | None = None) -> Ints:
        """The rows of the manifest list with data or delete manifests that have live files and that ``keep`` admits."""
        chosen = self.manifests.is_live & (self.manifests.content == content)
        return np.flatnonzero(chosen if keep is None else chosen & keep)

    def manifest_summaries(self, fields: Sequence[UnionField]) -> StatsTable:
        """The partition summaries of each manifest, by union field id."""
        if isinstance(self.cache, HeldEntries):
            return self.cache.manifest_summaries(self.manifests, fields)
        return manifest_stats(self.manifests, fields)

    def manifest_bounds(self, columns: Mapping[int, Column]) -> StatsTable | None:
        """The statistics of columns for each manifest, if a metadata tree or ``HeldEntries`` has them."""
        if isinstance(self.cache, HeldEntries):
            return self.cache.manifest_bounds(
                self.manifests, self.union, columns, io=self.io, max_workers=self.max_workers
            )
        leaf_stats = getattr(self.root, "leaf_stats", None)
        return None if leaf_stats is None else leaf_stats(columns)

    @property
    def remember(self) -> RememberAnswer | None:
        """Keeps answers to leaves for each manifest, if the cache is a ``HeldEntries``."""
        return self.cache.remember if isinstance(self.cache, HeldEntries) else None

    def entries(self, rows: Ints | None, columns: EntryColumns, *, live: bool = True) -> EntriesTable:
        """Read the manifest entries of these rows of the manifest list, in that order.

        Args:
            rows: Rows of ``manifests``; ``None`` reads all of them.
            columns: The columns to read.
            live: Leave out DELETED entries.
        """
        # The cache has live entries only.
        source = self.root if self.root is not None else self.cache if live else None
        read = partial(read_entries, live=live) if source is None else source.read_entries
        entries = read(self.manifests, self.union, columns, rows=rows, io=self.io, max_workers=self.max_workers)
        return entries.live() if live and self.root is not None else entries

    def entries_by_parts(self, rows: Ints, columns: EntryColumns) -> Iterator[EntriesTable]:
        """``entries`` of a few manifests at a time, for a pass over all of them that keeps little of each."""
        files = np.maximum(self.manifests.added_files[rows], 0) + np.maximum(self.manifests.existing_files[rows], 0)
        part = np.cumsum(files) // _FILES_OF_A_PART
        for some in np.split(rows, np.flatnonzero(np.diff(part)) + 1):
            yield self.entries(some, columns)

    def deletes(self, keep: Mask | None = None) -> ScanDeletes:
        """Read the live delete files in the delete manifests that ``keep`` admits, all of them by default."""
        rows = self.manifest_rows(DELETES, keep)
        if not len(rows):
            return ScanDeletes.none(self.union)
        found = self.entries(rows, DELETE_COLUMNS)
        if not len(found):  # leaves of metadata trees may have deletion vectors, and nearly always have none
            return ScanDeletes.none(self.union)
        deletes = ScanDeletes.of(found, self.union)
        if not deletes.key_columns:
            return deletes
        # Only the entries tell which columns are equality keys, so the bounds of these take a second read.
        columns = EntryColumns(DELETE_COLUMNS.names, stats=DELETE_COLUMNS.stats | deletes.key_columns)
        return ScanDeletes(self.entries(rows, columns), deletes.kinds, deletes.equality_ids)

    def truncation(self) -> TruncatedList | None:
        """What the manifest list lacks according to the snapshot summary."""
        return None if self.snapshot is None else find_truncation(self.snapshot, self.manifests)

    def check_complete(self, risk: str) -> None:
        """Refuse a manifest list that may be truncated; ``risk`` names what continuing could do.

        Raises:
            CorruptMetadataError: The list has fewer files than the snapshot summary counts.
        """
        truncated = self.truncation()
        if truncated is not None:
            raise truncated.error(risk)


def read_manifest_lists(
    snapshots: Iterable[Snapshot], io: FileIO | None, *, table_location: str, risk: str | None = None
) -> list[ManifestListTable]:
    """Read the manifest lists of several snapshots in parallel, one per snapshot.

    Args:
        snapshots: The snapshots.
        io: Where the lists are; local files need none.
        table_location: The location of their table, for relative paths.
        risk: Refuse lists that may be truncated; names what continuing could do.

    Raises:
        CorruptMetadataError: A list has fewer files than its snapshot summary counts, and ``risk`` is given.
    """
    chosen = list(snapshots)
    lists = []
    for snapshot, data in zip(chosen, read_files([s.manifest_list for s in chosen], io), strict=True):
        lists.append(parse_manifest_list(data, snapshot.manifest_list, table_location=table_location))
        truncated = None if risk is None else find_truncation(snapshot, lists[-1])
        if truncated is not None and risk is not None:
            raise truncated.error(risk)
    return lists
