"""The nodes of the row evaluator: how each kind of SQL expression becomes a vector.

Operands are evaluated where the node is, except those of AND, OR, CASE, IF and COALESCE: each of these is asked only on
the rows that get there. A constant stays a scalar; an interval is an ``Interval``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from sqlglot import exp
from sqlglot.errors import ErrorLevel

from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.predicate.literals import checked_text
from floeplan.predicate.rows import functions as fn
from floeplan.predicate.rows.intervals import Interval, add_interval, parse_interval
from floeplan.predicate.rows.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    Vector,
    cast,
    entering,
    sql_type,
)
from floeplan.predicate.spark_text import decimal_precision, parse_number, parse_timestamp

_CAST_FUNCTIONS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": INT,
    "bigint": LONG,
    "decimal": pa.decimal128(10, 0),
    "binary": BINARY,
}
Resolve: TypeAlias = "Callable[[int], pa.ChunkedArray | pa.Array]"
"""The data of a column by field id, in the Arrow type of the column."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows an expression is evaluated on."""

    count: int
    resolve: Resolve

    def column(self, field_id: int) -> pa.Array:
        """The data of a column, in one chunk and in the evaluator's type."""
        data = self.resolve(field_id)
        return entering(data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data)

    def only(self, mask: pa.Array) -> Rows:
        """The rows a mask selects."""
        return Rows(pc.sum(mask.cast(LONG)).as_py() or 0, lambda field_id: self.resolve(field_id).filter(mask))

    def spread(self, values: Vector) -> pa.Array:
        """A constant as a column."""
        return pa.repeat(values, self.count) if isinstance(values, pa.Scalar) else values


def evaluate(node: exp.Expr, rows: Rows) -> Any:
    """Evaluate one node: a vector, a scalar, or an interval."""
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise _unsupported(node)
    return handler(node, rows)


def _vector(node: exp.Expr, rows: Rows) -> Vector:
    value = evaluate(node, rows)
    if isinstance(value, Interval):
        raise TypeMismatchError(f"the interval {written(node)} stands where a value is needed")
    return value


def _unsupported(node: exp.Expr) -> UnsupportedError:
    return UnsupportedError(
        f"{described(node)} cannot be evaluated outside Spark", context={"expression": written(node)}
    )


def described(node: exp.Expr | None) -> str:
    """A function by its name, anything else as it is written."""
    text = written(node)
    name, parenthesis, _ = text.partition("(")
    return f"the function {name.lower()}()" if parenthesis and name.isidentifier() else text


def written(node: exp.Expr | None) -> str:
    """The SQL of a node, with the names of its columns instead of their field ids.

    Functions that lack arguments cannot always be written, and an argument can be missing: then the kind is named.
    """
    if node is None:
        return "a missing argument"
    named = node.transform(lambda part: exp.Var(this=part.meta["name"]) if isinstance(part, exp.Placeholder) else part)
    try:
        return named.sql("spark", unsupported_level=ErrorLevel.IGNORE)
    except (ValueError, TypeError, AttributeError, LookupError):
        return f"{node.key}(…)"


def _literal(node: exp.Literal, rows: Rows) -> Vector:
    return pa.scalar(checked_text(node.this), STRING) if node.is_string else _number(node.this)


def _number(digits: str) -> pa.Scalar:
    """A numeric literal in Spark's type for it: int, bigint, decimal, or double with an exponent."""
    value = parse_number(digits)
    if isinstance(value, float):
        return pa.scalar(value, DOUBLE)
    if isinstance(value, int):
        return pa.scalar(value, INT if -(2**31) <= value < 2**31 else LONG)
    return pa.scalar(value, pa.decimal128(decimal_precision(value), -int(value.as_tuple().exponent)))


def _negation(node: exp.Neg, rows: Rows) -> Any:
    """Unary minus; a literal takes its sign before its type, so that the least integers can be written."""
    operand = node.this
    if isinstance(operand, exp.Literal) and not operand.is_string:
        return _number("-" + operand.this)
    if isinstance(operand, exp.Cast) and isinstance(operand.this, exp.Literal) and not operand.this.is_string:
        return cast(_number("-" + operand.this.this), sql_type(operand.to))
    value = evaluate(operand, rows)
    return -value if isinstance(value, Interval) else fn.negate(value)


def _cast(node: exp.Cast, rows: Rows) -> Vector:
    if node.args.get("safe") or node.args.get("format"):
        raise UnsupportedError(f"{written(node)} cannot be evaluated outside Spark")
    source, target = node.this, sql_type(node.to)
    if pt.is_timestamp(target) and isinstance(source, exp.Literal) and source.is_string:
        return _timestamp_literal(source.this, target)
    return cast(_vector(source, rows), target)


def _timestamp_literal(text: str, target: pa.DataType) -> pa.Scalar:
    """A timestamp written in the predicate keeps nanoseconds, for columns that have them."""
    nanos = parse_timestamp(text, zoned=target.tz is not None)
    if nanos % 1000 and -(2**63) <= nanos < 2**63:
        return pa.scalar(nanos, pa.timestamp("ns", target.tz))
    return pa.scalar(nanos // 1000, target)


def _plus_minus(node: exp.Binary, rows: Rows) -> Any:
    left, right = evaluate(node.this, rows), evaluate(node.expression, rows)
    minus = isinstance(node, exp.Sub)
    if isinstance(left, Interval) and isinstance(right, Interval):
        return left + (-right if minus else right)
    if isinstance(left, Interval) and not minus:
        left, right = right, left
    if isinstance(right, Interval):
        return _shifted(left, -right if minus else right, node)
    if isinstance(left, Interval):
        raise TypeMismatchError(f"{written(node)} subtracts from an interval what is not one")
    if pt.is_date(left.type) and pt.is_integer(right.type):
        days = fn.negate(right) if minus else right
        return pc.add_checked(left.cast(INT), cast(days, INT)).cast(left.type)
    if pt.is_temporal(left.type) and pt.is_temporal(right.type):
        raise UnsupportedError(f"{written(node)} cannot be evaluated outside Spark")
    return fn.arithmetic("-" if minus else "+", left, right)


def _shifted(values: Vector, interval: Interval, node: exp.Expr) -> Vector:
    if values.type == STRING:
        values = cast(values, pa.timestamp("us", "UTC"))
    if not (pt.is_date(values.type) or pt.is_timestamp(values.type)):
        raise TypeMismatchError(f"{written(node)} adds an interval to what is neither a date nor a timestamp")
    if isinstance(values, pa.Scalar):
        return add_interval(pa.array([values], values.type), interval)[0]
    return add_interval(values, interval)


def _times(node: exp.Mul, rows: Rows) -> Any:
    left, right = evaluate(node.this, rows), evaluate(node.expression, rows)
    if isinstance(left, Interval):
        left, right = right, left
    if isinstance(right, Interval):
        if isinstance(left, pa.Scalar) and pt.is_integer(left.type) and left.is_valid:
            return right.times(left.as_py())
        raise UnsupportedError(f"{written(node)} cannot be evaluated outside Spark")
    return fn.arithmetic("*", left, right)


def _date_add(node: exp.Expr, rows: Rows) -> Vector:
    """DATE_ADD and DATE_SUB, which count days."""
    if node.args.get("unit") is not None and node.args["unit"].name.upper() not in ("DAY", "DAYS"):
        raise _unsupported(node)
    days, start = cast(_vector(node.expression, rows), INT), cast(_vector(node.this, rows), pa.date32())
    if isinstance(node, exp.DateSub):
        days = fn.negate(days)
    return pc.add_checked(start.cast(INT), days).cast(pa.date32())


def _add_months(node: exp.AddMonths, rows: Rows) -> Vector:
    months = _whole(node.expression, rows)
    return _shifted(cast(_vector(node.this, rows), pa.date32()), Interval(months=months), node)


def _whole(node: exp.Expr, rows: Rows) -> int:
    try:
        return int(_constant(node, rows).as_py())
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeMismatchError(f"{written(node)} stands where a whole number is needed") from error


def _constant_text(node: exp.Expr, rows: Rows) -> str:
    """An argument that must be constant, as the text that Spark makes of it."""
    return str(fn.text(_constant(node, rows)).as_py())


def _constant(node: exp.Expr, rows: Rows) -> pa.Scalar:
    """The value of an argument that must be constant."""
    value = _vector(node, rows)
    if not isinstance(value, pa.Scalar) or not value.is_valid:
        raise UnsupportedError(f"{written(node)} must be a constant to be evaluated outside Spark")
    return value


def _condition(node: exp.Expr, rows: Rows) -> Vector:
    """A boolean operand; text becomes one, as Spark allows."""
    value = _vector(node, rows)
    if value.type in (BOOLEAN, pa.null(), STRING):
        return cast(value, BOOLEAN)
    raise TypeMismatchError(f"{written(node)} is a {value.type}, not a condition")


def _junction(node: exp.And | exp.Or, rows: Rows) -> pa.Array:
    """AND and OR: the right side is asked only where the left does not decide."""
    decided = isinstance(node, exp.Or)
    left = rows.spread(_condition(node.this, rows))
    open_rows = pc.fill_null(pc.not_equal(left, decided), True)
    right = _where(open_rows, node.expression, rows, left)
    return (pc.or_kleene if decided else pc.and_kleene)(left, right)


def _where(mask: pa.Array, node: exp.Expr, rows: Rows, otherwise: pa.Array) -> pa.Array:
    """The node on the rows of the mask, and ``otherwise`` on the rest."""
    some = rows.only(mask)
    return pc.replace_with_mask(otherwise, mask, some.spread(_condition(node, some)))


def _case(branches: Sequence[tuple[exp.Expr, exp.Expr]], default: exp.Expr, rows: Rows) -> pa.Array:
    """CASE: every branch is asked only on the rows that reach it; the results meet in one type."""
    waiting = pa.repeat(pa.scalar(True), rows.count)
    taken: list[tuple[pa.Array, Vector]] = []
    for condition, result in branches:
        some = rows.only(waiting)
        holds = pc.fill_null(some.spread(_condition(condition, some)), False)
        mask = pc.replace_with_mask(waiting, waiting, holds)
        taken.append((mask, rows.only(mask).spread(_vector(result, rows.only(mask)))))
        waiting = pc.and_not(waiting, mask)
    taken.append((waiting, rows.only(waiting).spread(_vector(default, rows.only(waiting)))))
    return _merged(taken, rows)


def _merged(taken: Sequence[tuple[pa.Array, Vector]], rows: Rows) -> pa.Array:
    vectors = fn.unify([values for _, values in taken])
    answer = pa.nulls(rows.count, vectors[0].type)
    for (mask, _), values in zip(taken, vectors, strict=True):
        answer = pc.replace_with_mask(answer, mask, values)
    return answer


def _case_node(node: exp.Case, rows: Rows) -> pa.Array:
    subject = node.this
    pairs = [
        (exp.EQ(this=subject, expression=when.this) if subject is not None else when.this, when.args["true"])
        for when in node.args["ifs"]
    ]
    return _case(pairs, node.args.get("default") or exp.Null(), rows)


def _if(node: exp.If, rows: Rows) -> pa.Array:
    return _case([(node.this, node.args["true"])], node.args.get("false") or exp.Null(), rows)


def _coalesce(node: exp.Coalesce, rows: Rows) -> pa.Array:
    """COALESCE: the next operand is asked only where all before it are null."""
    waiting = pa.repeat(pa.scalar(True), rows.count)
    taken: list[tuple[pa.Array, Vector]] = []
    for operand in (node.this, *node.expressions):
        some = rows.only(waiting)
        values = some.spread(_vector(operand, some))
        taken.append((waiting, values))
        waiting = pc.replace_with_mask(waiting, waiting, pc.is_null(values))
    return _merged(taken, rows)


def _nullif(node: exp.Nullif, rows: Rows) -> Vector:
    left = rows.spread(_vector(node.this, rows))
    same = pc.fill_null(rows.spread(fn.compare("=", left, _vector(node.expression, rows))), False)
    return pc.if_else(same, pa.scalar(None, left.type), left)


def _in(node: exp.In, rows: Rows) -> Vector:
    value = _vector(node.this, rows)
    listed = fn.unify([value, *(_vector(item, rows) for item in node.expressions)])
    answers = [fn.compare("=", listed[0], item) for item in listed[1:]]
    result = answers[0]
    for answer in answers[1:]:
        result = pc.or_kleene(result, answer)
    return result


def _between(node: exp.Between, rows: Rows) -> Vector:
    value = _vector(node.this, rows)
    above = fn.compare(">=", value, _vector(node.args["low"], rows))
    return pc.and_kleene(above, fn.compare("<=", value, _vector(node.args["high"], rows)))


def _is(node: exp.Is, rows: Rows) -> Vector:
    if isinstance(node.expression, exp.Null):
        return pc.is_null(_vector(node.this, rows))
    if isinstance(node.expression, exp.Boolean):
        return fn.null_safe_equal(_condition(node.this, rows), pa.scalar(bool(node.expression.this)))
    raise _unsupported(node)


def _like(node: exp.Expr, rows: Rows, escape: str = "\\") -> Vector:
    function = fn.ilike if isinstance(node, exp.ILike) else fn.like
    if isinstance(node.expression, exp.Any | exp.All):
        raise _unsupported(node)
    pattern = _vector(node.expression, rows)
    if isinstance(pattern, pa.Scalar) and not pattern.is_valid:
        return pa.scalar(None, BOOLEAN)
    answer = function(_vector(node.this, rows), _constant_text(node.expression, rows), escape)
    return pc.invert(answer) if node.args.get("negate") else answer


def _regex(node: exp.RegexpLike, rows: Rows) -> Vector:
    answer = fn.regex_like(_vector(node.this, rows), _constant_text(node.expression, rows))
    return pc.invert(answer) if node.args.get("negate") else answer


def _escape(node: exp.Escape, rows: Rows) -> Vector:
    return _like(node.this, rows, _constant_text(node.expression, rows))


def _trim(node: exp.Trim, rows: Rows) -> Vector:
    characters = " " if node.expression is None else _constant_text(node.expression, rows)
    return fn.trim(_vector(node.this, rows), characters, str(node.args.get("position") or "").upper())


def _substring(node: exp.Substring, rows: Rows) -> Vector:
    count = node.args.get("length")
    start = _whole(node.args["start"], rows) if node.args.get("start") else 1
    return fn.substring(_vector(node.this, rows), start, None if count is None else _whole(count, rows))


def _affix(function: Callable[[Vector, Any], Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    return lambda node, rows: function(fn.text(_vector(node.this, rows)), _constant_text(node.expression, rows))


def _compare(op: str) -> Callable[[exp.Expr, Rows], Vector]:
    return lambda node, rows: fn.compare(op, _vector(node.this, rows), _vector(node.expression, rows))


def _binary(function: Callable[[Vector, Vector], Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    return lambda node, rows: function(_vector(node.this, rows), _vector(node.expression, rows))


def _unary(function: Callable[[Vector], Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    return lambda node, rows: function(_vector(node.this, rows))


def _part(function: Callable[[Vector], Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    return _unary(lambda values: fn.date_part(values, function))


def _round(node: exp.Round, rows: Rows) -> Vector:
    digits = node.args.get("decimals")
    return fn.round_half_up(_vector(node.this, rows), 0 if digits is None else _whole(digits, rows))


def _extreme(function: Callable[..., Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    return lambda node, rows: fn.extreme([_vector(part, rows) for part in (node.this, *node.expressions)], function)


def _is_nan(values: Vector) -> Vector:
    return pc.fill_null(pc.is_nan(cast(values, DOUBLE)), False)


def _anonymous(node: exp.Anonymous, rows: Rows) -> Vector:
    """Functions the parser does not know: casts by type name, and the null tests."""
    name, arguments = node.name.lower(), node.expressions
    if len(arguments) == 1 and name in _CAST_FUNCTIONS:
        return cast(_vector(arguments[0], rows), _CAST_FUNCTIONS[name])
    if len(arguments) == 1 and name in ("isnull", "isnotnull"):
        return (pc.is_null if name == "isnull" else pc.is_valid)(_vector(arguments[0], rows))
    raise _unsupported(node)


def _to_date(node: exp.TsOrDsToDate, rows: Rows) -> Vector:
    if node.args.get("format") is not None:
        raise _unsupported(node)
    return cast(_vector(node.this, rows), DATE)


def _truncated(node: exp.Expr, rows: Rows) -> Vector:
    return fn.truncate_instant(_vector(node.this, rows), node.args["unit"].name)


_HANDLERS: Mapping[type[exp.Expr], Callable[[Any, Rows], Any]] = {
    exp.Placeholder: lambda node, rows: rows.column(int(node.this)),
    exp.Paren: lambda node, rows: evaluate(node.this, rows),
    exp.Literal: _literal,
    exp.RawString: lambda node, rows: pa.scalar(checked_text(node.this), STRING),
    exp.HexString: lambda node, rows: pa.scalar(bytes.fromhex("0" * (len(node.this) % 2) + node.this), BINARY),
    exp.Boolean: lambda node, rows: pa.scalar(bool(node.this)),
    exp.Null: lambda node, rows: pa.scalar(None),
    exp.Interval: lambda node, rows: parse_interval(node),
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Neg: _negation,
    exp.Add: _plus_minus,
    exp.Sub: _plus_minus,
    exp.Mul: _times,
    exp.Div: _binary(fn.divide),
    exp.IntDiv: _binary(fn.int_divide),
    exp.Mod: _binary(fn.remainder),
    exp.EQ: _compare("="),
    exp.NEQ: _compare("!="),
    exp.LT: _compare("<"),
    exp.LTE: _compare("<="),
    exp.GT: _compare(">"),
    exp.GTE: _compare(">="),
    exp.NullSafeEQ: _binary(fn.null_safe_equal),
    exp.NullSafeNEQ: _binary(lambda left, right: pc.invert(fn.null_safe_equal(left, right))),
    exp.And: _junction,
    exp.Or: _junction,
    exp.Not: lambda node, rows: pc.invert(_condition(node.this, rows)),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.RegexpLike: _regex,
    exp.Escape: _escape,
    exp.Case: _case_node,
    exp.If: _if,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.IsNan: _unary(_is_nan),
    exp.StartsWith: _affix(pc.starts_with),
    exp.EndsWith: _affix(pc.ends_with),
    exp.Contains: _affix(pc.match_substring),
    exp.DPipe: lambda node, rows: fn.concat([_vector(node.this, rows), _vector(node.expression, rows)]),
    exp.Concat: lambda node, rows: fn.concat([_vector(part, rows) for part in node.expressions]),
    exp.Upper: _unary(fn.upper),
    exp.Lower: _unary(fn.lower),
    exp.Length: _unary(fn.length),
    exp.Trim: _trim,
    exp.Substring: _substring,
    exp.Abs: _unary(fn.absolute),
    exp.Floor: _unary(lambda values: fn.whole(values, pc.floor)),
    exp.Ceil: _unary(lambda values: fn.whole(values, pc.ceil)),
    exp.Round: _round,
    exp.Greatest: _extreme(pc.max_element_wise),
    exp.Least: _extreme(pc.min_element_wise),
    exp.TsOrDsToDate: _to_date,
    exp.Anonymous: _anonymous,
    exp.DayOfMonth: _part(pc.day),
    exp.Year: _part(pc.year),
    exp.Month: _part(pc.month),
    exp.Day: _part(pc.day),
    exp.Hour: _part(pc.hour),
    exp.Minute: _part(pc.minute),
    exp.Second: _part(pc.second),
    exp.TimestampTrunc: _truncated,
    exp.TsOrDsAdd: _date_add,
    exp.DateAdd: _date_add,
    exp.DateSub: _date_add,
    exp.AddMonths: _add_months,
}
