"""Bounds of shredded variants in written files: the least and the greatest value at each path with a typed column.

Rule: a path has bounds if all its values in a file are in its typed column; a variant null may be elsewhere. See the
bounds of variants in Iceberg's specification, and ``predicate.variants`` for how they are read.

Fail-safe: a path with values of another type anywhere in a file, elements of arrays, and values without an order have
no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from floeplan.parquet.footer.statistics import Side
from floeplan.predicate.variants import normalized
from floeplan.scan.variants import NULL, child_of, encoded_object

PathBounds: TypeAlias = "Mapping[str, tuple[pa.Scalar, pa.Scalar] | None]"
"""The bounds by normalized path; ``None`` where values of another type occur. Paths without values are left out."""


def variant_bounds(values: pa.ChunkedArray) -> PathBounds:
    """The bounds of the paths of a shredded variant; none if it is another struct."""
    is_variant = {field.name for field in values.type} <= {"metadata", "value", "typed_value"}
    return dict(_bounds(values.combine_chunks(), ())) if is_variant else {}


def _bounds(group: pa.StructArray, steps: tuple[str, ...]) -> Iterator[tuple[str, tuple[pa.Scalar, pa.Scalar] | None]]:
    value, typed = child_of(group, "value"), child_of(group, "typed_value")
    if typed is None:
        return
    if isinstance(typed, pa.ExtensionArray):
        typed = typed.storage
    if pt.is_struct(typed.type):
        for field, below in zip(typed.type, typed.flatten(), strict=True):
            yield from _bounds(below, (*steps, field.name))
        return
    path = normalized(steps)
    if value is not None and pc.any(pc.not_equal(value, pa.scalar(NULL, value.type))).as_py():
        yield path, None
    elif _has_order(typed.type):
        known = typed.filter(pc.invert(pc.is_nan(typed))) if pt.is_floating(typed.type) else typed
        found = pc.min_max(known)
        if found["min"].is_valid:
            yield path, (found["min"], found["max"])
        elif len(typed) > typed.null_count:
            yield path, None  # only NaN


def _has_order(type_: pa.DataType) -> bool:
    numbers = pt.is_signed_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_) or pt.is_boolean(type_)
    return bool(numbers or pt.is_date32(type_) or pt.is_timestamp(type_) or pt.is_large_string(type_))


def merged_bounds(groups: Iterable[PathBounds]) -> PathBounds:
    """The bounds of a file from those of its row groups."""
    merged: dict[str, tuple[pa.Scalar, pa.Scalar] | None] = {}
    for group in groups:
        for path, bounds in group.items():
            known = merged.get(path, bounds)
            if known is None or bounds is None:
                merged[path] = None
            else:
                merged[path] = min(known[0], bounds[0], key=_value), max(known[1], bounds[1], key=_value)
    return merged


def _value(scalar: pa.Scalar) -> Any:
    """Strings compare by code points, which is the order of their UTF-8 bytes."""
    return scalar.value if pt.is_temporal(scalar.type) else scalar.as_py()


def serialized(bounds: PathBounds, shorten: Callable[[str, Side], str | None]) -> tuple[bytes, bytes] | None:
    """Both bounds as variants, with text shortened; ``None`` if no path has both."""
    lower: dict[str, pa.Scalar] = {}
    upper: dict[str, pa.Scalar] = {}
    for path, both in bounds.items():
        if both is None:
            continue
        least, greatest = both
        if pt.is_large_string(least.type):
            texts = shorten(least.as_py(), Side.LOWER), shorten(greatest.as_py(), Side.UPPER)
            if None in texts:
                continue
            least, greatest = (pa.scalar(text, least.type) for text in texts)
        lower[path], upper[path] = least, greatest
    return (encoded_object(lower), encoded_object(upper)) if lower else None
