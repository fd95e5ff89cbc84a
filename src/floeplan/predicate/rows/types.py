"""Types and casts of the row evaluator: Spark's ANSI rules on Arrow vectors.

``normalize`` converts every input to one Arrow type per Spark type: ``large_string``, ``large_binary``, signed
integers, ``decimal128``, ``date32``, ``time64[us]``, timestamps in ``us`` or ``ns``, with zone UTC for TIMESTAMP and
without for TIMESTAMP_NTZ. A UUID becomes the string that Spark shows.

Fail-safe: an overflow or malformed text is an error, as in ANSI mode; a cast whose result could differ from Spark's
(double to text, double to decimal) raises ``UnsupportedError``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg import types

from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.predicate import spark_text
from floeplan.predicate.spark_text import MAX_PRECISION, decimal_precision, parse_number

if TYPE_CHECKING:
    from sqlglot import exp

Vector: TypeAlias = "pa.Array | pa.Scalar"

STRING, BINARY, BOOLEAN = pa.large_string(), pa.large_binary(), pa.bool_()
INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
DATE, TIME = pa.date32(), pa.time64("us")
TIMESTAMP, TIMESTAMP_NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")

_SQL_TYPES = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": INT,
    "BIGINT": LONG,
    "FLOAT": FLOAT,
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "BINARY": BINARY,
    "DATE": DATE,
    "TIME": TIME,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}
CAST_FUNCTIONS = frozenset({"tinyint", "smallint", "int", "bigint", "decimal", "binary"})
"""Spark's functions that cast to the type they are named after and that sqlglot does not parse as casts."""
_ICEBERG_TYPES: dict[pa.DataType, types.PrimitiveType] = {
    BOOLEAN: types.BooleanType(),
    INT: types.IntegerType(),
    LONG: types.LongType(),
    FLOAT: types.FloatType(),
    DOUBLE: types.DoubleType(),
    STRING: types.StringType(),
    BINARY: types.BinaryType(),
    DATE: types.DateType(),
    TIME: types.TimeType(),
    TIMESTAMP: types.TimestamptzType(),
    TIMESTAMP_NTZ: types.TimestampType(),
}


def sql_type(node: exp.DataType) -> pa.DataType:
    """The Arrow type of a SQL type name."""
    from sqlglot import exp

    kind = node.this.value if isinstance(node.this, exp.DType) else ""
    parameters = [int(one.this.name) for one in node.expressions if isinstance(one, exp.DataTypeParam)]
    if kind == "DECIMAL":
        precision, scale = [*parameters, 10, 0][:2] if len(parameters) != 1 else (parameters[0], 0)
        if not 0 < precision <= MAX_PRECISION or not 0 <= scale <= precision:
            raise TypeMismatchError(f"{node.sql('spark')} is not a decimal of at most {MAX_PRECISION} digits")
        return pa.decimal128(precision, scale)
    type_ = _SQL_TYPES.get(kind)
    if type_ is None or parameters:
        raise UnsupportedError(f"the type {node.sql('spark')} cannot be evaluated outside Spark")
    return type_


def number_scalar(digits: str) -> pa.Scalar:
    """A numeric literal in Spark's type for it: int, bigint, decimal, or double with an exponent."""
    value = parse_number(digits)
    if isinstance(value, float):
        return pa.scalar(value, DOUBLE)
    if isinstance(value, int):
        return pa.scalar(value, INT if -(2**31) <= value < 2**31 else LONG)
    return pa.scalar(value, pa.decimal128(decimal_precision(value), -int(value.as_tuple().exponent)))


def iceberg_type(type_: pa.DataType) -> types.PrimitiveType | None:
    """The Iceberg type with the same values, if there is one."""
    if pt.is_decimal(type_):
        return types.DecimalType(type_.precision, type_.scale)
    return _ICEBERG_TYPES.get(type_)


def normalize(values: pa.Array) -> pa.Array:
    """Convert a column to the one Arrow type of its Spark type."""
    type_ = values.type
    if isinstance(type_, pa.UuidType):
        return _uuid_text(values.storage)
    if pt.is_string(type_) or pt.is_string_view(type_):
        return values.cast(STRING)
    if pt.is_binary(type_) or pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_):
        return values.cast(BINARY)
    if pt.is_timestamp(type_):
        unit = "ns" if type_.unit == "ns" else "us"
        return values.cast(pa.timestamp(unit, None if type_.tz is None else "UTC"))
    return values


def _uuid_text(values: pa.Array) -> pa.Array:
    """UUIDs as lower-case text with dashes, which is what Spark compares."""
    raw = np.frombuffer(b"".join(pc.fill_null(values, b"\0" * 16).to_pylist()), dtype=np.uint8).reshape(-1, 16)
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    hexed = np.stack([digits[raw >> 4], digits[raw & 15]], axis=2).reshape(-1, 32)
    dash = np.full((len(raw), 1), ord("-"), dtype=np.uint8)
    groups = np.split(hexed, [8, 12, 16, 20], axis=1)
    text = np.concatenate([part for group in groups for part in (group, dash)][:-1], axis=1)
    offsets = pa.array(np.arange(len(raw) + 1) * 36, type=pa.int64())
    joined = pa.Array.from_buffers(STRING, len(raw), [None, offsets.buffers()[1], pa.py_buffer(text.tobytes())])
    return pc.if_else(values.is_valid(), joined, pa.scalar(None, STRING))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type to which Spark's ANSI rules cast two operands."""
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    for a, b in ((left, right), (right, left)):
        common = _common_type(a, b)
        if common is not None:
            return common
    raise TypeMismatchError(f"a {left} and a {right} cannot be compared or combined")


def _common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """``common_type`` for one order of its operands."""
    if a == STRING:
        if pt.is_integer(b):
            return LONG
        return DOUBLE if is_number(b) else b
    if pt.is_integer(a) and pt.is_integer(b):
        return a if a.bit_width >= b.bit_width else None
    if is_number(a) and pt.is_floating(b):
        return DOUBLE
    if pt.is_decimal(a) and (pt.is_decimal(b) or pt.is_integer(b)):
        return wider_decimal(a, as_decimal_type(b))
    if pt.is_timestamp(a) and (pt.is_date(b) or pt.is_timestamp(b)):
        nanos = a.unit == "ns" or (pt.is_timestamp(b) and b.unit == "ns")
        return pa.timestamp("ns" if nanos else "us", a.tz or (b.tz if pt.is_timestamp(b) else None))
    return None


def is_number(type_: pa.DataType) -> bool:
    """Integers, decimals and floats."""
    return bool(pt.is_integer(type_) or pt.is_decimal(type_) or pt.is_floating(type_))


def as_decimal_type(type_: pa.DataType) -> pa.DataType:
    """The decimal that holds an integer type."""
    return pa.decimal128(20 if type_.bit_width == 64 else 10, 0) if pt.is_integer(type_) else type_


def wider_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """A decimal type that holds both exactly, with more than 38 digits if necessary."""
    scale = max(a.scale, b.scale)
    precision = scale + max(a.precision - a.scale, b.precision - b.scale)
    return _decimal_type(precision, scale)


def _decimal_type(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else pa.decimal256(precision, scale)


def cast(values: Vector, target: pa.DataType) -> Vector:
    """``CAST(values AS target)``."""
    source = values.type
    if source == target:
        return values
    if pt.is_null(source):
        return values.cast(target)
    if source == STRING:
        return values.cast(BINARY) if target == BINARY else map_distinct(values, _text_parser(target), target)
    if target == STRING:
        if pt.is_integer(source) or pt.is_boolean(source) or pt.is_date(source) or source == BINARY:
            return values.cast(STRING)
        raise UnsupportedError(f"a cast from {source} to text cannot be evaluated outside Spark")
    if is_number(source) and is_number(target):
        return _number_to_number(values, target)
    if pt.is_boolean(source) and is_number(target):
        return cast(values.cast(INT), target)
    if is_number(source) and pt.is_boolean(target):
        return pc.not_equal(values, pa.scalar(0, source))
    if (pt.is_date(source) or pt.is_timestamp(source)) and pt.is_timestamp(target):
        return values.cast(target)
    if pt.is_timestamp(source) and pt.is_date(target):
        return pc.floor_temporal(values.cast(pa.timestamp(source.unit)), unit="day").cast(DATE)
    raise UnsupportedError(f"a cast from {source} to {target} cannot be evaluated outside Spark")


def _number_to_number(values: Vector, target: pa.DataType) -> Vector:
    source = values.type
    if pt.is_floating(target):
        if pt.is_decimal(source):
            return values.cast(STRING).cast(target)  # Arrow's own cast is not correctly rounded
        return values.cast(target, safe=False)
    if pt.is_integer(target):
        if pt.is_integer(source):
            return values.cast(target)
        return pc.trunc(with_room(values) if pt.is_decimal(source) else values).cast(target)
    if pt.is_floating(source):
        raise UnsupportedError("a cast from double to decimal cannot be evaluated outside Spark")
    if pt.is_integer(source):
        return values.cast(as_decimal_type(source)).cast(target)  # Arrow's own cast wants room for every integer
    if pt.is_decimal(source) and target.scale < source.scale:
        values = pc.round(with_room(values), ndigits=target.scale, round_mode="half_towards_infinity")
    return values.cast(target)


def with_room(values: Vector) -> Vector:
    """Decimals with one more digit, because rounding may carry."""
    return values.cast(_decimal_type(values.type.precision + 1, values.type.scale))


def _text_parser(target: pa.DataType) -> Callable[[str], object]:
    """The function that casts text to a type."""
    if pt.is_integer(target):
        return lambda text: spark_text.parse_integer(text, target.bit_width)
    if pt.is_timestamp(target):
        nanos_per_unit = 1 if target.unit == "ns" else 1000
        return lambda text: spark_text.parse_timestamp(text, zoned=target.tz is not None) // nanos_per_unit
    if pt.is_decimal(target):
        return lambda text: spark_text.parse_decimal(text, target.precision, target.scale)
    readers: dict[pa.DataType, Callable[[str], object]] = {
        BOOLEAN: spark_text.parse_boolean,
        FLOAT: spark_text.parse_double,
        DOUBLE: spark_text.parse_double,
        DATE: spark_text.parse_date,
        TIME: lambda text: spark_text.parse_time(text) // 1000,
    }
    return readers[target]


def map_distinct(values: Vector, change: Callable[[str], object], target: pa.DataType) -> Vector:
    """Apply a Python function to each distinct string."""
    if isinstance(values, pa.Scalar):
        return pa.scalar(None if values.as_py() is None else change(values.as_py()), target)
    encoded = values.dictionary_encode()
    changed = [change(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(changed, type=target).take(encoded.indices)


# SQL expressions in error messages.


def described(node: exp.Expr | None) -> str:
    """A function by its name, anything else as written."""
    text = written(node)
    name, parenthesis, _ = text.partition("(")
    return f"the function {name.lower()}()" if parenthesis and name.isidentifier() else text


def written(node: exp.Expr | None) -> str:
    """The SQL of a node, with the names of its columns instead of their field ids."""
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel

    if node is None:
        return "a missing argument"
    named = node.transform(lambda part: exp.Var(this=part.meta["name"]) if isinstance(part, exp.Placeholder) else part)
    try:
        return named.sql("spark", unsupported_level=ErrorLevel.IGNORE)
    except (ValueError, TypeError, AttributeError, LookupError):
        return f"{node.key}(…)"  # sqlglot cannot generate some functions whose arguments are missing


def unsupported(node: exp.Expr, what: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"{what or described(node)} cannot be evaluated outside Spark", context={"expression": written(node)}
    )
