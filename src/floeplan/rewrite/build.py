"""Steps 5 to 9 of planning: candidates into groups, and groups into what a plan shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table.sorting import SortOrder

from floeplan.metadata.entry_columns import partition_column
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import TRUE
from floeplan.predicate.tristate import TriState
from floeplan.rewrite.candidates import Selection
from floeplan.rewrite.groups import (
    Groups,
    at_most,
    delete_counts,
    job_order,
    no_fewer_files,
    pack,
    worth_rewriting,
)
from floeplan.rewrite.options import STITCHING, RewriteOptions
from floeplan.rewrite.output import OutputPartitions, output_partitions
from floeplan.rewrite.plan import RewriteDataFilesPlan, RewriteFileGroup
from floeplan.rewrite.reasons import Skip, decision_texts, reason_counts, skip_counts
from floeplan.rewrite.sizes import FileSizes
from floeplan.scan.deletes import ScanDeletes
from floeplan.scan.model import PlannedFiles
from floeplan.scan.partition_values import PartitionNames
from floeplan.scan.target import ScanTarget


@dataclass(frozen=True, slots=True)
class PlanBuilder:
    """What a plan is built for: a table, options, and what follows from both."""

    target: ScanTarget
    options: RewriteOptions
    sizes: FileSizes
    order: SortOrder
    output_spec_id: int | None
    union: UnionPartitionType

    def build(self, selection: Selection, deletes: ScanDeletes, pruned: Mapping[str, int]) -> RewriteDataFilesPlan:
        """The plan; ``pruned`` counts files that were not even looked at."""
        files = self._files(selection, deletes)
        output = output_partitions(selection.considered, self.union, self.output_spec_id)
        groups, skip = self._groups(selection, output)
        described = self._describe(groups, selection, output, files)
        order = job_order(groups, files.entries.ints("file_size_in_bytes"), self.options.rewrite_job_order)
        return RewriteDataFilesPlan(
            target=self.target,
            options=self.options,
            sizes=self.sizes,
            order=self.order,
            output_spec_id=self.output_spec_id,
            groups=tuple(described[number] for number in order.tolist()),
            files=files,
            decisions=_decisions(selection, groups, skip),
            skipped={**pruned, **skip_counts(skip)},
        )

    def _groups(self, selection: Selection, output: OutputPartitions) -> tuple[Groups, npt.NDArray[np.int8]]:
        """The groups that are rewritten, and for every entry why it is left."""
        reasons, size = selection.reasons[selection.rows], selection.considered.ints("file_size_in_bytes")
        packed = pack(selection.considered, np.flatnonzero(reasons), output, self.union, self.options)
        worth = worth_rewriting(packed, size, reasons, self.sizes, self.options.min_input_files)
        vain = no_fewer_files(packed, size, reasons, self.sizes)
        chosen = packed.select(np.flatnonzero(worth & ~vain))
        groups = at_most(chosen, self.options.max_files_to_rewrite)
        skip = selection.skip.copy()
        skip[selection.rows[packed.rows]] = Skip.GROUP_TOO_SMALL
        skip[selection.rows[packed.select(np.flatnonzero(worth & vain)).rows]] = Skip.NO_FEWER_FILES
        skip[selection.rows[chosen.rows]] = Skip.BEYOND_MAX_FILES
        skip[selection.rows[groups.rows]] = Skip.NONE
        return groups, skip

    def _files(self, selection: Selection, deletes: ScanDeletes) -> PlannedFiles:
        """The files as a scan has them: every row is wanted."""
        count = len(selection.considered)
        return PlannedFiles(
            entries=selection.considered,
            states=np.full(count, TriState.TRUE, dtype=np.int8),
            residuals=(TRUE,),
            residual_of=np.zeros(count, dtype=np.intp),
            deletes=deletes.entries,
            delete_kinds=deletes.kinds,
            matches=selection.matches,
            row_groups={},
            names=PartitionNames(self.union, selection.considered.partition_types),
        )

    def _describe(
        self, groups: Groups, selection: Selection, output: OutputPartitions, files: PlannedFiles
    ) -> list[RewriteFileGroup]:
        """All groups with their numbers, in the order of their partitions."""
        reasons, specs = selection.reasons[selection.rows], files.entries.spec_id
        total = groups.sums(files.entries.ints("file_size_in_bytes")).tolist()
        deletes = delete_counts(groups, files.matches, len(files)).tolist()
        first = groups.rows[groups.offsets[:-1]]
        values = {i: column.take(pa.array(first)).to_pylist() for i, column in output.columns.items()}
        described = []
        for number, key in enumerate(groups.keys):
            rows = groups.of(number)
            entry = {partition_column(i): listed[number] for i, listed in values.items()}
            expected, proven = self._after(total[number]), bool(output.proven[first[number]])
            described.append(
                RewriteFileGroup(
                    group_id=number,
                    key=key,
                    partition=files.names.readable(key.spec_id, entry) if proven else {},
                    proven=proven,
                    source_spec_ids=tuple(np.unique(specs[rows]).tolist()),
                    output_spec_id=key.spec_id if self.output_spec_id is None else self.output_spec_id,
                    rows=rows,
                    bytes=total[number],
                    expected_outputs=self.sizes.expected_outputs(expected),
                    split_size=self.sizes.split_size(expected),
                    delete_files=deletes[number],
                    reasons=reason_counts(reasons[rows]),
                )
            )
        return described

    def _after(self, size: int) -> int:
        """Expected bytes of the new files: sorting and clustering may change them."""
        factor = 1.0 if self.options.strategy in STITCHING else self.options.compression_factor
        return max(1, int(size * factor)) if factor != 1.0 else size


def _decisions(selection: Selection, groups: Groups, skip: npt.NDArray[np.int8]) -> pa.Table:
    entries = selection.entries
    group = np.full(len(entries), -1, dtype=np.int64)
    group[selection.rows[groups.rows]] = np.repeat(np.arange(len(groups)), groups.counts)
    return pa.table(
        {
            "file_path": entries.path,
            "spec_id": entries.array("spec_id"),
            "file_size_in_bytes": entries.array("file_size_in_bytes"),
            "decision": decision_texts(selection.reasons, skip),
            "group_id": pa.array(group, mask=group < 0),
        }
    )
