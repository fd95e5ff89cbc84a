"""Names in the expressions of a merge: columns of the target and of the source side by side.

``target.x`` and ``t.x`` are the target's, ``source.x`` and ``s.x`` the source's, unless other qualifiers are given. A
name without a qualifier may be of either side; when both have it, it is ambiguous and an error.

Source columns get field ids of their own, beyond those of any table, so that a compiled expression is bound by id over
both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from sqlglot import exp, parse_one

from floeplan.errors import UnknownColumnError
from floeplan.predicate.ir import path_text
from floeplan.predicate.names import Names, Reference

FIRST_SOURCE_ID = 1_500_000_000
TARGET_QUALIFIERS, SOURCE_QUALIFIERS = ("target", "t"), ("source", "s")


def source_schema(columns: pa.Schema) -> Schema:
    """The schema of a source, with field ids no table has."""
    numbers = count(FIRST_SOURCE_ID)
    plain = _pyarrow_to_schema_without_ids(columns, format_version=3)
    return assign_fresh_schema_ids(plain, lambda: next(numbers))


def is_source(field_id: int) -> bool:
    """Whether a field is the source's; ids of metadata columns lie above both."""
    return FIRST_SOURCE_ID <= field_id < 2_000_000_000


@dataclass(frozen=True, slots=True)
class MergeNames(Names):
    """Name lookup over both sides; a side that may not be named is empty."""

    source: Schema = field(default_factory=Schema)
    target_qualifiers: Sequence[str] = TARGET_QUALIFIERS
    source_qualifiers: Sequence[str] = SOURCE_QUALIFIERS

    def find(self, path: Sequence[str]) -> Reference:
        """The field a path names, on the side it is on."""
        target, source = Names(self.schema, self.case_sensitive), Names(self.source, self.case_sensitive)
        if len(path) > 1 and self._is(path[0], self.target_qualifiers):
            return target.find(path[1:])
        if len(path) > 1 and self._is(path[0], self.source_qualifiers):
            return source.find(path[1:])
        found = [side for side in (target, source) if self._has(side.schema, path[0])]
        if len(found) == 2:
            raise UnknownColumnError(
                f"both tables have a column {path_text(path[:1])}; write "
                f"{self.target_qualifiers[0]}.{path_text(path)} or {self.source_qualifiers[0]}.{path_text(path)}",
                context={"column": path_text(path)},
            )
        return (found[0] if found else target if self.schema.fields else source).find(path)

    def is_qualifier(self, name: str) -> bool:
        """Whether a name stands for one of the sides."""
        return self._is(name, self.target_qualifiers) or self._is(name, self.source_qualifiers)

    def qualifiers_of(self, name: str, *, may_qualify: bool) -> Sequence[str]:
        """The qualifiers of the side that the first part of a name belongs to."""
        if may_qualify and self.is_qualifier(name):
            return self.target_qualifiers if self._is(name, self.target_qualifiers) else self.source_qualifiers
        return self.source_qualifiers if self._has(self.source, name) else self.target_qualifiers

    def _is(self, name: str, qualifiers: Sequence[str]) -> bool:
        return name.lower() in (qualifier.lower() for qualifier in qualifiers)

    def _has(self, schema: Schema, name: str) -> bool:
        if self.case_sensitive:
            return any(field.name == name for field in schema.fields)
        return any(field.name.lower() == name.lower() for field in schema.fields)


def qualified_text(text: str, names: MergeNames) -> str:
    """An expression with every column qualified by the first qualifier of its side, as an engine knows them."""
    parts, end = [], 0
    for column in sorted(parse_one(text, dialect="spark").find_all(exp.Column), key=_start):
        first = column.parts[0]
        has_more = len(column.parts) > 1 or isinstance(column.parent, exp.Dot)
        side = names.qualifiers_of(first.name, may_qualify=has_more)
        start, stop = first.meta["start"], first.meta["end"] + 1
        named = has_more and names.is_qualifier(first.name)
        parts += [text[end:start], path_text(side[:1]), "" if named else f".{text[start:stop]}"]
        end = stop
    return "".join([*parts, text[end:]])


def _start(column: exp.Column) -> int:
    return int(column.parts[0].meta["start"])
