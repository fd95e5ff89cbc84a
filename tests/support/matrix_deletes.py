"""The ways rows are deleted in the peer matrix, each over the files of every spec a table has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.matrix import Builder

MERGE_ON_READ = {
    f"write.{command}.{key}": value
    for command in ("delete", "update", "merge")
    for key, value in {"mode": "merge-on-read", "distribution-mode": "none"}.items()
}
LAST_BATCH = 9


def rewritten(table: Builder) -> None:
    """Copy-on-write: one file is replaced, so the metadata holds DELETED and EXISTING entries."""
    table.sql("DELETE FROM {t} WHERE pk = 1003")


def by_position(table: Builder, granularity: str) -> None:
    """Two deletes and an update over files of every spec, then rows that none of them concerns."""
    table.set(MERGE_ON_READ | {"write.delete.granularity": granularity})
    table.sql("DELETE FROM {t} WHERE pk % 5 = 1")
    table.sql("UPDATE {t} SET flag = NOT flag WHERE pk % 7 = 2")
    table.sql("DELETE FROM {t} WHERE pk % 1000 IN (13, 18)")
    table.write(LAST_BATCH)


def by_position_in_file(table: Builder) -> None:
    by_position(table, "file")


def by_position_in_partition(table: Builder) -> None:
    by_position(table, "partition")


def upgraded_to_vectors(table: Builder) -> None:
    """Position deletes from format 2, then deletion vectors over some of the same files and some others."""
    by_position(table, "partition")
    table.set({"format-version": "3"})
    table.sql("DELETE FROM {t} WHERE pk % 5 = 3 AND pk < 3000")
    table.sql("DELETE FROM {t} WHERE pk = 9019")


def by_equality(table: Builder) -> None:
    """Global deletes, and deletes of one partition in every partitioned spec; then deleted keys are inserted again.

    Keys: one column, two columns, null keys, keys no row has. A delete never touches rows written after it.
    """
    table.delete_equal([{"id": -4}, {"id": 3}, {"id": None}])
    table.delete_equal([{"region": "eu", "id": 1}, {"region": None, "id": 11}, {"region": "nowhere", "id": 1}])
    for file, keys in table.keys_of_one_file_per_spec().items():
        table.delete_equal([{"pk": pk} for pk in (*keys, 1, 2004)], beside=file)
    table.write(LAST_BATCH)
    table.write(0)
    table.delete_equal([{"pk": 9002}, {"pk": 4}])
