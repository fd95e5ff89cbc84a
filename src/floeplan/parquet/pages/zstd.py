"""Zstandard with contexts that are used again, and with matches that were found otherwise than by its search.

The Python package shows neither. Both are asked of the C library that it carries for its other backend (cffi), which
nothing promises to be there.

Fail-safe: where it is not, a function of it is missing, or a sample does not come back as it was, ``available`` is
false and other ways must do. What the library refuses is a ``ValueError``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from floeplan.kernels import load_kernel
from floeplan.vectors import Bytes

_LEVEL = 1
_SETTINGS = {
    "compressionLevel": _LEVEL,
    "minMatch": 3,
    "blockDelimiters": 1,
    "searchForExternalRepcodes": 1,
}
_CODED, _NOT_CODED = 1, 2
_USED = (
    "ZSTD_createCCtx ZSTD_freeCCtx ZSTD_createDCtx ZSTD_freeDCtx ZSTD_CCtx_setParameter ZSTD_compressBound "
    "ZSTD_compressSequences ZSTD_decompressDCtx ZSTD_isError ZSTD_getErrorName"
)
_SMALLEST_MATCH = 3
_BLOCK = 128 * 1024


def _loaded() -> tuple[Any, Any, Any]:
    try:
        library = import_module("zstandard._cffi")
    except ImportError:
        return None, None, None
    kernel = load_kernel("floeplan.parquet.pages._neighbours")
    if kernel is None:
        return None, None, None
    names = [*_USED.split(), "ZSTD_c_literalCompressionMode", *(f"ZSTD_c_{name}" for name in _SETTINGS)]
    return (library.ffi, library.lib, kernel) if all(hasattr(library.lib, name) for name in names) else (None,) * 3


_ffi, _lib, _kernel = _loaded()


class Decompressor:
    """A context. Not for several threads at once."""

    def __init__(self) -> None:
        self._context = _owned(_lib.ZSTD_createDCtx(), _lib.ZSTD_freeDCtx)

    def decompress(self, data: memoryview, size: int) -> Bytes:
        """The data before it was compressed, which must be of this size."""
        out = np.empty(size, dtype=np.uint8)
        source, target = _ffi.from_buffer(data), _ffi.from_buffer(out)
        found = _lib.ZSTD_decompressDCtx(self._context, target, size, source, len(data))
        if found != size:
            raise _refused(found) if found > size else ValueError(f"{found} bytes instead of {size}")
        return out


class NeighbourCompressor:
    """Compresses values by what each has in common with the one before it. Not for several threads at once.

    Bytes that stand for themselves have a code of their own, or none, which takes less time.
    """

    def __init__(self, *, coded: bool = True) -> None:
        self._context = _owned(_lib.ZSTD_createCCtx(), _lib.ZSTD_freeCCtx)
        for name, value in {**_SETTINGS, "literalCompressionMode": _CODED if coded else _NOT_CODED}.items():
            result = _lib.ZSTD_CCtx_setParameter(self._context, getattr(_lib, f"ZSTD_c_{name}"), value)
            if _lib.ZSTD_isError(result):
                raise _refused(result)
        self._holds = -1

    def _make_room(self, size: int) -> None:
        """For what becomes of so many bytes, and for as many matches as there can be."""
        self._room = np.empty(_lib.ZSTD_compressBound(size), dtype=np.uint8)
        self._rows = np.empty((size // _SMALLEST_MATCH + size // _BLOCK + 2, 4), dtype=np.uint32)
        self._to, self._matches = _ffi.from_buffer(self._room), _ffi.cast("ZSTD_Sequence *", self._rows.ctypes.data)
        self._holds = size

    def compress(self, content: memoryview, start: int, width: int) -> bytes:
        """Values that begin at ``start``: numbers of so many bytes, or byte arrays behind their lengths (0)."""
        size = content.nbytes
        if size > self._holds:
            self._make_room(size)
        count, most = _kernel.neighbours(content, start, width, self._rows), len(self._room)
        source = _ffi.from_buffer(content)
        found = _lib.ZSTD_compressSequences(self._context, self._to, most, self._matches, count, source, size)
        if found > most:
            raise _refused(found)
        return self._room[:found].tobytes()


def _owned(context: Any, free: Any) -> Any:
    """A context that is freed with its owner."""
    if context == _ffi.NULL:
        raise MemoryError("there is no memory for a context of Zstandard")
    return _ffi.gc(context, free)


def _refused(result: int) -> ValueError:
    """Results that are larger than there is room for are numbers of errors."""
    return ValueError(f"Zstandard: {_ffi.string(_lib.ZSTD_getErrorName(result)).decode()}")


def _proven() -> bool:
    """Whether numbers of more than one block come back: what is used here may change from one version to the next."""
    numbers = np.arange(_BLOCK // 8 + 100).astype("<i8").tobytes()
    try:
        made = NeighbourCompressor().compress(memoryview(numbers), 0, 8)
        return Decompressor().decompress(memoryview(made), len(numbers)).tobytes() == numbers
    except (ValueError, MemoryError):
        return False


available: bool = _lib is not None and _proven()
