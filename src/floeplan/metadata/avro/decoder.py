"""Runs decode programs over Avro blocks and returns named columns.

The compiled decoder and the pure-Python one (``floeplan.kernels``) return the same columns for the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floeplan.errors import CorruptMetadataError
from floeplan.kernels import PURE_PYTHON, load_kernel
from floeplan.metadata.avro.container import Block, Buffer, corrupt
from floeplan.metadata.avro.program import BadAvro, Kind, Program, SinkSpec
from floeplan.vectors import Floats, Ints, Mask, validity_bitmap

Number = TypeVar("Number", bound=np.generic)


class Decoder(Protocol):
    """The interface of both decoders; ``_decode_fallback`` is the readable one."""

    def __init__(self, expected: int = 0) -> None: ...
    def add_domain(self) -> int: ...
    def add_sink(self, kind: int, domain: int) -> int: ...
    def row_count(self, domain: int) -> int: ...
    def decode(
        self, code: npt.NDArray[np.int32], data: Buffer, count: int, drop_sink: int = -1, drop_value: int = 0
    ) -> None: ...
    def finish(self) -> Sequence[tuple[Buffer, Buffer, Buffer]]: ...


def load_decoder(pure_python: bool = PURE_PYTHON) -> type[Decoder]:
    """The compiled decoder, or the pure-Python one when the kernel is disabled or missing."""
    kernel = load_kernel("floeplan.metadata.avro._avro_decode", pure_python=pure_python)
    decoder: type[Decoder] = (kernel or import_module("floeplan.metadata.avro._decode_fallback")).Decoder
    return decoder


DECODER = load_decoder()


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A decoded column: numbers, or bytes as offsets into ``data``; values are undefined where ``valid`` is false."""

    kind: Kind
    values: Ints | Floats
    valid: Mask
    data: Buffer
    avro_type: object

    def __len__(self) -> int:
        return len(self.valid)

    def to_arrow(self) -> pa.Array:
        """As ``int64``, ``float64`` or ``large_binary``, without copying the values."""
        bitmap, nulls = validity_bitmap(self.valid)
        if self.kind is Kind.BYTES:
            buffers = [bitmap, pa.py_buffer(self.values), pa.py_buffer(self.data)]
            return pa.Array.from_buffers(pa.large_binary(), len(self), buffers, nulls)
        type_ = pa.float64() if self.kind is Kind.FLOAT else pa.int64()
        return pa.Array.from_buffers(type_, len(self), [bitmap, pa.py_buffer(self.values)], nulls)


class ColumnReader:
    """Decodes blocks of many files into one set of named columns.

    Programs of different schemas share columns by name; a column that a file does not have is null there. ``drop`` is a
    column and a value: records with it are left out. Memory is allocated for ``expected`` records.
    """

    def __init__(
        self, decoder: type[Decoder] = DECODER, drop: tuple[str, int] | None = None, expected: int = 0
    ) -> None:
        self._decoder = decoder(expected)
        self._drop_column, self._drop_value = drop or ("", 0)
        self._sinks: dict[str, int] = {}
        self._specs: list[SinkSpec] = []
        self._domains: dict[str, int] = {"": 0}
        self._bound: dict[int, tuple[Program, npt.NDArray[np.int32]]] = {}

    @property
    def records(self) -> int:
        """Records decoded so far and not dropped."""
        return self._decoder.row_count(0)

    def read(self, program: Program, block: Block, path: str) -> None:
        """Append the records of a block.

        Raises:
            CorruptMetadataError: The block does not follow the program's schema; the reader must be dropped.
        """
        code = self._code(program, path)
        drop_sink = self._sinks.get(self._drop_column, -1)
        try:
            self._decoder.decode(code, block.data, block.count, drop_sink, self._drop_value)
        except BadAvro as error:
            raise corrupt(path, block.offset, str(error)) from error

    def finish(self) -> dict[str, RawColumn]:
        """The columns by name; the reader is empty afterwards."""
        columns = {}
        for spec, (values, valid, data) in zip(self._specs, self._decoder.finish(), strict=True):
            numbers = _view(values, np.float64) if spec.kind is Kind.FLOAT else _view(values, np.int64)
            columns[spec.name] = RawColumn(spec.kind, numbers, _view(valid, np.bool_), data, spec.avro_type)
        return columns

    def _code(self, program: Program, path: str) -> npt.NDArray[np.int32]:
        """The program with its sinks and domains replaced by the decoder's."""
        known = self._bound.get(id(program))
        if known is not None:
            return known[1]
        domains = np.array([self._domain(name) for name in program.domains], dtype=np.int32)
        sinks = np.array([self._sink(spec, path) for spec in program.sinks], dtype=np.int32)
        code = program.code.copy()
        code[program.domain_operands] = domains[code[program.domain_operands]]
        if len(sinks):
            code[program.sink_operands] = sinks[code[program.sink_operands]]
        self._bound[id(program)] = (program, code)
        return code

    def _domain(self, name: str) -> int:
        if name not in self._domains:
            self._domains[name] = self._decoder.add_domain()
        return self._domains[name]

    def _sink(self, spec: SinkSpec, path: str) -> int:
        number = self._sinks.get(spec.name)
        if number is None:
            number = self._sinks[spec.name] = self._decoder.add_sink(spec.kind, self._domain(spec.domain))
            self._specs.append(spec)
        elif (self._specs[number].kind, self._specs[number].domain) != (spec.kind, spec.domain):
            raise CorruptMetadataError(
                f"{path} stores {spec.name!r} as {spec.kind.name.lower()}, other files of the table as "
                f"{self._specs[number].kind.name.lower()}",
                context={"file": path, "column": spec.name},
            )
        return number


def _view(buffer: Buffer, dtype: type[Number]) -> npt.NDArray[Number]:
    return np.frombuffer(buffer, dtype=dtype) if len(memoryview(buffer)) else np.zeros(0, dtype=dtype)
