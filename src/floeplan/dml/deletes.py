"""Deleted positions gathered file by file and written as delete files at the end of a task.

Format 3: one deletion vector for each data file, holding what earlier deletes removed too; the deletes it replaces
leave the table when they serve this file alone. Format 2 at file granularity does the same with position delete files;
at partition granularity earlier ones stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.entries import EntriesTable
from floeplan.scan.file_rows import FileRows
from floeplan.scan.model import FileScan
from floeplan.transaction.change import DeleteFileId
from floeplan.write.position_deletes import merge_positions, write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget

_OWN = (DeleteKind.VECTOR, DeleteKind.POSITION_FILE)


def own_deletes(file: FileScan) -> list[DeleteFileId]:
    """The delete files that serve this data file alone."""
    return [DeleteFileId(delete.path, delete.content_offset) for delete in file.deletes if delete.kind in _OWN]


class NewDeletes:
    """The deletes of one task."""

    def __init__(self, target: WriteTarget, files: FileRows) -> None:
        self._target, self._files = target, files
        self._vectors = target.format_version >= 3
        self._entries: list[EntriesTable] = []
        self._positions: list[BitMap64] = []
        self.replaced: list[DeleteFileId] = []

    def add(self, file: FileScan, entry: EntriesTable, positions: npt.NDArray[np.int64]) -> None:
        """Delete rows of a data file; its entry says which spec and partition that is in."""
        found = merge_positions(positions)
        if self._vectors:
            kinds: tuple[DeleteKind, ...] = (*_OWN, DeleteKind.POSITION_PARTITION)
        else:
            kinds = (DeleteKind.POSITION_FILE,) if self._target.options.delete_per_file else ()
        for delete in file.deletes:
            if delete.kind in kinds:
                found |= merge_positions(self._files.positions(delete, file.path))
        if kinds:
            self.replaced += own_deletes(file)
        self._entries.append(entry)
        self._positions.append(found)

    def write(self, token: str) -> EntriesTable | None:
        """Write the delete files; their entries."""
        if not self._entries:
            return None
        data = EntriesTable(
            pa.concat_tables([entry.table for entry in self._entries]).combine_chunks(),
            self._entries[0].partition_types,
        )
        write = write_deletion_vectors if self._vectors else write_position_deletes
        return write(self._target, data, self._positions, file_name_token=token)
