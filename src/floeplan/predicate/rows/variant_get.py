"""``variant_get`` and ``try_variant_get`` on rows, as Spark casts variants.

Rule: the value at the path is cast by the rules of ``TRY_CAST`` from its own type, which differs from row to row. A
path that a row lacks and a variant null are NULL. A value that cannot be cast is NULL for ``try_variant_get`` and an
error for ``variant_get`` and ``v:path::type``.

Fail-safe: a cast whose result could differ from Spark's, such as an object to text, raises ``UnsupportedError``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from sqlglot import exp
from sqlglot.errors import ParseError

from floeplan.errors import BadInputError, EvaluationError, TypeMismatchError, UnsupportedError
from floeplan.predicate.rows.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    cast,
    is_number,
    sql_type,
    unsupported,
)
from floeplan.predicate.variants import ARRAY, OBJECT, Kind, Step, decode, parse_path, value_at

_ARROW: Mapping[Kind, pa.DataType] = {
    Kind.BOOLEAN: BOOLEAN,
    Kind.INTEGER: LONG,
    Kind.DOUBLE: DOUBLE,
    Kind.FLOAT: FLOAT,
    Kind.DATE: DATE,
    Kind.TIMESTAMP: TIMESTAMP,
    Kind.TIMESTAMP_NTZ: TIMESTAMP_NTZ,
    Kind.BINARY: BINARY,
    Kind.STRING: STRING,
    Kind.UUID: STRING,
}


@dataclass(frozen=True, slots=True)
class Extraction:
    """The value at a path of a variant column, as a type; ``strict`` if a value that cannot be cast is an error."""

    field_id: int
    steps: tuple[Step, ...]
    target: pa.DataType
    strict: bool


def find_extraction(node: exp.Expr) -> Extraction | None:
    """What a node extracts: ``variant_get(v, 'path', 'type')``, ``v:path::type`` and their ``try`` forms."""
    column: exp.Expr
    match node:
        case exp.Anonymous(expressions=[exp.Placeholder() as column, exp.Literal() as path, exp.Literal() as type_]):
            name = node.name.lower()
            if name not in ("variant_get", "try_variant_get") or not (path.is_string and type_.is_string):
                return None
            strict, steps = name == "variant_get", parse_path(path.this)
            try:
                target = sql_type(exp.DataType.build(type_.this, dialect="spark"))
            except ParseError:
                raise unsupported(node) from None
        case exp.Cast(this=exp.JSONExtract() as inner):
            steps, column = _steps(inner)
            strict, target = not node.args.get("safe"), sql_type(node.to)
        case _:
            return None
    if steps is None or not isinstance(column, exp.Placeholder):
        raise unsupported(node)
    return Extraction(int(column.this), steps, target, strict)


def _steps(node: exp.Expr) -> tuple[tuple[Step, ...] | None, exp.Expr]:
    """The path of ``v:a.b:c``, and what it is a path of."""
    if not isinstance(node, exp.JSONExtract):
        return (), node
    before, column = _steps(node.this)
    steps: list[Step] = []
    for part in node.expression.expressions[1:]:
        if not isinstance(part, exp.JSONPathKey | exp.JSONPathSubscript) or not isinstance(part.this, str | int):
            return None, column
        steps.append(part.this)
    return None if before is None else (*before, *steps), column


def variant_get(variants: pa.Array, what: Extraction) -> pa.Array:
    """The values at a path, cast to a type."""
    if pt.is_null(variants.type):
        return variants.cast(what.target)
    if not pt.is_struct(variants.type):
        raise TypeMismatchError(f"variant_get() needs a variant, not a {variants.type}")
    target = what.target
    parts = [pc.struct_field(variants, [name]).to_pylist() for name in ("metadata", "value")]
    answer = pa.nulls(len(variants), target)
    rows: dict[pa.DataType, list[int]] = defaultdict(list)
    found: dict[pa.DataType, list[Any]] = defaultdict(list)
    for row, (known, metadata, value) in enumerate(zip(variants.is_valid().to_pylist(), *parts, strict=True)):
        at = value_at(metadata, value, what.steps) if known else None
        if at is None:
            continue
        decoded = decode(at)
        if decoded is None:
            nested = {OBJECT: "an object", ARRAY: "an array"}.get(at[0] & 3)
            if nested is None or target == STRING:
                what_kind = nested or "a primitive that Spark lacks"
                raise UnsupportedError(f"a cast from {what_kind} in a variant cannot be evaluated outside Spark")
            if what.strict:
                raise _not_castable(nested, target)
            continue
        kind, one = decoded
        if kind is not Kind.NULL:
            type_ = _decimal_type(one) if kind is Kind.DECIMAL else _ARROW[kind]
            rows[type_].append(row)
            found[type_].append(one)
    for type_, values in found.items():
        made = _try_cast(_array(values, type_), target)
        if what.strict and made.null_count:
            first = values[made.is_null().to_pylist().index(True)]
            raise _not_castable(repr(first), target)
        mask = [False] * len(variants)
        for row in rows[type_]:
            mask[row] = True
        answer = pc.replace_with_mask(answer, pa.array(mask), made)
    return answer


def _not_castable(value: str, target: pa.DataType) -> EvaluationError:
    return EvaluationError(f"{value} in a variant cannot be cast to {target}; use try_variant_get for NULL instead")


def _decimal_type(value: Decimal) -> pa.DataType:
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    return pa.decimal128(max(len(digits), scale, 1), scale)


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Dates and times are integers, because Python's types cover fewer years."""
    if pt.is_date32(type_):
        return pa.array(values, pa.int32()).cast(type_)
    return pa.array(values, pa.int64()).cast(type_) if pt.is_timestamp(type_) else pa.array(values, type_)


def _try_cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Null where a value cannot be cast."""
    source = values.type
    if pt.is_date(target) and (is_number(source) or source == BOOLEAN):
        return pa.nulls(len(values), target)
    if source in (DATE, BINARY) and (is_number(target) or target == BOOLEAN):
        return pa.nulls(len(values), target)
    try:
        return cast(values, target)
    except (BadInputError, pa.ArrowInvalid):
        if len(values) == 1:
            return pa.nulls(1, target)
    half = len(values) // 2
    return pa.concat_arrays([_try_cast(values[:half], target), _try_cast(values[half:], target)])
