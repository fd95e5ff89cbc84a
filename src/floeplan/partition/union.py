"""The union partition type: one tuple for the files of all specs, keyed by partition field id.

Rule: fields of different specs are one column if they have the same partition field id, source and transform.
The name is the newest one, so a rename does not split a column, and fields whose source column is gone are kept.
A void field, which format 1 leaves in place of a dropped field, is always null and not a column.

Formats that did not track partition field ids number them by position, so two specs may use one id for different
fields. Those are never mixed: the oldest keeps the id, the others get free ids above all others. Names that collide
get the id of their column as a suffix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField, StructType

from floeplan.errors import UnknownSpecError
from floeplan.partition.fields import BoundField, SourceTypes, bind_field, fields_on, source_types
from floeplan.partition.lift import Exactness, Lifted, lift
from floeplan.predicate.build import and_, column_of, negate, or_, push_not
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import (
    FALSE,
    TRUE,
    And,
    Cmp,
    CmpOp,
    FalseExpr,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    NullExpr,
    Or,
    TrueExpr,
)
from floeplan.predicate.stats import StatsTable, Tri

# Project whole predicates onto partition values, and answer single leaves from partition values.
#
# ``project`` turns a predicate into two: ``inclusive`` is TRUE of every partition that may hold a matching row, and
# ``strict`` is TRUE only of partitions in which every row matches. A leaf takes part through all fields on its column:
# inclusive must pass all of them, strict needs only one. Without a field, inclusive is true and strict is false.
#
# ``partition_answer`` gives the planner the same evidence leaf by leaf, as a ``Tri`` to be refined with column bounds:
# TRUE may occur where the lifted leaf may be true, FALSE where the lifted *negated* leaf may be, NULL where the
# partition value may be null. It holds for exact partition tuples and for the ranges of manifest summaries alike.


_BEST_FIRST = (Exactness.EXACT, Exactness.CONSERVATIVE, Exactness.CANNOT)
_MANNER = {
    Exactness.EXACT: "lifted exactly onto",
    Exactness.CONSERVATIVE: "lifted conservatively onto",
    Exactness.CANNOT: "cannot be lifted onto",
}


@dataclass(frozen=True, slots=True)
class LiftNote:
    """How one leaf was lifted: the partition field that determines most about it, how exactly, and why not exactly."""

    leaf: IrExpr
    field: str | None
    exactness: Exactness
    reason: str = ""

    def __str__(self) -> str:
        if self.field is None:
            return f"{self.leaf}: {self.reason}"
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.leaf}: {_MANNER[self.exactness]} {self.field}{why}"


@dataclass(frozen=True, slots=True)
class Projection:
    """A predicate over partition values, in both directions."""

    inclusive: IrExpr
    strict: IrExpr
    notes: tuple[LiftNote, ...]


@dataclass(frozen=True, slots=True)
class SpecProjection:
    """One partition spec, ready to project predicates: its fields in the order of its tuple."""

    spec_id: int
    fields: tuple[BoundField, ...]

    @classmethod
    def of(cls, spec: PartitionSpec, sources: SourceTypes) -> SpecProjection:
        """Resolve the sources of all fields over the schemas of the table."""
        return cls(spec.spec_id, tuple(bind_field(field, sources) for field in spec.fields))

    @property
    def unpartitioned(self) -> bool:
        """Whether files of the spec have no partition: no fields, or only void ones."""
        return all(field.is_void for field in self.fields)

    def project(self, expr: IrExpr) -> Projection:
        """Both projections of a predicate, and a note on every leaf."""
        return project(expr, self.fields)

    def notes(self, expr: IrExpr) -> tuple[LiftNote, ...]:
        """How every leaf of a predicate was lifted."""
        return lift_notes(push_not(expr), self.fields)

    def answer(self, leaf: IrExpr, stats: StatsTable) -> Tri:
        """The answer to one leaf from the partition values in ``stats``."""
        return partition_answer(leaf, self.fields, stats)


def project(expr: IrExpr, fields: Sequence[BoundField]) -> Projection:
    """Project a predicate onto partition fields; negations are pushed to the leaves first."""
    pushed = push_not(expr)
    inclusive = _rebuild(pushed, lambda leaf: and_(*(part.expr for _, part in _lifts(leaf, fields))))
    strict = _rebuild(pushed, lambda leaf: or_(*(_strict(leaf, field) for field in _fields_of(leaf, fields))))
    return Projection(inclusive, strict, lift_notes(pushed, fields))


def lift_notes(pushed: IrExpr, fields: Sequence[BoundField]) -> tuple[LiftNote, ...]:
    """A note on every leaf, in the order of the predicate; negations are pushed to the leaves already."""
    return tuple(dict.fromkeys(_note(leaf, fields) for leaf in _negated_leaves(pushed)))


def partition_answer(leaf: IrExpr, fields: Sequence[BoundField], stats: StatsTable) -> Tri:
    """Which of TRUE, FALSE and NULL the partition values leave possible, for every container of the table."""
    answer = Tri.unknown(stats.nonempty)
    for field in _fields_of(leaf, fields):
        if field.obstacle or field.column.field_id not in stats.columns:
            continue
        may_true, may_false = (evaluate(lift(e, field).expr, stats).may_true for e in (leaf, negate(leaf)))
        known = stats.columns[field.column.field_id]
        may_null = known.may_null if yields_null(leaf) else np.zeros(stats.length, dtype=np.bool_)
        answer = answer.refine(Tri(may_true, may_false, may_null))
    return answer


def yields_null(leaf: IrExpr) -> bool:
    """Whether a leaf is NULL on a row whose column is null."""
    match leaf:
        case IsNull() | IsNaN() | Cmp(op=CmpOp.NULL_SAFE_EQ) | Not(Cmp(op=CmpOp.NULL_SAFE_EQ)):
            return False
    return True


def _strict(leaf: IrExpr, field: BoundField) -> IrExpr:
    """TRUE only where no row may fail the leaf: the negated leaf is refuted, and no row is null."""
    failing = lift(negate(leaf), field)
    if failing.exactness is Exactness.CANNOT:
        return FALSE
    holds = negate(failing.expr)
    return and_(IsNull(field.column, negated=True), holds) if yields_null(leaf) else holds


def _fields_of(leaf: IrExpr, fields: Sequence[BoundField]) -> list[BoundField]:
    column = column_of(leaf.operand if isinstance(leaf, Not) else leaf)
    return [] if column is None else fields_on(fields, column.field_id)


def _lifts(leaf: IrExpr, fields: Sequence[BoundField]) -> list[tuple[BoundField, Lifted]]:
    return [(field, lift(leaf, field)) for field in _fields_of(leaf, fields)]


def _note(leaf: IrExpr, fields: Sequence[BoundField]) -> LiftNote:
    lifts = _lifts(leaf, fields)
    if lifts:
        field, best = min(lifts, key=lambda pair: _BEST_FIRST.index(pair[1].exactness))
        return LiftNote(leaf, str(field.column), best.exactness, best.reason)
    column = column_of(leaf.operand if isinstance(leaf, Not) else leaf)
    reason = "only rows can answer it" if column is None else f"no partition field on {column}"
    return LiftNote(leaf, None, Exactness.CANNOT, reason)


def _negated_leaves(expr: IrExpr) -> Iterable[IrExpr]:
    """The leaves of a tree whose negations are pushed down, each with the ``Not`` it may carry; no constants."""
    match expr:
        case And(operands) | Or(operands):
            for operand in operands:
                yield from _negated_leaves(operand)
        case TrueExpr() | FalseExpr() | NullExpr():
            return
        case leaf:
            yield leaf


def _rebuild(expr: IrExpr, change: Callable[[IrExpr], IrExpr]) -> IrExpr:
    """Replace every leaf, with the ``Not`` it may carry; NULL never matches."""
    match expr:
        case And(operands):
            return and_(*(_rebuild(operand, change) for operand in operands))
        case Or(operands):
            return or_(*(_rebuild(operand, change) for operand in operands))
        case TrueExpr():
            return TRUE
        case FalseExpr() | NullExpr():
            return FALSE
        case leaf:
            return change(leaf)


# The union partition type.

_Meaning: TypeAlias = tuple[int, int, str]
_SpecPosition: TypeAlias = tuple[PartitionSpec, int]


@dataclass(frozen=True, slots=True)
class UnionField:
    """One column of the union tuple.

    ``bound.column.field_id`` is unique in the union; ``field_id`` is the id in the metadata. ``positions`` says where
    the field stands in the tuple of each spec that has it.
    """

    bound: BoundField
    field_id: int
    positions: Mapping[int, int]

    @property
    def id(self) -> int:
        """The id of the column in the union tuple."""
        return self.bound.column.field_id

    @property
    def name(self) -> str:
        """The newest name, made unique."""
        return self.bound.column.path[0]


@dataclass(frozen=True, slots=True)
class UnionPartitionType:
    """The partition fields of all specs of a table by their id in the union, and every spec in terms of them."""

    fields: tuple[UnionField, ...]
    specs: Mapping[int, SpecProjection]

    @classmethod
    def of(cls, specs: Iterable[PartitionSpec], sources: SourceTypes) -> UnionPartitionType:
        """The union over specs; a spec is newer than another when its id is higher."""
        ordered = sorted(specs, key=lambda spec: spec.spec_id)
        positions = _positions(ordered)
        ids = _column_ids(positions)
        fields = [_union_field(ids[meaning], positions[meaning], sources) for meaning in positions]
        projections = {spec.spec_id: _projection(spec, ids, sources) for spec in ordered}
        return cls(tuple(sorted(_with_unique_names(fields), key=lambda field: field.id)), projections)

    @classmethod
    def of_table(cls, metadata: TableMetadata) -> UnionPartitionType:
        """The union over all specs of a table, with sources looked up in all its schemas."""
        return cls.of(metadata.partition_specs, source_types(metadata.schema(), metadata.schemas))

    @property
    def bound_fields(self) -> tuple[BoundField, ...]:
        """All fields, for ``partition_answer`` over the entries of all specs at once.

        Sound when the statistics of a field are unknown for the files whose spec does not have it.
        """
        return tuple(field.bound for field in self.fields)

    def spec(self, spec_id: int) -> SpecProjection:
        """One spec of the table; an id the metadata does not know is an error that names it."""
        if spec_id not in self.specs:
            known = ", ".join(map(str, sorted(self.specs)))
            raise UnknownSpecError(
                f"the table has no partition spec {spec_id}; it has {known}", context={"spec-id": spec_id}
            )
        return self.specs[spec_id]

    def struct_type(self) -> StructType:
        """The union tuple as an Iceberg struct of optional fields."""
        return StructType(*(NestedField(f.id, f.name, f.bound.column.type, required=False) for f in self.fields))


def _meaning(field: PartitionField) -> _Meaning:
    return field.field_id, field.source_id, repr(field.transform)


def _positions(ordered: Iterable[PartitionSpec]) -> dict[_Meaning, list[_SpecPosition]]:
    """The specs that have each distinct field and its position there, oldest spec first."""
    positions: dict[_Meaning, list[_SpecPosition]] = {}
    for spec in ordered:
        for position, field in enumerate(spec.fields):
            if not isinstance(field.transform, VoidTransform):
                positions.setdefault(_meaning(field), []).append((spec, position))
    return positions


def _column_ids(meanings: Iterable[_Meaning]) -> dict[_Meaning, int]:
    """The partition field id for the oldest field that uses it, free ids for the others."""
    meanings = list(meanings)
    free = max((field_id for field_id, _, _ in meanings), default=PARTITION_FIELD_ID_START - 1)
    ids: dict[_Meaning, int] = {}
    taken: set[int] = set()
    for meaning in meanings:
        column_id = meaning[0]
        if column_id in taken:
            column_id = free = free + 1
        taken.add(column_id)
        ids[meaning] = column_id
    return ids


def _union_field(column_id: int, positions: list[_SpecPosition], sources: SourceTypes) -> UnionField:
    newest, position = positions[-1]
    field = newest.fields[position]
    return UnionField(
        bind_field(field, sources, column_id), field.field_id, {spec.spec_id: position for spec, position in positions}
    )


def _projection(spec: PartitionSpec, ids: Mapping[_Meaning, int], sources: SourceTypes) -> SpecProjection:
    fields = (bind_field(field, sources, ids.get(_meaning(field))) for field in spec.fields)
    return SpecProjection(spec.spec_id, tuple(fields))


def _with_unique_names(fields: Iterable[UnionField]) -> Iterable[UnionField]:
    """Add the column id to names that are taken; the newest field keeps the plain name."""
    taken: set[str] = set()
    for field in sorted(fields, key=lambda field: (-max(field.positions), field.id)):
        name = field.name
        while name in taken:
            name = f"{name}_{field.id}"
        taken.add(name)
        yield field if name == field.name else _renamed(field, name)


def _renamed(field: UnionField, name: str) -> UnionField:
    return replace(field, bound=replace(field.bound, column=replace(field.bound.column, path=(name,))))
