"""Build, walk and rewrite IR trees.

The constructors flatten nested operands and absorb constants, so that equal predicates have equal trees. Every rewrite
keeps the row semantics exactly, except ``without_opaque``, which weakens the predicate: every row that matches its
input matches its output.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator

from floeplan.predicate import ir
from floeplan.predicate.ir import FALSE, TRUE, CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value

_NEGATED = {CmpOp.EQ: CmpOp.NE, CmpOp.LT: CmpOp.GE, CmpOp.GT: CmpOp.LE}
_NEGATED |= {negated: op for op, negated in _NEGATED.items()}
_COLUMN_LEAVES = (
    ir.Cmp,
    ir.Between,
    ir.InList,
    ir.StartsWith,
    ir.IsNull,
    ir.IsNaN,
    ir.BloomEq,
    ir.BloomInList,
    ir.Transformed,
    ir.Bounded,
)


def and_(*operands: IrExpr) -> IrExpr:
    """Conjunction, flattened; TRUE disappears and FALSE absorbs."""
    return _join(operands, ir.And, TRUE, FALSE)


def or_(*operands: IrExpr) -> IrExpr:
    """Disjunction, flattened; FALSE disappears and TRUE absorbs."""
    return _join(operands, ir.Or, FALSE, TRUE)


def _join(operands: Iterable[IrExpr], kind: type[ir.And | ir.Or], neutral: IrExpr, absorbing: IrExpr) -> IrExpr:
    flat = [leaf for o in operands for leaf in (o.operands if isinstance(o, kind) else (o,))]
    kinds = list(map(type, flat))  # constants are equal if their types are
    if type(absorbing) in kinds:
        return absorbing
    kept = tuple(dict.fromkeys(flat if type(neutral) not in kinds else (o for o in flat if o != neutral)))
    return kept[0] if len(kept) == 1 else kind(kept) if kept else neutral


def one_of(column: Column, values: Iterable[Value]) -> IrExpr:
    """``=`` for one distinct value, IN for several or none."""
    unique = tuple(dict.fromkeys(values))
    return ir.Cmp(column, CmpOp.EQ, unique[0]) if len(unique) == 1 else ir.InList(column, unique)


def conjuncts(expr: IrExpr) -> tuple[IrExpr, ...]:
    """The top-level operands of a conjunction, or the expression itself; none for TRUE."""
    if isinstance(expr, ir.And):
        return expr.operands
    return () if isinstance(expr, ir.TrueExpr) else (expr,)


def push_not(expr: IrExpr) -> IrExpr:
    """Push negations to the leaves; a leaf without a negated form keeps a ``Not`` directly above it."""
    if isinstance(expr, ir.And | ir.Or):
        return _rebuilt(expr, push_not)
    return negate(expr.operand) if isinstance(expr, ir.Not) else expr


def _rebuilt(expr: ir.And | ir.Or, change: Callable[[IrExpr], IrExpr]) -> IrExpr:
    """A junction with other operands; the same object where none changes, because most predicates need no rewrite."""
    operands = tuple(map(change, expr.operands))
    if all(map(operator.is_, operands, expr.operands)):
        return expr
    return and_(*operands) if isinstance(expr, ir.And) else or_(*operands)


def negate(expr: IrExpr) -> IrExpr:
    """The negation with ``Not`` pushed to the leaves: TRUE and FALSE swap, NULL stays."""
    match expr:
        case ir.TrueExpr():
            return FALSE
        case ir.FalseExpr():
            return TRUE
        case ir.NullExpr():
            return expr
        case ir.And(operands):
            return or_(*map(negate, operands))
        case ir.Or(operands):
            return and_(*map(negate, operands))
        case ir.Not(operand):
            return push_not(operand)
        case ir.Cmp(column, op, value) if op in _NEGATED:
            return ir.Cmp(column, _NEGATED[op], value)
        case ir.InList(column, values, negated):
            return ir.InList(column, values, not negated)
        case ir.StartsWith(column, prefix, negated):
            return ir.StartsWith(column, prefix, not negated)
        case ir.IsNull(column, negated):
            return ir.IsNull(column, not negated)
        case ir.IsNaN(column, negated):
            return ir.IsNaN(column, not negated)
        case ir.Between(column, low, high, inclusive):
            below, above = (CmpOp.LT, CmpOp.GT) if inclusive else (CmpOp.LE, CmpOp.GE)
            return ir.Or((ir.Cmp(column, below, low), ir.Cmp(column, above, high)))
        case ir.Bounded(column, piece, test, negated):
            return ir.Bounded(column, piece, test, not negated)
        case ir.Transformed(column, transform, leaf, source):
            negated_leaf = negate(leaf)
            assert isinstance(negated_leaf, ir.Cmp | ir.InList | ir.StartsWith)
            return ir.Transformed(column, transform, negated_leaf, negate(source))
    return ir.Not(expr)


def leaves(expr: IrExpr) -> Iterator[IrExpr]:
    """Every node without children, left to right."""
    if not expr.children:
        yield expr
    for child in expr.children:
        yield from leaves(child)


def column_of(leaf: IrExpr) -> Column | None:
    """The column of a leaf; ``None`` for constants and opaque pieces."""
    return leaf.column if isinstance(leaf, _COLUMN_LEAVES) else None


def columns(expr: IrExpr) -> dict[int, Column]:
    """The columns of all leaves that statistics can answer, by field id."""
    found = (column_of(leaf) for leaf in leaves(expr))
    return {column.field_id: column for column in found if column is not None}


def field_ids(expr: IrExpr) -> tuple[int, ...]:
    """Every field id needed to evaluate the expression on rows, sorted."""
    opaque = {i for leaf in leaves(expr) if isinstance(leaf, ir.Opaque) for i in leaf.field_ids}
    return tuple(sorted(opaque | columns(expr).keys()))


def has_opaque(expr: IrExpr) -> bool:
    """Whether a piece of the expression can only be evaluated on rows."""
    return any(isinstance(leaf, ir.Opaque | ir.Bounded) for leaf in leaves(expr))


def map_leaves(expr: IrExpr, change: Callable[[IrExpr], IrExpr]) -> IrExpr:
    """The tree with every leaf replaced; the same object where none changes."""
    match expr:
        case ir.And() | ir.Or():
            return _rebuilt(expr, lambda operand: map_leaves(operand, change))
        case ir.Not(operand):
            return ir.Not(map_leaves(operand, change))
    return change(expr)


def without_opaque(expr: IrExpr) -> IrExpr:
    """The prunable part: AND drops opaque operands, an OR with an opaque operand is TRUE."""
    return _without_opaque(push_not(expr))


def _without_opaque(expr: IrExpr) -> IrExpr:
    match expr:
        case ir.And() | ir.Or():
            return _rebuilt(expr, _without_opaque)
        case ir.Opaque() | ir.Not(ir.Opaque()):
            return TRUE
    return expr


def with_bloom(expr: IrExpr) -> IrExpr:
    """Let equality leaves use bloom filters too: ``=`` becomes ``BloomEq`` and IN becomes ``BloomInList``."""

    def change(leaf: IrExpr) -> IrExpr:
        match leaf:
            case ir.Cmp(column, CmpOp.EQ, value):
                return ir.BloomEq(column, value)
            case ir.InList(column, values, False) if values:
                return ir.BloomInList(column, values)
        return leaf

    return map_leaves(expr, change)
