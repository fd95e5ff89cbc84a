"""Arrow's compute functions, without importing ``pyarrow.compute`` for the few that a first plan calls.

``pyarrow.compute`` builds a Python function with a signature and a docstring for each of 290 kernels when it is
imported, which takes 30 ms: 5 % of a first plan. The functions here call the same kernels with the same options; every
other name is that of ``pyarrow.compute``. Methods such as ``pa.Array.cast`` import it too.
"""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyarrow._compute import CastOptions, FilterOptions, SetLookupOptions, TakeOptions, call_function

_BINARY, _TEXT = (pa.binary(), pa.large_binary()), (pa.string(), pa.large_string())


def __getattr__(name: str) -> Any:
    value = globals()[name] = getattr(import_module("pyarrow.compute"), name)
    return value


def cast(values: Any, type_: pa.DataType) -> Any:
    """As ``pyarrow.compute.cast``; a value that does not fit is an error."""
    return call_function("cast", [values], CastOptions.safe(type_))


def take(values: Any, rows: pa.Array, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.take``."""
    return call_function("take", [values, rows], TakeOptions(), memory_pool)


def filter(values: Any, kept: pa.Array, memory_pool: pa.MemoryPool | None = None) -> Any:
    """As ``pyarrow.compute.filter``."""
    return call_function("filter", [values, kept], FilterOptions(), memory_pool)


def index_in(values: Any, value_set: pa.Array) -> Any:
    """As ``pyarrow.compute.index_in``."""
    return call_function("index_in", [values], SetLookupOptions(value_set=value_set, skip_nulls=False))


def fill_null(values: Any, value: Any) -> Any:
    """As ``pyarrow.compute.fill_null`` with one value."""
    return call_function("coalesce", [values, value if isinstance(value, pa.Scalar) else scalar(value, values.type)])


def scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """As ``pa.scalar``, which imports pandas if it is installed, to recognise its objects: 0.2 s of a first query.

    Values and types for which that is not simple are left to it.
    """
    buffers = None
    if value is None:
        return pa.nulls(1, type_)[0]
    if isinstance(value, bool):
        buffers = [bytes([value])] if pa.types.is_boolean(type_) else None
    elif isinstance(value, int) and pa.types.is_integer(type_):
        signed, bits = pa.types.is_signed_integer(type_), type_.bit_width
        if -(1 << bits - 1) * signed <= value < 1 << bits - signed:
            buffers = [value.to_bytes(bits // 8, "little", signed=signed)]
    elif isinstance(value, float) and pa.types.is_float64(type_):
        buffers = [struct.pack("<d", value)]
    elif (isinstance(value, bytes) and type_ in _BINARY) or (isinstance(value, str) and type_ in _TEXT):
        data = value if isinstance(value, bytes) else value.encode()
        buffers = [struct.pack("<2q" if type_ in (_BINARY[1], _TEXT[1]) else "<2i", 0, len(data)), data]
    if buffers is None:
        return pa.scalar(value, type_)
    return pa.Array.from_buffers(type_, 1, [None, *map(pa.py_buffer, buffers)], 0)[0]


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
