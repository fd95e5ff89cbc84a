"""Setting and removing table properties.

Rule: the properties are set on the newest table; what other writers set meanwhile stays. Fail-safe: names that Iceberg
reserves are refused, because no table stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID, RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from floeplan.errors import InvalidOptionError
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements

_RESERVED = {
    "format-version": "use upgrade-format",
    "uuid": "it never changes",
    "snapshot-count": "it is computed",
    "current-snapshot-id": "use rollback",
    "current-snapshot-summary": "it is computed",
    "current-snapshot-timestamp-ms": "it is computed",
    "current-schema": "it is part of the metadata",
    "default-partition-spec": "use ALTER TABLE … PARTITION FIELD",
    "default-sort-order": "it is part of the metadata",
}
"""Property names that Iceberg reserves, and what to do instead."""


def set_properties(
    table: Table, properties: Mapping[str, str], remove: Iterable[str] = (), *, options: CommitOptions | None = None
) -> Table:
    """Set and remove properties; returns the table as committed.

    Raises:
        InvalidOptionError: A name is empty, reserved, or both set and removed.
    """
    removed = tuple(dict.fromkeys(remove))
    check_properties(properties, removed)
    return CatalogCommit(table, _PropertiesUpdate(dict(properties), removed), options or CommitOptions()).run()


def check_properties(properties: Mapping[str, str], remove: Iterable[str] = ()) -> None:
    """Refuse names that cannot be set or removed."""
    for name in (*properties, *remove):
        if not name.strip():
            raise InvalidOptionError("a property has no name; write name=value", context={"property": name})
        if name in _RESERVED:
            message = f"the property {name!r} is reserved: {_RESERVED[name]}"
            raise InvalidOptionError(message, context={"property": name})
    for name in remove:
        if name in properties:
            raise InvalidOptionError(f"{name!r} is both set and removed", context={"property": name})


@dataclass(frozen=True, slots=True)
class _PropertiesUpdate:
    properties: dict[str, str]
    remove: tuple[str, ...]

    def build(self, table: Table) -> UpdatesAndRequirements:
        updates: list[TableUpdate] = []
        if self.properties:
            updates.append(SetPropertiesUpdate(updates=self.properties))
        if present := [name for name in self.remove if name in table.metadata.properties]:
            updates.append(RemovePropertiesUpdate(removals=present))
        return tuple(updates), (AssertTableUUID(uuid=table.metadata.table_uuid),)

    def is_committed(self, metadata: TableMetadata) -> bool:
        found = metadata.properties
        return self.properties.items() <= found.items() and not any(name in found for name in self.remove)
