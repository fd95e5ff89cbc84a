"""Writes the rows of ``floeplan scan`` as CSV, JSON lines, an Arrow stream or Parquet, one table after another.

Values that CSV does not have are written as in JSON: bytes as base64, structs, lists and maps as JSON text. A line of
JSON has the values of ``--json``. Columns are converted as a whole: integers, plain text, decimals and
timestamps by Arrow, other values once for each distinct value of a batch.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as pt

from floeplan.cli.common import json_value, look_for_pandas

_BATCH_ROWS = 64 * 1024
_ESCAPED = r'["\\\x00-\x1f]'
"""What JSON escapes; text without it is quoted as it is."""
_PLAIN_SCALE = 6
"""Up to this scale, no decimal is shown with an exponent."""
_FIRST_YEAR, _LAST_YEAR = -62_135_596_800_000_000, 253_402_300_800_000_000
"""Microseconds from the year 1 to the end of the year 9999, which Python's calendar has."""


class RowWriter(Protocol):
    """Writes tables of one schema."""

    def write(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


def open_writer(format_: str, sink: BinaryIO, schema: pa.Schema) -> RowWriter:
    """A writer of one of the formats of ``commands.plan``; closing it does not close the sink."""
    look_for_pandas(schema)
    if format_ == "csv":
        return CsvWriter(sink, schema)
    if format_ == "jsonl":
        return JsonLinesWriter(sink, schema)
    if format_ == "arrow":
        return pa.ipc.new_stream(sink, schema)  # type: ignore[no-any-return]
    return pq.ParquetWriter(sink, schema)  # type: ignore[no-any-return]


class CsvWriter:
    """CSV with a header; what Arrow's writer does not take is written as JSON, without the quotes of a string."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._texts = [at for at, field in enumerate(schema) if pt.is_nested(field.type) or _is_opaque(field.type)]
        for at in self._texts:
            schema = schema.set(at, pa.field(schema.names[at], pa.string()))
        self._schema, self._writer = schema, pyarrow.csv.CSVWriter(sink, schema)

    def write(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        for at in self._texts:
            texts = pc.utf8_trim(pa.chunked_array(map(_json_texts, table.column(at).chunks), pa.string()), '"')
            table = table.set_column(at, self._schema.field(at), texts)
        self._writer.write(table)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def _is_opaque(type_: pa.DataType) -> bool:
    is_binary = pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_fixed_size_binary(type_)
    return is_binary or isinstance(type_, pa.BaseExtensionType)


class JsonLinesWriter:
    """One JSON object per line."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._sink = sink
        names = [json.dumps(name, ensure_ascii=False) for name in schema.names]
        self._before = [f"{'{' if at == 0 else ', '}{name}: " for at, name in enumerate(names)]

    def write(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        for batch in table.to_batches(_BATCH_ROWS):
            cells = zip(self._before, map(_json_texts, batch.columns), strict=True)
            texts = (part.fill_null("null") if isinstance(part, pa.Array) else part for cell in cells for part in cell)
            lines = pc.binary_join_element_wise(*texts, "}\n", "")
            self._sink.write("".join(lines.to_pylist()).encode())

    def close(self) -> None:
        """Nothing is left to write."""


def _json_texts(values: pa.Array) -> pa.Array:
    """The values as JSON; null where they are."""
    if pt.is_integer(values.type) or pt.is_boolean(values.type):
        return values.cast(pa.string())
    if pt.is_nested(values.type) or isinstance(values.type, pa.BaseExtensionType):
        return pa.array(map(_json_text, values.to_pylist()), pa.string())
    is_text = pt.is_string(values.type) or pt.is_large_string(values.type)
    if is_text and not pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        return pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")
    if (texts := _quoted(values)) is not None:
        return pc.binary_join_element_wise('"', texts, '"', "")
    encoded = values.dictionary_encode()
    return pa.array(map(_json_text, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)


def _quoted(values: pa.Array) -> pa.Array | None:
    """Decimals and timestamps as Python shows them, where Arrow does so, too: they are mostly distinct."""
    if pt.is_decimal(values.type) and 0 <= values.type.scale <= _PLAIN_SCALE:
        return values.cast(pa.string())
    if not pt.is_timestamp(values.type) or values.type.unit != "us" or values.type.tz not in (None, "UTC"):
        return None
    numbers = values.cast(pa.int64())
    span = pc.min_max(numbers).as_py()
    if span["min"] is None or span["min"] < _FIRST_YEAR or span["max"] >= _LAST_YEAR:
        return None
    texts = pc.replace_substring(numbers.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
    if pc.any(pc.equal(_fractions(numbers), 0)).as_py():
        texts = pc.replace_substring_regex(texts, r"\.000000$", "")
    return texts if values.type.tz is None else pc.binary_join_element_wise(texts, "+00:00", "")


def _fractions(micros: pa.Array) -> pa.Array:
    """What is left of whole seconds, without a sign that matters."""
    return pc.subtract(micros, pc.multiply(pc.divide(micros, 10**6), 10**6))


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(json_value(value), ensure_ascii=False)
