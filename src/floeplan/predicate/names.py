"""Find columns by name in a schema.

A path is a top-level column followed by struct fields. Fail-safe: an unknown name is an error that suggests the nearest
ones; without case sensitivity, a name that matches two columns is an error; fields inside lists and maps are not
columns of the row.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType, StructType

from floeplan.errors import TypeMismatchError, UnknownColumnError
from floeplan.opaque_types import is_opaque
from floeplan.predicate.ir import Column, path_text


class Reference(NamedTuple):
    """A field of the schema that a predicate refers to."""

    field: NestedField
    path: tuple[str, ...]

    @property
    def column(self) -> Column | None:
        """The column to prune on; ``None`` for a struct, list or map, and for a type that cannot be read."""
        type_ = self.field.field_type
        if not isinstance(type_, PrimitiveType) or is_opaque(type_):
            return None
        return Column(self.field.field_id, type_, self.path)

    @property
    def name(self) -> str:
        """The path as it is written in SQL."""
        return path_text(self.path)


@dataclass(frozen=True, slots=True)
class Names:
    """Name lookup in one schema."""

    schema: Schema
    case_sensitive: bool = True

    def find(self, path: Sequence[str]) -> Reference:
        """The field a path names."""
        fields, found = self.schema.fields, list[str]()
        for depth, part in enumerate(path):
            same = [field for field in fields if field.name == part]
            if not same and not self.case_sensitive:
                same = [field for field in fields if field.name.lower() == part.lower()]
            if not same:
                raise self._unknown(path)
            if len(same) > 1:
                name, matches = path_text(path), [field.name for field in same]
                raise UnknownColumnError(
                    f"the name {name} is ambiguous: it matches {', '.join(sorted(matches))}; write the exact name",
                    context={"column": name, "matches": matches},
                )
            found.append(same[0].name)
            if depth == len(path) - 1:
                return Reference(same[0], tuple(found))
            type_ = same[0].field_type
            if isinstance(type_, StructType):
                fields = type_.fields
                continue
            name, parent = path_text(path), path_text(found)
            if isinstance(type_, PrimitiveType):
                message = f"there is no column {name}: {parent} is {type_} and has no fields"
                raise UnknownColumnError(message, context={"column": name})
            message = f"{name} is inside {parent}, which has several values per row and cannot be compared"
            raise TypeMismatchError(message, context={"column": name})
        raise UnknownColumnError("a column name is empty")

    def dotted(self, name: str) -> Reference:
        """The field of a dotted name, as in PyIceberg; a top-level name that contains dots takes precedence."""
        if "." not in name or any(field.name == name for field in self.schema.fields):
            return self.find((name,))
        paths = [path for path, _ in _walk(self.schema.fields, ())]
        same = [path for path in paths if ".".join(path) == name]
        if not same and not self.case_sensitive:
            same = [path for path in paths if ".".join(path).lower() == name.lower()]
        # Several paths of one name: ``find`` prefers the path that is split at every dot, or reports the ambiguity.
        return self.find(same[0] if len(same) == 1 else name.split("."))

    def column(self, path: Sequence[str]) -> Column:
        """The column a path names, which must be of a primitive type."""
        return self._primitive(self.find(path))

    def find_dotted(self, name: str) -> Column:
        """The column of a dotted name, which must be of a primitive type."""
        return self._primitive(self.dotted(name))

    def _primitive(self, reference: Reference) -> Column:
        column = reference.column
        if column is None:
            raise not_comparable(reference)
        return column

    def find_id(self, field_id: int, name: str) -> Column:
        """The column with this field id."""
        found = leaf_columns(self.schema).get(field_id)
        if found is not None:
            return found
        raise UnknownColumnError(f"the schema has no column {name} (field id {field_id})", context={"column": name})

    def _unknown(self, path: Sequence[str]) -> UnknownColumnError:
        """The error for a name that no column has, with the nearest names."""
        name = path_text(path)
        known = {".".join(p): path_text(p) for p, _ in _walk(self.schema.fields, ())}
        folded = {dotted.lower(): text for dotted, text in known.items()}
        close = [folded[n] for n in difflib.get_close_matches(".".join(path).lower(), folded, n=3)]
        if len(path) > 1 and ".".join(path[1:]) in known:
            close = [known[".".join(path[1:])]]
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; columns are {', '.join(known.values())}"
        return UnknownColumnError(f"there is no column {name}{hint}", context={"column": name, "close": close})


def not_comparable(reference: Reference) -> TypeMismatchError:
    """The error for a struct, list or map, or a type that cannot be read, where a primitive column is needed."""
    type_ = reference.field.field_type
    if is_opaque(type_):
        what, hint = str(type_), "filter by another column"
    else:
        what, hint = type(type_).__name__.removesuffix("Type").lower(), "name a primitive field inside it"
    return TypeMismatchError(
        f"column {reference.name} is a {what} and cannot be compared; {hint}",
        context={"column": reference.name, "type": str(type_)},
    )


def leaf_columns(schema: Schema) -> dict[int, Column]:
    """The primitive columns by field id, those in structs included; fields in lists and maps have no bounds."""
    found = ((path, field.field_id, field.field_type) for path, field in _walk(schema.fields, ()))
    return {
        i: Column(i, type_, path)
        for path, i, type_ in found
        if isinstance(type_, PrimitiveType) and not is_opaque(type_)
    }


def _walk(fields: Sequence[NestedField], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], NestedField]]:
    for field in fields:
        path = (*prefix, field.name)
        yield path, field
        if isinstance(field.field_type, StructType):
            yield from _walk(field.field_type.fields, path)
