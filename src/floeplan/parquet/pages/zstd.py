"""Zstandard with reused contexts and with externally found matches (``ZSTD_compressSequences``).

Why a private API: neither is in the public API of the ``zstandard`` package, of pyarrow or of Python's standard
library. ``zstandard._cffi`` is the package's own binding of the C library for its cffi backend, and has both. Reused
contexts save an allocation per page; passing matches to Zstandard saves its match search, which is most of the time of
compressing pages whose values resemble the previous value. This is the only module that uses it, and
``tests/unit/test_private_apis.py`` fails when a release of ``zstandard`` changes it.

Pages are decompressed by the system's ``libzstd`` where there is one, by its public API: Debian's 1.5.4 took 10 % less
time than the 1.5.7 in the wheel of ``zstandard``, whose Huffman decoder is the one in C. Others were not measured.

Fail-safe: if the binding or one of its functions is missing, or a sample does not survive a round trip, ``available``
is false and ``data_pages.PageCodec`` uses public APIs. An error of the library is a ``ValueError``.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from floeplan.kernels import load_kernel
from floeplan.vectors import Bytes

_SETTINGS = {
    "compressionLevel": 1,
    "minMatch": 3,
    "blockDelimiters": 1,
    "searchForExternalRepcodes": 1,
}
_CODED, _NOT_CODED = 1, 2
_USED = (
    "ZSTD_createCCtx ZSTD_freeCCtx ZSTD_createDCtx ZSTD_freeDCtx ZSTD_CCtx_setParameter ZSTD_compressBound "
    "ZSTD_compressSequences ZSTD_decompressDCtx ZSTD_isError ZSTD_getErrorName"
)
_DECOMPRESSION = {
    "ZSTD_createDCtx": "void *(*)(void)",
    "ZSTD_freeDCtx": "size_t (*)(void *)",
    "ZSTD_decompressDCtx": "size_t (*)(void *, void *, size_t, const void *, size_t)",
}
_OLDEST = 10502
"""Older versions of the system's library are not used; 1.5.2."""
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


def _decompression(name: str = "libzstd.so.1") -> tuple[Any, Any, Any]:
    """The functions that make and free a context and decompress with it: of the system's library, or of the package."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(name)
        if library.ZSTD_versionNumber() >= _OLDEST:
            found = [ctypes.cast(getattr(library, one), ctypes.c_void_p).value for one in _DECOMPRESSION]
            return tuple(_ffi.cast(type_, at) for type_, at in zip(_DECOMPRESSION.values(), found, strict=True))
    return tuple(_ffi.addressof(_lib, one) for one in _DECOMPRESSION)


_functions: tuple[Any, Any, Any] = (None,) * 3 if _lib is None else _decompression()
_create, _free, _decompress = _functions


class Decompressor:
    """A reused decompression context. Not thread-safe."""

    def __init__(self) -> None:
        self._context = _owned(_create(), _free)

    def addresses(self) -> tuple[int, int]:
        """The addresses of ``ZSTD_decompressDCtx`` and of the context, for a kernel."""
        return int(_ffi.cast("uintptr_t", _decompress)), int(_ffi.cast("uintptr_t", self._context))

    def decompress(self, data: memoryview, size: int) -> Bytes:
        """Decompress to exactly ``size`` bytes."""
        out = np.empty(size, dtype=np.uint8)
        source, target = _ffi.from_buffer(data), _ffi.from_buffer(out)
        found = _decompress(self._context, target, size, source, len(data))
        if found != size:
            raise _refused(found) if found > size else ValueError(f"{found} bytes instead of {size}")
        return out


class NeighbourCompressor:
    """Compresses values by the bytes that each shares with the previous one. Not thread-safe.

    ``coded`` entropy-codes the literals; without it compression takes less time.
    """

    def __init__(self, *, coded: bool = True) -> None:
        self._context = _owned(_lib.ZSTD_createCCtx(), _lib.ZSTD_freeCCtx)
        for name, value in {**_SETTINGS, "literalCompressionMode": _CODED if coded else _NOT_CODED}.items():
            result = _lib.ZSTD_CCtx_setParameter(self._context, getattr(_lib, f"ZSTD_c_{name}"), value)
            if _lib.ZSTD_isError(result):
                raise _refused(result)
        self._holds = -1

    def compress(self, content: memoryview, start: int, width: int) -> bytes:
        """Compress values that begin at ``start``: numbers of ``width`` bytes, or length-prefixed byte arrays (0)."""
        size = content.nbytes
        if size > self._holds:
            # Buffers for the input and the largest possible number of matches.
            self._room = np.empty(_lib.ZSTD_compressBound(size), dtype=np.uint8)
            self._rows = np.empty((size // _SMALLEST_MATCH + size // _BLOCK + 2, 4), dtype=np.uint32)
            self._to, self._matches = _ffi.from_buffer(self._room), _ffi.cast("ZSTD_Sequence *", self._rows.ctypes.data)
            self._holds = size
        count, most = _kernel.neighbours(content, start, width, self._rows), len(self._room)
        source = _ffi.from_buffer(content)
        found = _lib.ZSTD_compressSequences(self._context, self._to, most, self._matches, count, source, size)
        if found > most:
            raise _refused(found)
        return self._room[:found].tobytes()


def _owned(context: Any, free: Any) -> Any:
    """Free the context with its owner."""
    if context == _ffi.NULL:
        raise MemoryError("cannot allocate a Zstandard context")
    return _ffi.gc(context, free)


def _refused(result: int) -> ValueError:
    """The error of a result code; codes are larger than any possible size."""
    return ValueError(f"Zstandard: {_ffi.string(_lib.ZSTD_getErrorName(result)).decode()}")


def _proven() -> bool:
    """Whether numbers of more than one block survive a round trip."""
    numbers = np.arange(_BLOCK // 8 + 100).astype("<i8").tobytes()
    try:
        made = NeighbourCompressor().compress(memoryview(numbers), 0, 8)
        return Decompressor().decompress(memoryview(made), len(numbers)).tobytes() == numbers
    except (ValueError, MemoryError):
        return False


available: bool = _lib is not None and _proven()
