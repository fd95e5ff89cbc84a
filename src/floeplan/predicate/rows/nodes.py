"""Evaluate a sqlglot tree on rows: how each kind of SQL expression becomes a vector.

Operands are evaluated on all rows, except those of AND, OR, CASE, IF and COALESCE: each of these is evaluated only on
the rows that reach it, as in Spark, so that a guard such as ``b <> 0 AND a / b > 1`` works. A constant stays a scalar;
an interval is an ``Interval``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from sqlglot import exp

from floeplan.errors import BadInputError, TypeMismatchError, UnsupportedError
from floeplan.predicate.geometries import find_extent, intersects_extent
from floeplan.predicate.literals import checked_text
from floeplan.predicate.rows import functions as fn
from floeplan.predicate.rows.arrow_columns import Rows
from floeplan.predicate.rows.types import (
    BINARY,
    BOOLEAN,
    CAST_FUNCTIONS,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Vector,
    cast,
    map_distinct,
    number_scalar,
    sql_type,
    unsupported,
    with_room,
    written,
)
from floeplan.predicate.rows.variant_get import find_extraction, variant_get
from floeplan.predicate.spark_text import Interval, parse_interval, parse_like, parse_timestamp

COMPARISONS: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}


def evaluate(node: exp.Expr, rows: Rows) -> Any:
    """Evaluate one node: a vector, a scalar, or an interval."""
    kind = type(node)
    if (unary := _UNARY.get(kind)) is not None:
        return unary(_vector(node.this, rows))
    if (binary := _BINARY.get(kind)) is not None:
        return binary(_vector(node.this, rows), _vector(node.expression, rows))
    if (handler := _HANDLERS.get(kind)) is not None:
        return handler(node, rows)
    raise unsupported(node)


# Operands: a vector, a condition, or a constant.


def _vector(node: exp.Expr, rows: Rows) -> Vector:
    value = evaluate(node, rows)
    if isinstance(value, Interval):
        raise TypeMismatchError(f"the interval {written(node)} stands where a value is needed")
    return value


def _column(node: exp.Expr, rows: Rows) -> pa.Array:
    return rows.spread(_vector(node, rows))


def _condition(node: exp.Expr, rows: Rows) -> Vector:
    """A boolean operand; text is cast to boolean, as in Spark."""
    value = _vector(node, rows)
    if value.type in (BOOLEAN, pa.null(), STRING):
        return cast(value, BOOLEAN)
    raise TypeMismatchError(f"{written(node)} is a {value.type}, not a condition")


def _constant(node: exp.Expr, rows: Rows) -> pa.Scalar:
    """The value of an argument that must be constant."""
    value = _vector(node, rows)
    if not isinstance(value, pa.Scalar) or not value.is_valid:
        raise UnsupportedError(f"{written(node)} must be a constant to be evaluated outside Spark")
    return value


def _constant_text(node: exp.Expr, rows: Rows) -> str:
    """An argument that must be constant, cast to text as in Spark."""
    return str(cast(_constant(node, rows), STRING).as_py())


def _constant_integer(node: exp.Expr, rows: Rows) -> int:
    try:
        return int(_constant(node, rows).as_py())
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeMismatchError(f"{written(node)} stands where a whole number is needed") from error


# Literals and casts.


def _literal(node: exp.Literal, rows: Rows) -> Vector:
    return pa.scalar(checked_text(node.this), STRING) if node.is_string else number_scalar(node.this)


def _negation(node: exp.Neg, rows: Rows) -> Any:
    """Unary minus; a literal takes its sign before its type, so that the least integers can be written."""
    operand = node.this
    if isinstance(operand, exp.Literal) and not operand.is_string:
        return number_scalar("-" + operand.this)
    if isinstance(operand, exp.Cast) and isinstance(operand.this, exp.Literal) and not operand.this.is_string:
        return cast(number_scalar("-" + operand.this.this), sql_type(operand.to))
    value = evaluate(operand, rows)
    return -value if isinstance(value, Interval) else fn.negate(value)


def _interval(node: exp.Interval, rows: Rows) -> Interval:
    """``INTERVAL 7 DAYS``, ``INTERVAL '1 day 3 hours'`` or ``INTERVAL '1-2' YEAR TO MONTH``."""
    quantity, unit = node.this, node.args.get("unit")
    sign = "-" if isinstance(quantity, exp.Neg) else ""
    quantity = quantity.this if sign else quantity
    if not isinstance(quantity, exp.Literal):
        raise BadInputError(f"{node.sql('spark')} is not an interval of a fixed length")
    text = sign + str(quantity.this).strip()
    if isinstance(unit, exp.IntervalSpan):
        return parse_interval(text, unit.this.name.upper(), unit.expression.name.upper())
    return parse_interval(text, "" if unit is None else unit.name)


def _cast(node: exp.Cast, rows: Rows) -> Vector:
    if (extraction := find_extraction(node)) is not None:
        return variant_get(rows.column(extraction.field_id), extraction)
    if node.args.get("safe") or node.args.get("format"):
        raise unsupported(node, written(node))
    source, target = node.this, sql_type(node.to)
    if pt.is_timestamp(target) and isinstance(source, exp.Literal) and source.is_string:
        # A timestamp literal keeps its nanoseconds, for columns of nanoseconds. Spark itself has none.
        nanos = parse_timestamp(source.this, zoned=target.tz is not None)
        if nanos % 1000 and -(2**63) <= nanos < 2**63:
            return pa.scalar(nanos, pa.timestamp("ns", target.tz))
        return pa.scalar(nanos // 1000, target)
    return cast(_vector(source, rows), target)


# Arithmetic, with dates and intervals.


def _plus_minus(node: exp.Binary, rows: Rows) -> Any:
    left, right = evaluate(node.this, rows), evaluate(node.expression, rows)
    minus = isinstance(node, exp.Sub)
    if isinstance(left, Interval) and isinstance(right, Interval):
        return left + (-right if minus else right)
    if isinstance(left, Interval) and not minus:
        left, right = right, left
    if isinstance(right, Interval):
        return _shift(left, -right if minus else right, node)
    if isinstance(left, Interval):
        raise TypeMismatchError(f"{written(node)} subtracts from an interval what is not one")
    if pt.is_date(left.type) and pt.is_integer(right.type):
        return fn.add_days(left, cast(fn.negate(right) if minus else right, INT))
    if pt.is_temporal(left.type) and pt.is_temporal(right.type):
        raise unsupported(node, written(node))
    return fn.arithmetic("-" if minus else "+", left, right)


def _times(node: exp.Mul, rows: Rows) -> Any:
    left, right = evaluate(node.this, rows), evaluate(node.expression, rows)
    if isinstance(left, Interval):
        left, right = right, left
    if not isinstance(right, Interval):
        return fn.arithmetic("*", left, right)
    if isinstance(left, pa.Scalar) and pt.is_integer(left.type) and left.is_valid:
        return right * left.as_py()
    raise unsupported(node, written(node))


def _shift(values: Vector, interval: Interval, node: exp.Expr) -> Vector:
    """Add an interval to dates, timestamps, or text that holds timestamps."""
    if values.type == STRING:
        values = cast(values, TIMESTAMP)
    if not (pt.is_date(values.type) or pt.is_timestamp(values.type)):
        raise TypeMismatchError(f"{written(node)} adds an interval to what is neither a date nor a timestamp")
    return fn.add_interval(values, interval)


def _date_add(node: exp.Expr, rows: Rows) -> Vector:
    """DATE_ADD and DATE_SUB, which count days."""
    if node.args.get("unit") is not None and node.args["unit"].name.upper() not in ("DAY", "DAYS"):
        raise unsupported(node)
    days, start = cast(_vector(node.expression, rows), INT), cast(_vector(node.this, rows), DATE)
    return fn.add_days(start, fn.negate(days) if isinstance(node, exp.DateSub) else days)


def _add_months(node: exp.AddMonths, rows: Rows) -> Vector:
    months = Interval(months=_constant_integer(node.expression, rows))
    return _shift(cast(_vector(node.this, rows), DATE), months, node)


# AND, OR, CASE, IF and COALESCE: later operands are evaluated only on the rows that reach them.


def _and_or(node: exp.And | exp.Or, rows: Rows) -> pa.Array:
    decisive = isinstance(node, exp.Or)
    left = rows.spread(_condition(node.this, rows))
    undecided = pc.fill_null(pc.not_equal(left, decisive), True)
    rest = rows.filter(undecided)
    right = pc.replace_with_mask(left, undecided, rest.spread(_condition(node.expression, rest)))
    return (pc.or_kleene if decisive else pc.and_kleene)(left, right)


def _case(node: exp.Case | exp.If, rows: Rows) -> pa.Array:
    """CASE and IF; ``CASE x WHEN y`` compares ``x = y``."""
    if isinstance(node, exp.If):
        branches, default = [node], node.args.get("false")
    else:
        branches, default = node.args["ifs"], node.args.get("default")
    subject = node.this if isinstance(node, exp.Case) else None
    waiting = pa.repeat(pa.scalar(True), rows.count)
    results: list[tuple[pa.Array, pa.Array]] = []
    for branch in branches:
        condition = branch.this if subject is None else exp.EQ(this=subject, expression=branch.this)
        some = rows.filter(waiting)
        holds = pc.fill_null(some.spread(_condition(condition, some)), False)
        mask = pc.replace_with_mask(waiting, waiting, holds)
        results.append((mask, _column(branch.args["true"], rows.filter(mask))))
        waiting = pc.and_not(waiting, mask)
    results.append((waiting, _column(default or exp.Null(), rows.filter(waiting))))
    return _combine(results, rows)


def _coalesce(node: exp.Coalesce, rows: Rows) -> pa.Array:
    waiting = pa.repeat(pa.scalar(True), rows.count)
    results: list[tuple[pa.Array, pa.Array]] = []
    for operand in (node.this, *node.expressions):
        values = _column(operand, rows.filter(waiting))
        results.append((waiting, values))
        waiting = pc.replace_with_mask(waiting, waiting, pc.is_null(values))
    return _combine(results, rows)


def _combine(results: list[tuple[pa.Array, pa.Array]], rows: Rows) -> pa.Array:
    """Results of different rows as one column, in their common type; a later result replaces an earlier one."""
    vectors = fn.unify([values for _, values in results])
    answer = pa.nulls(rows.count, vectors[0].type)
    for (mask, _), values in zip(results, vectors, strict=True):
        answer = pc.replace_with_mask(answer, mask, values)
    return answer


def _nullif(node: exp.Nullif, rows: Rows) -> Vector:
    left = _column(node.this, rows)
    same = pc.fill_null(rows.spread(fn.compare("=", left, _vector(node.expression, rows))), False)
    return pc.if_else(same, pa.scalar(None, left.type), left)


# Predicates.


def _in(node: exp.In, rows: Rows) -> Vector:
    value, *listed = fn.unify([_vector(item, rows) for item in (node.this, *node.expressions)])
    return reduce(pc.or_kleene, [fn.compare("=", value, item) for item in listed])


def _between(node: exp.Between, rows: Rows) -> Vector:
    value = _vector(node.this, rows)
    above = fn.compare(">=", value, _vector(node.args["low"], rows))
    return pc.and_kleene(above, fn.compare("<=", value, _vector(node.args["high"], rows)))


def _is(node: exp.Is, rows: Rows) -> Vector:
    if isinstance(node.expression, exp.Null):
        return pc.is_null(_vector(node.this, rows))
    if isinstance(node.expression, exp.Boolean):
        return fn.null_safe_equal(_condition(node.this, rows), pa.scalar(bool(node.expression.this)))
    raise unsupported(node)


def _like(node: exp.Expr, rows: Rows, escape: str = "\\") -> Vector:
    """LIKE with a constant pattern; ILIKE compares both sides in lower case."""
    if isinstance(node.expression, exp.Any | exp.All):
        raise unsupported(node)
    pattern = _vector(node.expression, rows)
    if isinstance(pattern, pa.Scalar) and not pattern.is_valid:
        return pa.scalar(None, BOOLEAN)
    values, text = cast(_vector(node.this, rows), STRING), _constant_text(node.expression, rows)
    if isinstance(node, exp.ILike):
        values, text = fn.lower(values), text.lower()
    answer = pc.match_substring_regex(values, parse_like(text, escape).regex())
    return pc.invert(answer) if node.args.get("negate") else answer


def _regex(node: exp.RegexpLike, rows: Rows) -> Vector:
    answer = fn.regex_like(_vector(node.this, rows), _constant_text(node.expression, rows))
    return pc.invert(answer) if node.args.get("negate") else answer


# Functions.


def _trim(node: exp.Trim, rows: Rows) -> Vector:
    """TRIM, LTRIM and RTRIM; without characters, of spaces only (not of all white space)."""
    characters = " " if node.expression is None else _constant_text(node.expression, rows)
    side = str(node.args.get("position") or "").upper()
    function = {"LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}.get(side, pc.utf8_trim)
    return function(cast(_vector(node.this, rows), STRING), characters=characters)


def _substring(node: exp.Substring, rows: Rows) -> Vector:
    """SUBSTRING: positions start at 1; a negative one counts from the end."""
    length = node.args.get("length")
    start = _constant_integer(node.args["start"], rows) if node.args.get("start") else 1
    first = start - 1 if start > 0 else start
    stop = None if length is None else first + max(_constant_integer(length, rows), 0)
    if first < 0 and stop is not None and stop >= 0:
        stop = None
    return pc.utf8_slice_codeunits(cast(_vector(node.this, rows), STRING), first, stop)


def _substring_test(function: Callable[[Vector, str], Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    return lambda node, rows: function(cast(_vector(node.this, rows), STRING), _constant_text(node.expression, rows))


def _round(node: exp.Round, rows: Rows) -> Vector:
    """ROUND of integers and decimals. Spark rounds the decimal text of a double, which Arrow does not."""
    values, digits = _vector(node.this, rows), node.args.get("decimals")
    if pt.is_floating(values.type):
        raise UnsupportedError("round() of a double cannot be evaluated outside Spark; cast it to a decimal there")
    values = with_room(values) if pt.is_decimal(values.type) else values
    count = 0 if digits is None else _constant_integer(digits, rows)
    return pc.round(values, ndigits=count, round_mode="half_towards_infinity")


def _extreme(function: Callable[..., Vector]) -> Callable[[exp.Expr, Rows], Vector]:
    """GREATEST or LEAST, nulls left out."""

    def evaluated(node: exp.Expr, rows: Rows) -> Vector:
        vectors = fn.unify([_vector(part, rows) for part in (node.this, *node.expressions)])
        if pt.is_floating(vectors[0].type):
            raise UnsupportedError("greatest() and least() of doubles cannot be evaluated outside Spark")
        return function(*vectors, skip_nulls=True)

    return evaluated


def _to_date(node: exp.TsOrDsToDate, rows: Rows) -> Vector:
    if node.args.get("format") is not None:
        raise unsupported(node)
    return cast(_vector(node.this, rows), DATE)


def _unknown_function(node: exp.Anonymous, rows: Rows) -> Vector:
    """Functions without a node in sqlglot: casts by type name, and null tests."""
    name, arguments = node.name.lower(), node.expressions
    if len(arguments) == 1 and name in CAST_FUNCTIONS:
        return cast(_vector(arguments[0], rows), sql_type(exp.DataType.build(name, dialect="spark")))
    if len(arguments) == 1 and name in ("isnull", "isnotnull"):
        return (pc.is_null if name == "isnull" else pc.is_valid)(_vector(arguments[0], rows))
    if (extraction := find_extraction(node)) is not None:
        return variant_get(rows.column(extraction.field_id), extraction)
    if (extent := find_extent(node)) is not None:
        return intersects_extent(rows.column(extent[0]), extent[1])
    raise unsupported(node)


_UNARY: Mapping[type[exp.Expr], Callable[[Vector], Vector]] = {
    exp.IsNan: lambda values: pc.fill_null(pc.is_nan(cast(values, DOUBLE)), False),
    exp.Upper: lambda values: map_distinct(cast(values, STRING), str.upper, STRING),  # full case mapping, as in Java
    exp.Lower: fn.lower,
    exp.Length: fn.length,
    exp.Abs: fn.absolute,
    exp.Floor: lambda values: fn.whole(values, pc.floor),
    exp.Ceil: lambda values: fn.whole(values, pc.ceil),
    exp.Year: fn.date_part(pc.year),
    exp.Month: fn.date_part(pc.month),
    exp.Day: fn.date_part(pc.day),
    exp.DayOfMonth: fn.date_part(pc.day),
    exp.Hour: fn.date_part(pc.hour),
    exp.Minute: fn.date_part(pc.minute),
    exp.Second: fn.date_part(pc.second),
}
_BINARY: Mapping[type[exp.Expr], Callable[[Vector, Vector], Vector]] = {
    exp.Div: fn.divide,
    exp.IntDiv: fn.int_divide,
    exp.Mod: fn.remainder,
    **{kind: partial(fn.compare, op) for kind, op in COMPARISONS.items()},
    exp.NullSafeNEQ: lambda left, right: pc.invert(fn.null_safe_equal(left, right)),
    exp.DPipe: lambda left, right: fn.concat([left, right]),
}
_HANDLERS: Mapping[type[exp.Expr], Callable[[Any, Rows], Any]] = {
    exp.Placeholder: lambda node, rows: rows.column(int(node.this)),
    exp.Paren: lambda node, rows: evaluate(node.this, rows),
    exp.Literal: _literal,
    exp.RawString: lambda node, rows: pa.scalar(checked_text(node.this), STRING),
    exp.HexString: lambda node, rows: pa.scalar(bytes.fromhex("0" * (len(node.this) % 2) + node.this), BINARY),
    exp.Boolean: lambda node, rows: pa.scalar(bool(node.this)),
    exp.Null: lambda node, rows: pa.scalar(None),
    exp.Interval: _interval,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Neg: _negation,
    exp.Add: _plus_minus,
    exp.Sub: _plus_minus,
    exp.Mul: _times,
    exp.And: _and_or,
    exp.Or: _and_or,
    exp.Not: lambda node, rows: pc.invert(_condition(node.this, rows)),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.RegexpLike: _regex,
    exp.Escape: lambda node, rows: _like(node.this, rows, _constant_text(node.expression, rows)),
    exp.Case: _case,
    exp.If: _case,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.StartsWith: _substring_test(pc.starts_with),
    exp.EndsWith: _substring_test(pc.ends_with),
    exp.Contains: _substring_test(pc.match_substring),
    exp.Concat: lambda node, rows: fn.concat([_vector(part, rows) for part in node.expressions]),
    exp.Trim: _trim,
    exp.Substring: _substring,
    exp.Round: _round,
    exp.Greatest: _extreme(pc.max_element_wise),
    exp.Least: _extreme(pc.min_element_wise),
    exp.TsOrDsToDate: _to_date,
    exp.Anonymous: _unknown_function,
    exp.TimestampTrunc: lambda node, rows: fn.truncate_instant(_vector(node.this, rows), node.args["unit"].name),
    exp.TsOrDsAdd: _date_add,
    exp.DateAdd: _date_add,
    exp.DateSub: _date_add,
    exp.AddMonths: _add_months,
}
