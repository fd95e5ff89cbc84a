"""Whole predicates on all fields of a spec, and the union partition type: one tuple for the files of all specs.

``project`` turns a predicate into two: ``inclusive`` is TRUE of every partition that may hold a matching row, and
``strict`` is TRUE only of partitions in which every row matches. A leaf takes part through all fields on its column:
inclusive must pass all of them, strict needs only one. Without a field, inclusive is true and strict is false.

``partition_answer`` gives the planner the same evidence leaf by leaf, as a ``Tri`` to be refined with column bounds:
TRUE may occur where the lifted leaf may be true, FALSE where the lifted *negated* leaf may be, NULL where the
partition value may be null. It holds for exact partition tuples and for the ranges of manifest summaries alike.

The union partition type is keyed by partition field id. Rule: fields of different specs are one column if they have the
same partition field id, source and transform. The name is the newest one, so a rename does not split a column, and
fields whose source column was dropped are kept. A void field, which format 1 leaves in place of a dropped field, is
always null and not a column. ``partition_type`` is the narrower type that Iceberg shows to users.

Formats that did not track partition field ids number them by position, so two specs may use one id for different
fields. Those are never mixed: the oldest keeps the id, the others get free ids above all others. Names that collide
get the id of their column as a suffix.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IcebergType, NestedField, StructType

from floeplan.errors import UnknownSpecError
from floeplan.partition.fields import BoundField, SourceTypes, bind_field, fields_on, source_types
from floeplan.partition.lift import WORST_FIRST, Exactness, lift
from floeplan.predicate import ir
from floeplan.predicate.build import and_, column_of, negate, or_, push_not
from floeplan.predicate.evaluate import may_match
from floeplan.predicate.ir import FALSE, TRUE, CmpOp, IrExpr
from floeplan.predicate.stats import StatsTable, Tri
from floeplan.schemas import fields_by_id

_Meaning: TypeAlias = tuple[int, int, str]
_SpecPosition: TypeAlias = tuple[PartitionSpec, int]
_MANNER = {
    Exactness.EXACT: "lifted exactly onto",
    Exactness.CONSERVATIVE: "lifted conservatively onto",
    Exactness.CANNOT: "cannot be lifted onto",
}


class LiftNote(NamedTuple):
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


class Projection(NamedTuple):
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
    def of(cls, spec: PartitionSpec, sources: SourceTypes, ids: Mapping[_Meaning, int] | None = None) -> SpecProjection:
        """Resolve the sources of all fields over the schemas of the table; ``ids`` are their ids in the union."""
        fields = (bind_field(field, sources, (ids or {}).get(_meaning(field))) for field in spec.fields)
        return cls(spec.spec_id, tuple(fields))

    @property
    def unpartitioned(self) -> bool:
        """Whether files of the spec have no partition: no fields, or only void ones."""
        return all(field.is_void for field in self.fields)

    def project(self, expr: IrExpr) -> Projection:
        """Both projections of a predicate, and a note on every leaf."""
        return project(expr, self.fields)

    def notes(self, expr: IrExpr) -> tuple[LiftNote, ...]:
        """How every leaf of a predicate was lifted."""
        return _notes(push_not(expr), self.fields)


def project(expr: IrExpr, fields: Sequence[BoundField]) -> Projection:
    """Project a predicate onto partition fields; negations are pushed to the leaves first."""

    def inclusive(leaf: IrExpr) -> IrExpr:
        return and_(*(lift(leaf, field).expr for field in _fields_of(leaf, fields)))

    def strict(leaf: IrExpr) -> IrExpr:
        """TRUE only where no row may fail the leaf: the negated leaf is refuted, and no row is null."""
        parts: list[IrExpr] = []
        for field in _fields_of(leaf, fields):
            failing = lift(negate(leaf), field)
            if failing.exactness is not Exactness.CANNOT:
                not_null = ir.IsNull(field.column, negated=True) if yields_null(leaf) else TRUE
                parts.append(and_(not_null, negate(failing.expr)))
        return or_(*parts)

    pushed = push_not(expr)
    return Projection(_rebuild(pushed, inclusive), _rebuild(pushed, strict), _notes(pushed, fields))


def _rebuild(expr: IrExpr, change: Callable[[IrExpr], IrExpr]) -> IrExpr:
    """Replace every leaf, with the ``Not`` it may carry; NULL never matches."""
    match expr:
        case ir.And(operands):
            return and_(*(_rebuild(operand, change) for operand in operands))
        case ir.Or(operands):
            return or_(*(_rebuild(operand, change) for operand in operands))
        case ir.TrueExpr():
            return TRUE
        case ir.FalseExpr() | ir.NullExpr():
            return FALSE
        case leaf:
            return change(leaf)


def _notes(pushed: IrExpr, fields: Sequence[BoundField]) -> tuple[LiftNote, ...]:
    """A note on every leaf, in the order of the predicate; negations are pushed to the leaves already."""
    match pushed:
        case ir.And(operands) | ir.Or(operands):
            return tuple(dict.fromkeys(note for operand in operands for note in _notes(operand, fields)))
        case ir.TrueExpr() | ir.FalseExpr() | ir.NullExpr():
            return ()
    lifts = [(field, lift(pushed, field)) for field in _fields_of(pushed, fields)]
    if lifts:
        field, best = max(lifts, key=lambda pair: WORST_FIRST.index(pair[1].exactness))
        return (LiftNote(pushed, str(field.column), best.exactness, best.reason),)
    column = column_of(pushed.operand if isinstance(pushed, ir.Not) else pushed)
    reason = "only rows can answer it" if column is None else f"no partition field on {column}"
    return (LiftNote(pushed, None, Exactness.CANNOT, reason),)


def _fields_of(leaf: IrExpr, fields: Sequence[BoundField]) -> list[BoundField]:
    column = column_of(leaf.operand if isinstance(leaf, ir.Not) else leaf)
    return [] if column is None else fields_on(fields, column.field_id)


def partition_answer(leaf: IrExpr, fields: Sequence[BoundField], stats: StatsTable) -> Tri:
    """Which of TRUE, FALSE and NULL the partition values leave possible, for every container of the table."""
    answer = Tri.unknown(stats.nonempty)
    for field in _fields_of(leaf, fields):
        if field.obstacle or field.column.field_id not in stats.columns:
            continue
        may_true, may_false = (may_match(lift(e, field).expr, stats) for e in (leaf, negate(leaf)))
        known = stats.columns[field.column.field_id]
        may_null = known.may_null if yields_null(leaf) else np.zeros(stats.length, dtype=np.bool_)
        answer = answer.refine(Tri(may_true, may_false, may_null))
    return answer


def yields_null(leaf: IrExpr) -> bool:
    """Whether a leaf is NULL on a row whose column is null."""
    match leaf:
        case ir.IsNull() | ir.IsNaN() | ir.Cmp(op=CmpOp.NULL_SAFE_EQ) | ir.Not(ir.Cmp(op=CmpOp.NULL_SAFE_EQ)):
            return False
    return True


class UnionField(NamedTuple):
    """One column of the union tuple.

    ``bound.column.field_id`` is unique in the union; ``field_id`` is the id in the metadata. ``positions`` has its
    position in the tuple of each spec that has it. ``source_dropped`` if the current schema lacks the source column.
    """

    bound: BoundField
    field_id: int
    positions: Mapping[int, int]
    source_dropped: bool = False

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
    def of(
        cls, specs: Iterable[PartitionSpec], sources: SourceTypes, current: Container[int] | None = None
    ) -> UnionPartitionType:
        """The union over specs; a spec is newer than another when its id is higher.

        ``current`` has the ids of the columns of the current schema; by default those of all sources.
        """
        present = sources if current is None else current
        ordered = sorted(specs, key=lambda spec: spec.spec_id)
        # The specs that have each distinct field and its position there, oldest spec first.
        positions: dict[_Meaning, list[_SpecPosition]] = {}
        for spec in ordered:
            for position, field in enumerate(spec.fields):
                if not isinstance(field.transform, VoidTransform):
                    positions.setdefault(_meaning(field), []).append((spec, position))
        # The partition field id for the oldest field that uses it, free ids for the others.
        free = max((field_id for field_id, _, _ in positions), default=PARTITION_FIELD_ID_START - 1)
        ids: dict[_Meaning, int] = {}
        for meaning in positions:
            column_id = meaning[0]
            if column_id in ids.values():
                column_id = free = free + 1
            ids[meaning] = column_id
        fields: list[UnionField] = []
        for meaning, found in positions.items():
            newest, position = found[-1]
            bound = bind_field(newest.fields[position], sources, ids[meaning])
            at = {spec.spec_id: at for spec, at in found}
            fields.append(UnionField(bound, meaning[0], at, bound.source_id not in present))
        # The newest field whose source exists keeps its name; others whose name is taken get their id as a suffix.
        taken: set[str] = set()
        unique: list[UnionField] = []
        for union_field in sorted(fields, key=lambda field: (field.source_dropped, -max(field.positions), field.id)):
            name = union_field.name
            while name in taken:
                name = f"{name}_{union_field.id}"
            taken.add(name)
            column = replace(union_field.bound.column, path=(name,))
            unique.append(union_field._replace(bound=replace(union_field.bound, column=column)))
        projections = {spec.spec_id: SpecProjection.of(spec, sources, ids) for spec in ordered}
        return cls(tuple(sorted(unique, key=lambda field: field.id)), projections)

    @classmethod
    def of_table(cls, metadata: TableMetadata) -> UnionPartitionType:
        """The union over all specs of a table, with sources looked up in all its schemas."""
        schema = metadata.schema()
        return cls.of(metadata.partition_specs, source_types(schema, metadata.schemas), fields_by_id(schema))

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


def partition_type(metadata: TableMetadata) -> StructType:
    """The type of ``_partition`` and of the column ``partition`` of metadata tables, with the ids of the union.

    As Java's ``Partitioning.partitionType``: fields whose source the current schema has, in every snapshot. A field of
    which only void fields are left, because older specs were removed, is null.
    """
    union, columns = UnionPartitionType.of_table(metadata), fields_by_id(metadata.schema())
    found: dict[int, tuple[str, IcebergType]] = {
        f.id: (f.name, f.bound.column.type) for f in union.fields if not f.source_dropped
    }
    known = {f.field_id for f in union.fields}
    for spec in sorted(metadata.partition_specs, key=lambda spec: -spec.spec_id):
        for field in spec.fields:
            if field.field_id not in known and field.source_id in columns:
                known.add(field.field_id)
                found[field.field_id] = field.name, columns[field.source_id].field_type
    return StructType(*(NestedField(key, *found[key], required=False) for key in sorted(found)))


def _meaning(field: PartitionField) -> _Meaning:
    return field.field_id, field.source_id, repr(field.transform)
