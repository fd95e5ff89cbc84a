"""The predicate IR as Spark SQL, for rows that Spark's own reader reads.

The IR has Spark's row semantics, so every node has an exact text. Literals are written with their type and do not
depend on the session's time zone. Opaque nodes keep their source text, whose value may depend on the time zone; that is
why ``spark.read.reader_choice`` gives them to Spark only in a session in UTC, in which Floeplan evaluates them, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from uuid import UUID

from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    UUIDType,
)

from floeplan.predicate.ir import (
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
from floeplan.predicate.literals import Value, sql_literal


def spark_sql(expr: IrExpr) -> str:
    """The predicate as a Spark SQL expression over the table's current column names."""
    match expr:
        case TrueExpr():
            return "TRUE"
        case FalseExpr():
            return "FALSE"
        case NullExpr():
            return "CAST(NULL AS BOOLEAN)"
        case And(operands=operands):
            return "(" + " AND ".join(map(spark_sql, operands)) + ")"
        case Or(operands=operands):
            return "(" + " OR ".join(map(spark_sql, operands)) + ")"
        case Not(operand=operand):
            return f"(NOT {spark_sql(operand)})"
        case Opaque(text=text):
            return f"({text})"
    return _leaf(expr)


def _leaf(expr: IrExpr) -> str:
    match expr:
        case Cmp(column=column, op=op, value=value):
            return f"({_name(column)} {'<>' if op is CmpOp.NE else op} {_literal(column.type, value)})"
        case BloomEq(column=column, value=value):
            return f"({_name(column)} = {_literal(column.type, value)})"
        case Between(column=column, low=low, high=high, inclusive=inclusive):
            above, below = (">=", "<=") if inclusive else (">", "<")
            name, least, most = _name(column), _literal(column.type, low), _literal(column.type, high)
            return f"({name} {above} {least} AND {name} {below} {most})"
        case InList(column=column, values=values, negated=negated):
            return _in_list(column, values, negated)
        case BloomInList(column=column, values=values):
            return _in_list(column, values, False)
        case StartsWith(column=column, prefix=prefix, negated=negated):
            return f"({'NOT ' if negated else ''}startswith({_name(column)}, {_literal(column.type, prefix)}))"
        case IsNull(column=column, negated=negated):
            return f"({_name(column)} IS {'NOT ' if negated else ''}NULL)"
        case IsNaN(column=column, negated=negated):
            return f"({'NOT ' if negated else ''}isnan({_name(column)}))"
    raise AssertionError(f"no Spark SQL for {type(expr).__name__}")


def _in_list(column: Column, values: tuple[Value, ...], negated: bool) -> str:
    name, word = _name(column), "NOT " if negated else ""
    if not values:
        return f"({word}nullif({name} IS NULL, TRUE))"
    return f"({name} {word}IN ({', '.join(_literal(column.type, value) for value in values)}))"


def _name(column: Column) -> str:
    return quoted(*column.path)


def quoted(*path: str) -> str:
    """A column path with every name in backticks."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def unused_name(names: Iterable[str], wanted: str) -> str:
    """``wanted``, with underscores appended until no name begins with it, case-insensitively: for temporary columns."""
    taken = [name.lower() for name in names]
    while any(name.startswith(wanted) for name in taken):
        wanted += "_"
    return wanted


def _literal(type_: PrimitiveType, value: Value) -> str:
    match type_:
        case IntegerType() | LongType():
            fits = isinstance(type_, IntegerType) and -(2**31) <= int(value) < 2**31
            return f"{'INT' if fits else 'BIGINT'}('{int(value)}')"
        case FloatType() | DoubleType():
            return f"DOUBLE('{value!r}')"
        case DecimalType(precision=precision, scale=scale) if isinstance(value, Decimal):
            digits = max(precision, len(value.as_tuple().digits))
            return f"CAST('{value:f}' AS DECIMAL({digits}, {scale}))"
        case UUIDType() if isinstance(value, bytes):
            return f"'{UUID(bytes=value)}'"
    return sql_literal(type_, value)
