"""The first two pruning passes: which manifests, then which data files, can hold a matching row; which deletes apply.

Both passes evaluate the predicate with the same tri-state evaluator. A leaf is answered from partition values (the
predicate lifted through every spec at once, over the union partition tuple) and, for files, from column bounds too.
Each answer is sound, so their intersection is sound and tighter than either.

The top-level AND is evaluated operand by operand (``effects``): ``explain`` reports what each conjunct decides, and a
file's residual keeps only the conjuncts that its statistics do not prove.

Fail-safe: a leaf without statistics keeps the file; a spec that the table does not have is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError
from floeplan.metadata.delete_index import DataFiles, DeleteFiles, DeleteKind, DeleteMatches, match_deletes
from floeplan.metadata.manifests.entries import (
    POSITION_DELETE_PATH,
    Content,
    EntriesTable,
    EntryColumns,
    Status,
    concat_columns,
    no_entries,
)
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.stats import file_stats, manifest_stats
from floeplan.partition.fields import SourceTypes
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType, partition_answer
from floeplan.predicate.build import and_, column_of, conjuncts
from floeplan.predicate.evaluate import answer_leaf
from floeplan.predicate.ir import Column, IrExpr
from floeplan.predicate.stats import StatsTable, Tri, kleene, to_mask
from floeplan.snapshot.effects import (
    REPEATED,
    ConjunctEffect,
    Evaluation,
    LeafAnswers,
    Predicate,
    entry_effects,
    evaluate_conjuncts,
    sum_effects,
)
from floeplan.vectors import Ints, Mask

_BITS = 31
"""Conjuncts folded at a time: their bits and the number of the pattern so far fit into 64 bits."""

_MOST_COUNTED = 1 << 16
"""Pattern numbers up to this are renumbered by counting, larger ones by sorting."""


class RememberAnswer(Protocol):
    """Returns the answers to a leaf, computed once for all plans of a snapshot; ``bounded`` if they use bounds."""

    def __call__(self, leaf: IrExpr, bounded: bool, answer: Callable[[], tuple[Tri, Tri]]) -> tuple[Tri, Tri]: ...


def evaluate_manifests(
    predicate: Predicate,
    manifests: ManifestListTable,
    bounds: StatsTable | None = None,
    summaries: StatsTable | None = None,
    remember: RememberAnswer | None = None,
) -> Evaluation:
    """Pass 1: evaluate the partition summaries of all specs; manifests without live files never match.

    ``bounds`` are statistics of columns for each manifest, which metadata trees have instead of summaries, and which
    servers compute. ``summaries`` are the decoded partition summaries, if they are known. ``remember`` keeps the
    answers to leaves for other plans of the snapshot.
    """
    live = manifests.is_live
    found = manifest_stats(manifests, predicate.fields) if summaries is None else summaries
    stats = StatsTable(found.length, found.columns, live)
    fields = [field.bound for field in predicate.fields]

    known: dict[int, tuple[Tri, Tri]] = {}

    def answers(leaf: IrExpr) -> tuple[Tri, Tri]:
        """By partition values alone, and by bounds too."""
        if id(leaf) not in known:
            column = column_of(leaf)
            used = bounds if bounds is not None and column is not None and column.field_id in bounds.columns else None

            def answer() -> tuple[Tri, Tri]:
                alone = partition_answer(leaf, fields, stats)
                return alone, alone if used is None else alone.refine(answer_leaf(leaf, used))

            if remember is None or not isinstance(leaf, REPEATED):
                known[id(leaf)] = answer()
            else:
                known[id(leaf)] = remember(leaf, used is not None, answer)
        return known[id(leaf)]

    both = evaluate_conjuncts(predicate.expr, live, lambda leaf: answers(leaf)[1])
    if bounds is None:
        return both
    alone = [kleene(operand, live, lambda leaf: answers(leaf)[0]) for operand in both.conjuncts]
    return both._replace(by_partition=Tri.stacked(alone, len(live)))


def evaluate_entries(predicate: Predicate, entries: EntriesTable) -> Evaluation:
    """Pass 2: evaluate union partition tuples and column bounds; files without rows never match."""
    answers = LeafAnswers(predicate, entries)
    return evaluate_conjuncts(predicate.expr, answers.bounds.nonempty, answers.by_both)


class EvaluatedFiles(NamedTuple):
    """The data files that pass 2 keeps.

    The pass can run on slices of the manifest list, in other processes too; ``concat_evaluated`` gives the same result,
    in the same order, as one run over all of them.

    Attributes:
        entries: The entries of the kept files.
        states: Their tri-states.
        proven: For each kept file and each conjunct, whether every row satisfies it.
        total: All live files that were evaluated.
        effects: The effect of each conjunct over all live files.
    """

    entries: EntriesTable
    states: npt.NDArray[np.int8]
    proven: Mask
    total: int
    effects: tuple[ConjunctEffect, ...]

    def narrowed(self, keep: Mask) -> EvaluatedFiles:
        """Without the files where the mask is false."""
        if keep.all():
            return self
        return EvaluatedFiles(self.entries.filter(keep), self.states[keep], self.proven[keep], self.total, self.effects)

    def residuals(self, predicate: IrExpr) -> tuple[tuple[IrExpr, ...], npt.NDArray[np.intp]]:
        """The distinct residuals, and the index of the residual that each file needs.

        The unproven conjuncts of a file are a number with one bit per conjunct: of ``a AND b``, 0 is TRUE (both are
        proven), 1 is ``a``, 2 is ``b`` and 3 is both. With many conjuncts, ``_BITS`` are added at a time, and the
        numbers so far are replaced by indexes of ``patterns``.
        """
        operands = conjuncts(predicate)
        codes = np.zeros(len(self.proven), dtype=np.intp)
        patterns: list[tuple[IrExpr, ...]] = [()]
        for start in range(0, len(operands), _BITS):
            some = operands[start : start + _BITS]
            bits = ~self.proven[:, start : start + _BITS] @ (1 << np.arange(len(some)))
            numbers = (codes << len(some)) + bits
            if not len(numbers) or numbers.max() > _MOST_COUNTED:
                distinct, codes = np.unique(numbers, return_inverse=True)
            else:  # np.unique sorts; counting is several times faster for the few patterns that occur in practice
                present = np.bincount(numbers) > 0
                distinct, codes = np.flatnonzero(present), (np.cumsum(present) - 1)[numbers]
            patterns = [
                patterns[code >> len(some)] + tuple(operand for bit, operand in enumerate(some) if code >> bit & 1)
                for code in distinct.tolist()
            ]
        return tuple(and_(*pattern) for pattern in patterns), codes


def evaluate_files(predicate: Predicate, entries: EntriesTable) -> EvaluatedFiles:
    """Run pass 2 on entries. DELETED ones are dropped afterwards, because dropping them first copies every column."""
    answers = LeafAnswers(predicate, entries)
    evaluation = evaluate_conjuncts(predicate.expr, answers.bounds.nonempty, answers.by_both)
    live = entries.status != Status.DELETED
    keep = evaluation.tri.keep & live
    rows = np.flatnonzero(keep)
    return EvaluatedFiles(
        entries=entries if len(rows) == len(keep) else entries.filter(keep),
        states=evaluation.tri.states()[rows],
        proven=evaluation.proven(rows),
        total=int(np.count_nonzero(live)),
        effects=entry_effects(predicate, answers, evaluation, live, entries.spec_id),
    )


def concat_evaluated(parts: Sequence[EvaluatedFiles]) -> EvaluatedFiles:
    """Concatenate the results of consecutive slices."""
    if len(parts) == 1:
        return parts[0]
    # A partition field whose source column was dropped has a type only in manifests that hold it; slices without such
    # a manifest have a null column, which promotion unifies.
    table = pa.concat_tables([part.entries.table for part in parts], promote_options="default").combine_chunks()
    unknown = UnknownType()
    types: dict[int, PrimitiveType] = {}
    for part in parts:
        known = part.entries.partition_types.items()
        types |= {i: type_ for i, type_ in known if isinstance(types.get(i, unknown), UnknownType)}
    return EvaluatedFiles(
        entries=EntriesTable(table, types),
        states=np.concatenate([part.states for part in parts]),
        proven=np.concatenate([part.proven for part in parts]),
        total=sum(part.total for part in parts),
        effects=sum_effects([part.effects for part in parts]),
    )


DELETE_COLUMNS = EntryColumns(
    frozenset({"equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes", "key_metadata"}),
    stats=frozenset({POSITION_DELETE_PATH}),
)
"""The columns to read of a delete entry."""


class ScanDeletes(NamedTuple):
    """Live delete files with the kind and the equality field ids of each.

    A position delete file applies to a single data file when ``referenced_data_file`` names it, or when both bounds of
    its ``file_path`` column are equal (Iceberg specification, "Scan Planning"). An equality delete of an unpartitioned
    spec applies to the whole table, any other to its partition.
    """

    entries: EntriesTable
    kinds: npt.NDArray[np.int8]
    equality_ids: tuple[tuple[int, ...], ...]

    @classmethod
    def none(cls, union: UnionPartitionType) -> ScanDeletes:
        """No delete files."""
        return cls(no_entries(union, EntryColumns(DELETE_COLUMNS.names)), np.zeros(0, dtype=np.int8), ())

    @classmethod
    def of(cls, entries: EntriesTable, union: UnionPartitionType) -> ScanDeletes:
        """Classify delete entries; DELETED ones are left out.

        Raises:
            CorruptMetadataError: An equality delete has no equality fields, so it is unknown which rows it deletes.
        """
        live = entries.live()
        equality_ids = tuple(tuple(keys or ()) for keys in live.array("equality_ids").to_pylist())
        for row in np.flatnonzero(live.content == Content.EQUALITY_DELETES).tolist():
            if not equality_ids[row]:
                path = live.path[row].as_py()
                raise CorruptMetadataError(
                    f"equality delete file {path} has no equality columns", context={"file": path}
                )
        unpartitioned = [spec_id for spec_id, spec in union.specs.items() if spec.unpartitioned]
        is_global = np.isin(live.spec_id, unpartitioned)
        equality = np.where(is_global, DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)
        has_target = to_mask(live.delete_targets().is_valid())
        position = np.where(has_target, DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
        formats = live.array("file_format")
        is_vector = to_mask(pc.equal(formats, pc.scalar("PUFFIN", formats.type)))
        position = np.where(is_vector, DeleteKind.VECTOR, position)
        kinds = np.where(live.content == Content.EQUALITY_DELETES, equality, position)
        return cls(live, kinds.astype(np.int8), equality_ids)

    @property
    def key_columns(self) -> frozenset[int]:
        """Field ids of all equality keys: their bounds decide which data files an equality delete may apply to."""
        return frozenset(field_id for keys in set(self.equality_ids) for field_id in keys)

    def everywhere(self, rows: Ints) -> ScanDeletes:
        """Some equality deletes as if they applied to all specs and partitions."""
        kinds = np.full(len(rows), DeleteKind.EQUALITY_GLOBAL, dtype=np.int8)
        return ScanDeletes(self.entries.take(rows), kinds, tuple(self.equality_ids[row] for row in rows.tolist()))


def match(
    data: EntriesTable,
    deletes: ScanDeletes,
    union: UnionPartitionType,
    sources: SourceTypes,
    *,
    misplaced: bool = False,
) -> DeleteMatches:
    """Match delete files with the data files they apply to; equality keys may be columns that were dropped since."""
    if not len(deletes.entries) or not len(data):
        return DeleteMatches.none(len(data))
    columns = [Column(i, sources[i][0], (str(i),)) for i in sorted(deletes.key_columns & sources.keys())]
    codes = joint_partition_codes(union, data, deletes.entries)
    return match_deletes(
        DataFiles(data.path, data.sequence_number, codes[: len(data)], file_stats(data, columns).columns),
        DeleteFiles(
            path=deletes.entries.path,
            kind=deletes.kinds,
            sequence=deletes.entries.sequence_number,
            partition=codes[len(data) :],
            target=deletes.entries.delete_targets(),
            equality_ids=deletes.equality_ids,
            stats=file_stats(deletes.entries, columns).columns,
        ),
        misplaced=misplaced,
    )


def joint_partition_codes(union: UnionPartitionType, first: EntriesTable, second: EntriesTable) -> Ints:
    """One number per distinct (spec id, partition tuple) over the files of two tables, one table after the other."""
    left, right = first.partition_columns(), second.partition_columns()
    both = {i: concat_columns([left[i], right[i]]) for i in left.keys() & right.keys()}
    return partition_codes(union, np.concatenate([first.spec_id, second.spec_id]), both)
