"""Projection: which leaf columns to read, and how they are returned as Arrow fields.

A projection selects top-level fields or paths into structs (``a.b``), by name or by field id. Leaves are fetched and
decoded; a top-level field with some or all of its leaves is returned.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from floeplan.errors import UnknownColumnError
from floeplan.parquet.footer.footer import ParquetFooter
from floeplan.parquet.footer.schema import IndexedField, LeafColumn
from floeplan.parquet.read.assemble import FieldLayout, LeafLayout, arrow_field, merge


@dataclass(frozen=True, slots=True)
class ProjectedField:
    """One top-level field and its projected leaves."""

    layout: FieldLayout
    leaves: tuple[LeafColumn, ...]

    def assemble(self, columns: Mapping[int, pa.ChunkedArray]) -> tuple[pa.Field, pa.ChunkedArray]:
        """The Arrow field and its data, from decoded leaves by index."""
        field = arrow_field(self.layout)
        parts = [columns[leaf.index] for leaf in self.leaves]
        if len(parts) == 1:
            return field.with_type(parts[0].type), parts[0]
        merged = [merge(field.type, arrays) for arrays in _aligned(parts)]
        column = pa.chunked_array(merged, type=merged[0].type)
        return field.with_type(column.type), column


def _aligned(parts: Sequence[pa.ChunkedArray]) -> Iterator[list[pa.Array]]:
    """Cut columns of equal length so that each piece lies within one chunk of every column."""
    cuts = {0, len(parts[0])}
    for part in parts:
        end = 0
        for chunk in part.chunks:
            end += len(chunk)
            cuts.add(end)
    bounds = sorted(cuts)
    for start, end in zip(bounds, bounds[1:] or bounds, strict=False):
        yield [part.slice(start, end - start).combine_chunks() for part in parts]


def project(
    footer: ParquetFooter, columns: Sequence[str | int] | None = None, *, case_sensitive: bool = True
) -> tuple[ProjectedField, ...]:
    """The projected fields in the given order; all fields of the file by default."""
    if columns is None:
        return _fields(footer, {position: top.leaf_indexes for position, top in enumerate(footer.root.children)})
    wanted: dict[int, set[int]] = {}
    for column in columns:
        matches = footer.columns.fields.find(column, case_sensitive=case_sensitive)
        if len(matches) != 1:
            raise _not_one(footer, column, matches)
        wanted.setdefault(matches[0].position, set()).update(matches[0].node.leaf_indexes)
    return _fields(footer, wanted)


def project_leaves(footer: ParquetFooter, leaves: Iterable[int]) -> tuple[ProjectedField, ...]:
    """The fields with only the given leaves inside."""
    chosen = set(leaves)
    held = {position: chosen & set(node.leaf_indexes) for position, node in enumerate(footer.root.children)}
    return _fields(footer, {position: inside for position, inside in held.items() if inside})


def without_field_ids(table: pa.Table) -> pa.Table:
    """Remove field ids from the table, for files whose field ids are incomplete and so not usable."""
    bare = [_bare(field) for field in table.schema]
    columns = [column.cast(field.type) for column, field in zip(table.columns, bare, strict=True)]
    return pa.Table.from_arrays(
        [*columns, pa.nulls(table.num_rows)], schema=pa.schema([*bare, pa.field("", pa.null())])
    )


def _bare(field: pa.Field) -> pa.Field:
    if not pa.types.is_struct(field.type):
        return field.remove_metadata()
    return pa.field(field.name, pa.struct([_bare(child) for child in field.type]), field.nullable)


def _fields(footer: ParquetFooter, wanted: Mapping[int, Iterable[int]]) -> tuple[ProjectedField, ...]:
    """Top-level fields by position, with the projected leaves of each."""
    written = _written_schema(footer)
    fields = []
    for position, leaves in wanted.items():
        node = footer.root.children[position]
        inside = [footer.leaves[leaf] for leaf in node.leaf_indexes]
        layout = FieldLayout(
            tuple(part.encoded for part in node.walk()),
            inside[0].index,
            tuple(LeafLayout(leaf.physical, leaf.path) for leaf in inside),
            footer.created_by.encode(),
            None if written is None else written.field(position),
        )
        fields.append(ProjectedField(layout, tuple(footer.leaves[leaf] for leaf in sorted(leaves))))
    return tuple(fields)


def _not_one(footer: ParquetFooter, column: str | int, matches: list[IndexedField]) -> UnknownColumnError:
    names = [node.name for node in footer.root.children]
    if matches:
        hint = f"it matches {', '.join('.'.join(match.path) for match in matches)}; use the exact name"
        return UnknownColumnError(f"column {column} of {footer.file} is ambiguous: {hint}", context={"column": column})
    close = difflib.get_close_matches(str(column), names)
    hint = f"did you mean {' or '.join(close)}?" if close else f"its columns are {', '.join(names[:20])}"
    return UnknownColumnError(f"{footer.file} has no column {column}; {hint}", context={"column": column})


def _written_schema(footer: ParquetFooter) -> pa.Schema | None:
    """The Arrow schema that the writer stored in the footer; it restores types that Parquet does not have."""
    encoded = footer.key_values.get(b"ARROW:schema")
    if encoded is None:
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return schema if len(schema) == len(footer.root.children) else None
