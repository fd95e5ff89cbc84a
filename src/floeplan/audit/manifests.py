"""What clustering manifests by partition would save: bytes of manifests opened by the logged queries, now and then."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.audit.workload import Workload
from floeplan.maintain.rewrite_manifests import LEAST_ENTRIES
from floeplan.metadata.entries import EntriesTable
from floeplan.metadata.manifest_list import ManifestListTable
from floeplan.metadata.stats import partition_stats
from floeplan.partition.projection import partition_answer
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.tristate import Mask, kleene
from floeplan.scan.passes import Predicate, is_delete_manifest, judge_manifests

TARGET_BYTES = 8 * 2**20
"""The size Iceberg aims at for a manifest."""


def clustered_manifests(
    manifests: ManifestListTable, entries: EntriesTable, union: UnionPartitionType, workload: Workload
) -> tuple[int, int]:
    """Bytes of data manifests opened by all runs: as they are, and with entries filed in the order of partitions."""
    data = ~is_delete_manifest(manifests)
    length = np.where(data, manifests.length, 0)
    most = min(_partitions(entries), -(-len(entries) // LEAST_ENTRIES))
    number = max(int(-(-length.sum() // TARGET_BYTES)), min(int(data.sum()), most), 1)
    place = _manifest_of(entries, number)
    before = after = 0
    for expr, runs in workload.predicates:
        predicate = Predicate(expr, predicate_columns(expr), union)
        before += runs * int(length[judge_manifests(predicate, manifests).tri.keep].sum())
        opened = np.bincount(place, _may_match(predicate, entries), number) > 0
        after += runs * round(int(length.sum()) * float(opened.mean()))
    return before, after


def _may_match(predicate: Predicate, entries: EntriesTable) -> Mask:
    """Entries whose partition value alone does not exclude a match."""
    stats = partition_stats(entries, predicate.fields)
    fields = [field.bound for field in predicate.fields]
    return kleene(predicate.expr, stats.nonempty, lambda leaf: partition_answer(leaf, fields, stats)).keep


def _keys(entries: EntriesTable) -> pa.Table:
    return pa.table(
        {"spec": pa.array(entries.spec_id)} | {str(i): array for i, array in entries.partition_columns().items()}
    )


def _partitions(entries: EntriesTable) -> int:
    keys = _keys(entries)
    return int(keys.group_by(keys.column_names).aggregate([]).num_rows)


def _manifest_of(entries: EntriesTable, number: int) -> npt.NDArray[np.int64]:
    """The manifest each entry would be in: equal shares of the entries in the order of spec and partition."""
    keys = _keys(entries)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    place = np.empty(len(entries), dtype=np.int64)
    place[order.to_numpy()] = np.arange(len(entries)) * number // max(len(entries), 1)
    return place
