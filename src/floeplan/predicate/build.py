"""Building, walking and rewriting IR trees.

The constructors flatten and absorb constants, so that equal predicates have equal trees. Every rewrite here keeps
the row semantics exactly, except ``without_opaque``, which weakens: every row that
matches its input matches its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from floeplan.errors import BadInputError
from floeplan.predicate.ir import (
    FALSE,
    TRUE,
    And,
    Between,
    BloomEq,
    BloomInList,
    Cmp,
    CmpOp,
    Column,
    FalseExpr,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    NullExpr,
    Opaque,
    Or,
    StartsWith,
    TrueExpr,
)

_NEGATED = {
    CmpOp.EQ: CmpOp.NE,
    CmpOp.NE: CmpOp.EQ,
    CmpOp.LT: CmpOp.GE,
    CmpOp.GE: CmpOp.LT,
    CmpOp.GT: CmpOp.LE,
    CmpOp.LE: CmpOp.GT,
}
_COLUMN_LEAVES = (Cmp, Between, InList, StartsWith, IsNull, IsNaN, BloomEq, BloomInList)


def and_(*operands: IrExpr) -> IrExpr:
    """Conjunction, flattened; TRUE disappears and FALSE absorbs."""
    flat = _flatten(operands, And)
    if FALSE in flat:
        return FALSE
    kept = tuple(dict.fromkeys(o for o in flat if o != TRUE))
    return kept[0] if len(kept) == 1 else And(kept) if kept else TRUE


def or_(*operands: IrExpr) -> IrExpr:
    """Disjunction, flattened; FALSE disappears and TRUE absorbs."""
    flat = _flatten(operands, Or)
    if TRUE in flat:
        return TRUE
    kept = tuple(dict.fromkeys(o for o in flat if o != FALSE))
    return kept[0] if len(kept) == 1 else Or(kept) if kept else FALSE


def _flatten(operands: Iterable[IrExpr], kind: type[And] | type[Or]) -> list[IrExpr]:
    return [leaf for o in operands for leaf in (o.operands if isinstance(o, kind) else (o,))]


def conjuncts(expr: IrExpr) -> tuple[IrExpr, ...]:
    """The top-level operands of a conjunction, or the expression itself; none for TRUE."""
    if isinstance(expr, And):
        return expr.operands
    return () if expr == TRUE else (expr,)


def push_not(expr: IrExpr) -> IrExpr:
    """Push negations to the leaves; what has no negated form keeps a ``Not`` directly above the leaf."""
    match expr:
        case And(operands):
            return and_(*map(push_not, operands))
        case Or(operands):
            return or_(*map(push_not, operands))
        case Not(operand):
            return negate(operand)
    return expr


def negate(expr: IrExpr) -> IrExpr:
    """The negation with ``Not`` pushed to the leaves: TRUE and FALSE change places, NULL stays."""
    match expr:
        case TrueExpr():
            return FALSE
        case FalseExpr():
            return TRUE
        case NullExpr():
            return expr
        case And(operands):
            return or_(*map(negate, operands))
        case Or(operands):
            return and_(*map(negate, operands))
        case Not(operand):
            return push_not(operand)
        case Cmp(column, op, value) if op in _NEGATED:
            return Cmp(column, _NEGATED[op], value)
        case InList(column, values, negated):
            return InList(column, values, not negated)
        case StartsWith(column, prefix, negated):
            return StartsWith(column, prefix, not negated)
        case IsNull(column, negated):
            return IsNull(column, not negated)
        case IsNaN(column, negated):
            return IsNaN(column, not negated)
        case Between(column, low, high, inclusive):
            below, above = (CmpOp.LT, CmpOp.GT) if inclusive else (CmpOp.LE, CmpOp.GE)
            return Or((Cmp(column, below, low), Cmp(column, above, high)))
    return Not(expr)


def leaves(expr: IrExpr) -> Iterator[IrExpr]:
    """Every node without children, left to right."""
    if not expr.children:
        yield expr
    for child in expr.children:
        yield from leaves(child)


def column_of(leaf: IrExpr) -> Column | None:
    """The one column a leaf asks about, if it asks about one."""
    return leaf.column if isinstance(leaf, _COLUMN_LEAVES) else None


def columns(expr: IrExpr) -> dict[int, Column]:
    """The columns the compiled leaves ask about, by field id."""
    found = (column_of(leaf) for leaf in leaves(expr))
    return {column.field_id: column for column in found if column is not None}


def field_ids(expr: IrExpr) -> tuple[int, ...]:
    """Every field id needed to evaluate the expression on rows, sorted."""
    opaque = {i for leaf in leaves(expr) if isinstance(leaf, Opaque) for i in leaf.field_ids}
    return tuple(sorted(opaque | columns(expr).keys()))


def has_opaque(expr: IrExpr) -> bool:
    """Whether some piece of the expression can only be answered by rows."""
    return any(isinstance(leaf, Opaque) for leaf in leaves(expr))


def map_leaves(expr: IrExpr, change: Callable[[IrExpr], IrExpr]) -> IrExpr:
    """Rebuild the tree with every leaf replaced."""
    match expr:
        case And(operands):
            return and_(*(map_leaves(o, change) for o in operands))
        case Or(operands):
            return or_(*(map_leaves(o, change) for o in operands))
        case Not(operand):
            return Not(map_leaves(operand, change))
    return change(expr)


def without_opaque(expr: IrExpr) -> IrExpr:
    """The prunable part: AND drops what is opaque, OR is all or nothing, NOT only of exact parts."""
    return _weaken(push_not(expr))


def _weaken(expr: IrExpr) -> IrExpr:
    match expr:
        case And(operands):
            return and_(*map(_weaken, operands))
        case Or(operands):
            return or_(*map(_weaken, operands))
        case Opaque() | Not(Opaque()):
            return TRUE
    return expr


def with_bloom(expr: IrExpr) -> IrExpr:
    """Let equality leaves consult bloom filters too: ``=`` becomes ``BloomEq`` and IN becomes ``BloomInList``."""

    def change(leaf: IrExpr) -> IrExpr:
        match leaf:
            case Cmp(column, CmpOp.EQ, value):
                return BloomEq(column, value)
            case InList(column, values, False) if values:
                return BloomInList(column, values)
        return leaf

    return map_leaves(expr, change)


# LIKE patterns: what they match, and how much of it a range of strings can say.
#
# ``%`` stands for any run of characters, ``_`` for one character; the escape character (a backslash unless ESCAPE names
# another) makes either of them, or itself, plain. As in Spark an escape before anything else, or at the end, is an
# error.


@dataclass(frozen=True, slots=True)
class LikePattern:
    """A pattern as plain text and wildcards in turn: ``None`` is ``%`` and ``""`` is ``_``."""

    parts: tuple[str | None, ...]

    @property
    def prefix(self) -> str:
        """The plain text every match begins with."""
        first = self.parts[0] if self.parts else None
        return first or ""

    @property
    def is_plain(self) -> bool:
        """Whether there is no wildcard: LIKE is then ``=``."""
        return not self.parts or (len(self.parts) == 1 and bool(self.parts[0]))

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern is its prefix and then anything."""
        rest = self.parts[1:] if self.prefix else self.parts
        return bool(rest) and all(part is None for part in rest)

    def regex(self) -> str:
        """The pattern in RE2's syntax, anchored."""
        return r"(?s)\A" + "".join(map(_regex_part, self.parts)) + r"\z"


def _regex_part(part: str | None) -> str:
    if part is None:
        return ".*"
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in part) if part else "."


def parse_like(pattern: str, escape: str = "\\") -> LikePattern:
    """Read a pattern."""
    if len(escape) != 1:
        raise BadInputError(f"the ESCAPE of LIKE must be one character, not {escape!r}")
    parts: list[str | None] = []
    plain = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise BadInputError(f"in LIKE {pattern!r} the escape {escape!r} may only precede %, _ or itself")
            plain += escaped
        elif character in "%_":
            parts += [*([plain] if plain else []), None if character == "%" else ""]
            plain = ""
        else:
            plain += character
    return LikePattern((*parts, plain) if plain else tuple(parts))
