"""Leaves that a predicate keeps: by partition summaries of manifests, by content statistics, and with bucket ranges.

The leaves have the files of the archive sorted by spec and partition, and the manifests have the same files. Bucket
ranges are the smallest and largest bucket of a leaf, which content statistics do not have: the option that the
discussion of the draft suggests for bucket fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA, ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.writer import manifest_row
from floeplan.metadata.v4.convert import write_tree
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.compile import compile_predicate
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import evaluate_manifests
from floeplan.vectors import Ints

LEAF_FILES = 100
DAY = "ts >= TIMESTAMP '2022-06-15 00:00:00' AND ts < TIMESTAMP '2022-06-16 00:00:00'"
QUERIES = {
    "one day": DAY,
    "one region": "region = 'eu'",
    "one id": "id = 500000000",
    "one id of one day": f"id = 500000000 AND {DAY}",
    "amounts, which no spec has": "amount < 1.0",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """How many leaves a query keeps."""

    query: str
    leaves: int
    summaries: int
    stats: int
    stats_and_buckets: int


def kept_leaves(table: Table, folder: str) -> Iterator[Kept]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    root = write_tree(table, f"{folder}/leaves", snapshot, leaf_entries=LEAF_FILES).root
    tree = MetadataTree(root, table.metadata)
    union = tree.types.union
    data = tree.manifests.content == DATA
    listed = _with_summaries(tree, np.flatnonzero(data), snapshot.snapshot_id)
    buckets = _only_buckets(listed, union)
    for name, where in QUERIES.items():
        compiled = compile_predicate(where, table.schema()).predicate
        predicate = Predicate(compiled, predicate_columns(compiled), union)
        by_summaries, by_buckets = (evaluate_manifests(predicate, one).tri.keep for one in (listed, buckets))
        bounds = tree.leaf_stats(predicate.columns)
        by_stats = evaluate_manifests(predicate, tree.manifests, bounds).tri.keep[data]
        assert len(by_stats) == len(listed)
        both = int((by_stats & by_buckets).sum())
        yield Kept(name, len(listed), int(by_summaries.sum()), int(by_stats.sum()), both)


def _with_summaries(tree: MetadataTree, leaves: Ints, snapshot_id: int) -> ManifestListTable:
    """The leaves as manifests of format 3 with the same files would be listed."""
    union = tree.types.union
    entries = tree.read_entries(tree.manifests, union, EntryColumns(frozenset()), rows=leaves)
    starts = np.searchsorted(entries.ints("manifest"), [*leaves.tolist(), len(tree.manifests)])
    listed = []
    for leaf, (start, end) in zip(leaves.tolist(), pairwise(starts.tolist()), strict=True):
        part = EntriesTable(entries.table.slice(start, end - start), entries.partition_types)
        path = str(tree.manifests.path[leaf].as_py())
        listed.append(manifest_row(path, 1, union.spec(int(part.spec_id[0])), DATA, snapshot_id, part))
    return concat_manifest_lists(listed)


def _only_buckets(manifests: ManifestListTable, union: UnionPartitionType) -> ManifestListTable:
    """The manifests with summaries of bucket fields only; others may have any value."""
    summaries = manifests.summaries
    known = np.zeros(len(summaries.contains_null), dtype=np.bool_)
    for spec_id, spec in union.specs.items():
        starts = summaries.offsets[:-1][manifests.spec_id == spec_id]
        for position, field in enumerate(spec.fields):
            known[starts + position] = isinstance(field.transform, BucketTransform)
    # A field with a null and no lower bound would be all null: an empty lower bound is unknown, or below all strings.
    unbounded = {"lower": b"", "upper": None}
    ends = {}
    for side, none in unbounded.items():
        pairs = zip(getattr(summaries, side).to_pylist(), known.tolist(), strict=True)
        ends[side] = pa.array([value if is_known else none for value, is_known in pairs], pa.large_binary())
    unknown = np.where(known, summaries.contains_nan, -1).astype(np.int8)
    made = replace(summaries, contains_null=summaries.contains_null | ~known, contains_nan=unknown, **ends)
    return replace(manifests, summaries=made)
