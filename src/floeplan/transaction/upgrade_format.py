"""``upgrade_format``: raise the format version of a table.

Rule: only the metadata changes. Snapshots, manifests and files stay as they are, and what is written from then on has
the new format. Format 4 reads a path without a URI scheme as relative.

Fail-safe: no lower format, because it could not express what the table has. Format 4 is refused where metadata,
properties or manifests have paths without a scheme, which would then name other files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, TableMetadataV3
from pyiceberg.table.update import (
    AssertTableUUID,
    UpgradeFormatVersionUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)

from floeplan.catalog import load_table, refreshed, update_to_commit
from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.format4 import FORMAT, PATH_PROPERTIES, TableMetadataV4, first_relative, metadata_paths
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.snapshot.reader import SnapshotReader
from floeplan.text import counted
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements

_MODELS: dict[int, type[TableMetadataV2] | type[TableMetadataV3]] = {
    2: TableMetadataV2,
    3: TableMetadataV3,
    4: TableMetadataV4,
}


@dataclass(frozen=True, slots=True)
class FormatUpgradeResult:
    """The result of ``upgrade_format``.

    Attributes:
        from_version: The format before.
        to_version: The format after.
        changes: What differs from now on; nothing if the table has the format already.
        snapshot_id: The current snapshot, which stays; none for a table without data.
        dry_run: Whether nothing was committed.
    """

    from_version: int
    to_version: int
    changes: tuple[str, ...]
    snapshot_id: int | None
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "from": self.from_version,
            "to": self.to_version,
            "changes": list(self.changes),
            "snapshot_id": self.snapshot_id,
            "dry_run": self.dry_run,
        }


def upgrade_format(
    table: Table | str,
    to: int,
    *,
    dry_run: bool = False,
    commit: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> FormatUpgradeResult:
    """Raise the format version of a table.

    Args:
        table: The table, or its name.
        to: The format: 2, 3 or 4.
        dry_run: Only report what would change.
        commit: Commit and retry options.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        InvalidOptionError: There is no such format, or the table has a higher one.
        UnsupportedError: The table has something that the format cannot express.
    """
    if to not in _MODELS:
        raise InvalidOptionError(
            f"the format version is {to} but must be one of {', '.join(map(str, _MODELS))}", context={"to": to}
        )
    loaded = load_table(table, catalog)
    if dry_run:
        return _result(loaded, to, dry_run=True)
    pending = CatalogCommit(loaded, _FormatUpdate(to), commit or CommitOptions())  # refuses a read-only table
    result = _result(refreshed(loaded), to)
    if result.changes:
        update_to_commit(loaded, pending.run())
    return result


def _result(table: Table, to: int, *, dry_run: bool = False) -> FormatUpgradeResult:
    metadata = table.metadata
    _check(table, to)
    changes = tuple(_changes(table, to)) if to > metadata.format_version else ()
    return FormatUpgradeResult(metadata.format_version, to, changes, metadata.current_snapshot_id, dry_run)


def _check(table: Table, to: int) -> None:
    metadata = table.metadata
    if to < metadata.format_version:
        raise InvalidOptionError(
            f"the table has format {metadata.format_version}, and no table can be downgraded: format {to} could not "
            "express all of its metadata",
            context={"from": metadata.format_version, "to": to},
        )
    if metadata.format_version < FORMAT <= to:
        relative = next((path for path in map(first_relative, _paths(table)) if path is not None), None)
        if relative is not None:
            raise UnsupportedError(
                f"format {FORMAT} would take {relative!r} for a relative path, because it has no URI scheme; such a "
                "table cannot be upgraded",
                context={"path": relative, "to": to},
            )


def _paths(table: Table) -> Iterator[pa.Array]:
    """The location of a table, and the paths in its metadata, its properties, and the manifests of its branches."""
    metadata = table.metadata
    named = [metadata.properties[name] for name in PATH_PROPERTIES if name in metadata.properties]
    found = [metadata.location, table.metadata_location, *metadata_paths(metadata), *named]
    yield pa.array(found, pa.large_string())
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    for snapshot in (one for one in metadata.snapshots if one.snapshot_id in heads):
        reader = SnapshotReader.open(table, snapshot)
        yield reader.manifests.path
        entries = reader.entries(None, EntryColumns(frozenset({"referenced_data_file"}), partition=False))
        yield entries.path
        yield entries.array("referenced_data_file")


def _changes(table: Table, to: int) -> Iterator[str]:
    """What differs from now on, a line for each."""
    before = table.metadata.format_version
    if before < 2:
        yield "snapshots and files get sequence numbers, and rows can be deleted by delete files"
        yield "partition fields that are dropped leave the spec instead of becoming void"
    if before < 3 <= to:
        yield "rows get ids when the next snapshot is committed"
        yield "new position deletes are deletion vectors; position delete files stay"
    if before < FORMAT <= to:
        manifests = len(SnapshotReader.of_branch(table).manifests)
        yield f"new manifests are Parquet files; {counted(manifests, 'Avro manifest')} of the current snapshot stay"
        yield "paths without a URI scheme are relative to the table location"
    yield f"readers must know format {to}" + (": Iceberg 1.12 or later" if to >= FORMAT else "")


@dataclass(frozen=True, slots=True)
class _FormatUpdate:
    """The pending upgrade; without effect on a table that has the format, or a later one."""

    to: int

    def build(self, table: Table) -> UpdatesAndRequirements:
        _check(table, self.to)
        update = UpgradeTo.model_validate({"format-version": self.to})
        return (update,), (AssertTableUUID(uuid=table.metadata.table_uuid),)

    def is_committed(self, metadata: TableMetadata) -> bool:
        return metadata.format_version >= self.to


class UpgradeTo(UpgradeFormatVersionUpdate):
    """PyIceberg's update, which catalogs that write the metadata file themselves refuse beyond format 2."""


@_apply_table_update.register(UpgradeTo)
def _(update: UpgradeTo, base: TableMetadata, context: _TableMetadataUpdateContext) -> TableMetadata:
    context.add_update(update)
    fields = dict(base) | {"format_version": update.format_version}
    upgraded: TableMetadata = _MODELS[update.format_version].model_construct(**fields)
    return upgraded
