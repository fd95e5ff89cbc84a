"""Stitching one group: the row groups of its files copied as they are, as many files into one as make a good file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

import numpy as np

from floeplan.metadata.files import TableFiles
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.rewrite.pages.stitch import MIN_ROW_GROUP_BYTES, small_row_groups_reason, stitch, stitch_obstacle
from floeplan.rewrite.run.work import GroupRun
from floeplan.write.data_files import data_entry
from floeplan.write.file_entries import FileEntry, added_entries
from floeplan.write.parquet_file import WrittenFile
from floeplan.write.partitioning import FilePartition


def not_stitchable(run: GroupRun) -> str:
    """Why row groups cannot be copied as they are: because of what is asked for, or because of the files.

    Files are opened only when all that is known without that speaks for it.
    """
    work, files = run.work, [one.file for one in run.work.files]
    smallest = 0 if run.strategy.copies_small_row_groups else MIN_ROW_GROUP_BYTES
    if not run.strategy.copies_bytes:
        return f"strategy {run.strategy.name} orders rows"
    if work.partition is None:
        return "it takes the rows to tell their partitions"
    if any(one.first_row_id is not None for one in work.files):
        return "rows take their ids from their place in a file"
    if any(file.file_size > work.most_bytes for file in files):
        return "a file is too large"
    if any(file.deletes for file in files):
        return f"{next(file.path for file in files if file.deletes)} has deletes"
    opened = (run.files.open(file) for file in files)
    return small_row_groups_reason(work.bytes, len(files), smallest) or stitch_obstacle(
        opened, run.target.stored_schema, smallest
    )


class GroupStitcher:
    """Copies the row groups of a group into new files."""

    def __init__(self, run: GroupRun, partition: FilePartition) -> None:
        self.run, self.partition = run, partition

    def write(self, written: ExitStack) -> EntriesTable:
        """The entries of the new files; ``written`` removes them when it is left by an exception."""
        target = self.run.target
        parts = []
        for number, places in enumerate(self._portions()):
            opened = [self.run.files.open(self.run.work.files[place].file) for place in places]
            name = f"{target.file_name(f'{self.run.token}-{number}')}.parquet"
            path = target.new_location(name, self.partition.key)
            written.push(removing(target.files, path))
            made = stitch(opened, target.io, path)
            first = self.run.moved.rows
            for place, file in zip(places, opened, strict=True):
                self.run.moved.note_read(place, np.array([0]), np.array([file.footer.num_rows]))
            self.run.moved.wrote(
                [path], [made.footer.num_rows], [(np.array([first]), np.array([made.footer.num_rows]))]
            )
            parts.append(self._entry(made, places))
        return added_entries(parts, target.union)

    def _portions(self) -> list[list[int]]:
        """Neighbouring files, by the portion that the middle of each lies in."""
        sizes = np.array([one.file.file_size for one in self.run.work.files], dtype=np.float64)
        middle = (np.cumsum(sizes) - sizes / 2) / max(1.0, float(sizes.sum()))
        portion = (middle * self.run.work.outputs).astype(np.int64)
        return [np.flatnonzero(portion == number).tolist() for number in np.unique(portion).tolist()]

    def _entry(self, made: WrittenFile, places: Sequence[int]) -> FileEntry:
        """The entry of a new file; footers do not count NaN, so what the entries of the old files say is summed."""
        entry = data_entry(self.run.target, made, self.partition)
        assert entry.metrics is not None
        counts = [self.run.work.nan_counts[place] for place in places]
        for field_id in set.intersection(*map(set, counts)) & entry.metrics.value_counts.keys():
            entry.metrics.nan_value_counts[field_id] = sum(count[field_id] for count in counts)
        return entry


def removing(files: TableFiles, path: str) -> Callable[..., None]:
    """What a context calls when it is left: an exception takes the file along."""

    def leave(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            files.remove([path])

    return leave
