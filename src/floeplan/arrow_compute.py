"""Arrow's compute functions, without importing ``pyarrow.compute`` for the few that a first plan calls.

``pyarrow.compute`` builds a Python function with a signature and a docstring for each of 290 kernels when it is
imported, which takes 30 ms: 5 % of a first plan. The functions here call the same kernels with the same options; every
other name is that of ``pyarrow.compute``. Methods such as ``pa.Array.cast`` import it too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa
from pyarrow._compute import CastOptions, FilterOptions, SetLookupOptions, TakeOptions, call_function


def __getattr__(name: str) -> Any:
    value = globals()[name] = getattr(import_module("pyarrow.compute"), name)
    return value


def cast(values: Any, type_: pa.DataType) -> Any:
    """As ``pyarrow.compute.cast``; a value that does not fit is an error."""
    return call_function("cast", [values], CastOptions.safe(type_))


def take(values: Any, rows: pa.Array) -> Any:
    """As ``pyarrow.compute.take``."""
    return call_function("take", [values, rows], TakeOptions())


def filter(values: Any, kept: pa.Array, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.filter``."""
    return call_function("filter", [values, kept], FilterOptions(), memory_pool)


def index_in(values: Any, value_set: pa.Array) -> Any:
    """As ``pyarrow.compute.index_in``."""
    return call_function("index_in", [values], SetLookupOptions(value_set=value_set, skip_nulls=False))


def fill_null(values: Any, value: Any) -> Any:
    """As ``pyarrow.compute.fill_null`` with one value."""
    return call_function("coalesce", [values, value if isinstance(value, pa.Scalar) else pa.scalar(value, values.type)])


def is_valid(values: Any) -> Any:
    """As ``pyarrow.compute.is_valid``."""
    return call_function("is_valid", [values])


def equal(left: Any, right: Any, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.equal``."""
    return call_function("equal", [left, right], None, memory_pool)


def less(left: Any, right: Any, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.less``."""
    return call_function("less", [left, right], None, memory_pool)


def less_equal(left: Any, right: Any, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.less_equal``."""
    return call_function("less_equal", [left, right], None, memory_pool)


def greater(left: Any, right: Any, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.greater``."""
    return call_function("greater", [left, right], None, memory_pool)


def greater_equal(left: Any, right: Any, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.greater_equal``."""
    return call_function("greater_equal", [left, right], None, memory_pool)
