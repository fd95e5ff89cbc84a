"""The predicate IR: nodes over columns bound by field id.

Every node has exact row semantics, which are Spark's: three-valued logic, NaN equal to itself and greater than every
other value, -0.0 equal to 0.0. ``evaluate`` evaluates the nodes conservatively over statistics, ``rows`` exactly over
rows.

Literal values are canonical, so that no later stage converts them: ``int`` for integers, dates (days), times
(microseconds) and timestamps (microseconds, or nanoseconds for the ``_ns`` types), ``bool``, ``float`` for float
and double, ``Decimal`` at the column's scale, ``str``, and ``bytes`` for binary, fixed and UUID. Never ``None``:
a comparison with NULL is ``NULL_PREDICATE``.

``InList`` without values represents a comparison that no value satisfies and that is still NULL for nulls: ``x IN ()``
is FALSE for a value and NULL for a null; negated, it is TRUE for a value and NULL for a null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from pyiceberg.types import PrimitiveType

from floeplan.predicate.literals import Value, sql_literal, sql_literals


class CmpOp(StrEnum):
    """Comparison operators; ``NULL_SAFE_EQ`` never yields NULL."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    NULL_SAFE_EQ = "<=>"

    __hash__ = str.__hash__  # that of enumerations is a Python function, and predicates are cache keys


_BARE_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)
_KEYWORD = re.compile(
    "alter|and|any|as|between|call|case|create|cross|current_date|current_timestamp|current_user|distinct|drop|else|"
    "except|execute|explain|false|fetch|for|from|glob|grant|having|ilike|inner|insert|intersect|into|join|lateral|like|"
    "minus|not|notnull|on|optimize|or|outer|partitioned_by|prepare|qualify|regexp|rename|returning|revoke|rlike|rollback|"
    "select|serdeproperties|session_user|show|tablesample|then|true|uncache|union|using|vacuum|values|when|where|with|xor",
    re.IGNORECASE,
)


def path_text(path: Sequence[str]) -> str:
    """A column path as SQL; names that are not plain identifiers, or are keywords, are quoted with backticks."""
    return ".".join(
        name if _BARE_NAME.fullmatch(name) and not _KEYWORD.fullmatch(name) else "`" + name.replace("`", "``") + "`"
        for name in path
    )


_column_text = lru_cache(maxsize=1024)(path_text)
"""Cached, because reports and explanations name the same few columns again and again."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column bound by field id; ``path`` is for messages only."""

    field_id: int
    type: PrimitiveType
    path: tuple[str, ...]

    def __hash__(self) -> int:
        """By field id alone: predicates are cache keys, and hashing PyIceberg types is slow."""
        return hash(self.field_id)

    def __str__(self) -> str:
        return _column_text(self.path)


class IrExpr:
    """Base of all nodes."""

    __slots__ = ()

    @property
    def children(self) -> tuple[IrExpr, ...]:
        """Direct sub-expressions."""
        return ()


@dataclass(frozen=True, slots=True)
class TrueExpr(IrExpr):
    """Every row matches."""

    def __str__(self) -> str:
        return "true"


@dataclass(frozen=True, slots=True)
class FalseExpr(IrExpr):
    """No row matches."""

    def __str__(self) -> str:
        return "false"


@dataclass(frozen=True, slots=True)
class NullExpr(IrExpr):
    """NULL on every row: a comparison with a NULL literal."""

    def __str__(self) -> str:
        return "null"


@dataclass(frozen=True, slots=True)
class Cmp(IrExpr):
    """``column op value``."""

    column: Column
    op: CmpOp
    value: Value

    def __str__(self) -> str:
        return f"{self.column} {self.op} {sql_literal(self.column.type, self.value)}"


@dataclass(frozen=True, slots=True)
class Between(IrExpr):
    """``low <= column <= high``; both ends open when not ``inclusive``."""

    column: Column
    low: Value
    high: Value
    inclusive: bool = True

    def __str__(self) -> str:
        low, high = sql_literal(self.column.type, self.low), sql_literal(self.column.type, self.high)
        if self.inclusive:
            return f"{self.column} BETWEEN {low} AND {high}"
        return f"({self.column} > {low} AND {self.column} < {high})"


@dataclass(frozen=True, slots=True)
class InList(IrExpr):
    """``column IN (values)``, or NOT IN; the values hold no NULL."""

    column: Column
    values: tuple[Value, ...]
    negated: bool = False

    def __str__(self) -> str:
        inner = sql_literals(self.column.type, self.values)
        return f"{self.column} {'NOT ' if self.negated else ''}IN ({inner})"


@dataclass(frozen=True, slots=True)
class StartsWith(IrExpr):
    """``column LIKE 'prefix%'`` on a string, or NOT LIKE."""

    column: Column
    prefix: str
    negated: bool = False

    def __str__(self) -> str:
        pattern = self.prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        return f"{self.column} {'NOT ' if self.negated else ''}LIKE {sql_literal(self.column.type, pattern)}"


@dataclass(frozen=True, slots=True)
class IsNull(IrExpr):
    """``column IS NULL``, or IS NOT NULL; never yields NULL."""

    column: Column
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.column} IS {'NOT ' if self.negated else ''}NULL"


@dataclass(frozen=True, slots=True)
class IsNaN(IrExpr):
    """``isnan(column)``: FALSE for a null, as in Spark; never yields NULL."""

    column: Column
    negated: bool = False

    def __str__(self) -> str:
        return f"{'NOT ' if self.negated else ''}isnan({self.column})"


@dataclass(frozen=True, slots=True)
class BloomEq(IrExpr):
    """``column = value``, evaluated by statistics and bloom filter."""

    column: Column
    value: Value

    def __str__(self) -> str:
        return f"bloom({self.column} = {sql_literal(self.column.type, self.value)})"


@dataclass(frozen=True, slots=True)
class BloomInList(IrExpr):
    """``column IN (values)``, evaluated by statistics and bloom filter."""

    column: Column
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"bloom({InList(self.column, self.values)})"


@dataclass(frozen=True, slots=True)
class Transformed(IrExpr):
    """A condition on a partition transform of a column, such as ``bucket[4](id) = 3``; NULL where the column is null.

    ``leaf`` is the condition on the transformed value: its column has the field id of the source and the type of the
    result. ``source`` is the same condition on ``column`` itself, with opaque pieces where there is none (a hash).
    Partition values of the same transform answer ``leaf`` exactly; everything else answers ``source``.
    """

    column: Column
    transform: str
    leaf: Cmp | InList | StartsWith
    source: IrExpr

    def __str__(self) -> str:
        name = str(self.column)
        return f"{self.transform}({name}){str(self.leaf).removeprefix(name)}"


@dataclass(frozen=True, slots=True)
class Opaque(IrExpr):
    """A boolean piece that statistics cannot answer and that is evaluated on rows.

    ``expression`` is what ``floeplan.predicate.rows`` evaluates: SQL, or a leaf that statistics must not answer.
    ``field_ids`` are the columns it reads. Two opaque pieces are equal if their texts are.
    """

    text: str
    field_ids: tuple[int, ...]
    expression: object = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Bounded(IrExpr):
    """A condition on what is computed from a variant or geometry: ``test`` on statistics, ``piece`` on rows.

    ``test`` is a ``floeplan.predicate.evaluate.BoundsTest``.
    """

    column: Column
    piece: Opaque
    test: object
    negated: bool = False

    def __str__(self) -> str:
        return f"NOT ({self.piece})" if self.negated else str(self.piece)


@dataclass(frozen=True, slots=True)
class _Junction(IrExpr):
    operands: tuple[IrExpr, ...]

    @property
    def children(self) -> tuple[IrExpr, ...]:
        """Direct sub-expressions."""
        return self.operands


class And(_Junction):
    """Conjunction of at least two operands."""

    __slots__ = ()

    def __str__(self) -> str:
        return " AND ".join(f"({o})" if isinstance(o, Or) else str(o) for o in self.operands)


class Or(_Junction):
    """Disjunction of at least two operands."""

    __slots__ = ()

    def __str__(self) -> str:
        return " OR ".join(f"({o})" if isinstance(o, And) else str(o) for o in self.operands)


@dataclass(frozen=True, slots=True)
class Not(IrExpr):
    """Negation: TRUE and FALSE swap, NULL stays."""

    operand: IrExpr

    @property
    def children(self) -> tuple[IrExpr, ...]:
        """Direct sub-expressions."""
        return (self.operand,)

    def __str__(self) -> str:
        return f"NOT ({self.operand})"


TRUE = TrueExpr()
FALSE = FalseExpr()
NULL_PREDICATE = NullExpr()
