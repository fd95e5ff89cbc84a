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
from sqlglot.tokenizer_core import TokenType

from floeplan.errors import UnknownColumnError
from floeplan.predicate.ir import path_text
from floeplan.predicate.names import Names, Reference
from floeplan.predicate.sql_skeleton import tokens_of

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

    def _is(self, name: str, qualifiers: Sequence[str]) -> bool:
        return name.lower() in (qualifier.lower() for qualifier in qualifiers)

    def _has(self, schema: Schema, name: str) -> bool:
        if self.case_sensitive:
            return any(field.name == name for field in schema.fields)
        return any(field.name.lower() == name.lower() for field in schema.fields)


def canonical_text(text: str, names: MergeNames) -> str:
    """An expression with every qualifier spelt as the first of its side, as an engine knows them."""
    tokens = tokens_of(text)
    parts, end = [], 0
    for at, token in enumerate(tokens[:-1]):
        follows_dot = at > 0 and tokens[at - 1].token_type is TokenType.DOT
        if tokens[at + 1].token_type is not TokenType.DOT or follows_dot or not token.text:
            continue
        for qualifiers in (names.target_qualifiers, names.source_qualifiers):
            if token.text.lower() in (qualifier.lower() for qualifier in qualifiers):
                parts += [text[end : token.start], path_text(qualifiers[:1])]
                end = token.end + 1
    return "".join([*parts, text[end:]])
