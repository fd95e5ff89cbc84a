"""What carrying out one group takes, however it is done."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.sorting import SortOrder

from floeplan.rewrite.compaction_map import MapBuilder
from floeplan.rewrite.work import GroupWork
from floeplan.scan.file_rows import FileRows
from floeplan.write.target import WriteTarget


@dataclass(frozen=True, slots=True)
class GroupRun:
    """One attempt at one group.

    Attributes:
        work: The group.
        target: The table as writers see it, with the spec and the file size of this group.
        strategy: How files are made.
        order: What rows are sorted or clustered by; unsorted when they are not.
        token: The beginning of file names, which no other attempt has.
        files: Opens files of the table.
        moved: Notes where rows go.
        memory: Bytes that putting rows in order may take.
        threads: How many cores it may keep busy.
    """

    work: GroupWork
    target: WriteTarget
    strategy: str
    order: SortOrder
    token: str
    files: FileRows
    moved: MapBuilder
    memory: int
    threads: int = 1
