"""Table metadata of format 4, which PyIceberg 0.12 refuses: its model, its paths, and their use in PyIceberg.

Iceberg 1.12.0 writes the fields of format 3. What differs (Iceberg specification, "Paths in Metadata" and Appendix E):

============  =====================================================================================================
``location``  optional: the catalog supplies it. A catalog that has only the metadata file implies the folder that
              holds ``metadata/``
paths         without a URI scheme they are relative to the location: location + ``/`` + path, nothing normalized
============  =====================================================================================================

Rule: importing this module lets PyIceberg parse such metadata, wherever it comes from; before, PyIceberg raised. A
``Table`` of format 4 always has a location, and the paths in its metadata are absolute. PyIceberg still refuses to
write these tables; ``transaction.metadata_json`` does.
Fail-safe: metadata without a location that nothing implies is refused, because its paths could name any file.
"""

from __future__ import annotations

import re
from functools import wraps
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, Field
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3, TableMetadataWrapper

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError, UnsupportedError

FORMAT = 4
METADATA_FOLDER = "metadata"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:")
_PATHS = (
    ("snapshots", "manifest_list"),
    ("metadata_log", "metadata_file"),
    ("statistics", "statistics_path"),
    ("partition_statistics", "statistics_path"),
)
"""Where table metadata holds paths of files."""


PATH_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Table properties that direct new files to other locations."""


def manifest_suffix(version: int) -> str:
    """How the name of a manifest ends; Iceberg Java tells the file format by it."""
    return "parquet" if version >= FORMAT else "avro"


def is_relative(path: str) -> bool:
    """Whether a path in metadata of format 4 is relative to the table location: it has no URI scheme."""
    return _SCHEME.match(path) is None


def resolve(location: str, path: str) -> str:
    """The path of a file that metadata of format 4 names."""
    return f"{location}/{path}" if is_relative(path) else path


def resolve_all(location: str, paths: pa.Array) -> pa.Array:
    """``resolve`` for a column of paths; nulls stay."""
    # Nearly always every path is in the table's location: a prefix is compared faster than a pattern.
    if pc.all(pc.starts_with(paths, location or ":"), min_count=0).as_py():
        return paths
    # Without a colon there is no scheme: in metadata trees that is nearly always so for every path.
    data = paths.buffers()[2]
    all_relative = data is not None and not paths.null_count and not (np.frombuffer(data, np.uint8) == ord(":")).any()
    relative = paths[0].as_py() if all_relative else first_relative(paths)
    if relative is None:
        return paths
    if not location:
        raise CorruptMetadataError(f"{relative!r} is relative to a table location that is unknown")
    # Not with Arrow's default allocator: huge pages, which it asks for, cost more than joining.
    joined = pc.binary_replace_slice(paths, 0, 0, f"{location}/", memory_pool=pa.system_memory_pool())
    if all_relative:
        return joined
    return pc.if_else(pc.match_substring_regex(paths, _SCHEME.pattern), paths, joined)


def first_relative(paths: pa.Array) -> str | None:
    """The first path that has no URI scheme."""
    relative = paths.filter(pc.invert(pc.match_substring_regex(paths, _SCHEME.pattern)))
    return str(relative[0].as_py()) if len(relative) else None


def relative_paths(location: str, paths: pa.Array) -> pa.Array:
    """Paths as format 4 stores them: relative below the table location, otherwise as they are.

    Raises:
        UnsupportedError: A path elsewhere has no URI scheme, and would be read as a relative one.
    """
    prefix = f"{location}/"
    below = pc.starts_with(paths, prefix)
    if len(paths) and pc.all(below, min_count=0).as_py():
        short = pc.utf8_slice_codeunits(paths, len(prefix))
    else:
        short = pc.if_else(below, pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    # A name with a colon can look like one with a scheme, which is an absolute path.
    if pc.any(pc.match_substring(short, ":"), min_count=0).as_py():
        looks_absolute = pc.and_(below, pc.match_substring_regex(short, _SCHEME.pattern))
        short = pc.if_else(looks_absolute, paths, short)
    elsewhere = paths.filter(pc.invert(pc.fill_null(below, True)))
    wrong = first_relative(elsewhere) if len(elsewhere) else None
    if wrong is not None:
        raise UnsupportedError(
            f"format {FORMAT} would take {wrong!r} for a relative path: it has no URI scheme and is "
            f"not below the table location {location!r}",
            context={"file": wrong},
        )
    return short


def metadata_paths(metadata: TableMetadata) -> list[str]:
    """The paths of files in table metadata."""
    return [getattr(item, attribute) for name, attribute in _PATHS for item in getattr(metadata, name)]


def location_properties(metadata: TableMetadata) -> dict[str, str]:
    """The properties of a table; in format 4 the paths of new files may be relative, and are resolved."""
    properties = dict(metadata.properties)
    if metadata.format_version >= FORMAT:
        paths = {name: properties[name] for name in PATH_PROPERTIES if properties.get(name)}
        properties |= {name: resolve(metadata.location, path) for name, path in paths.items()}
    return properties


class TableMetadataV4(TableMetadataV3):
    """Table metadata of format 4."""

    format_version: Literal[4] = Field(alias="format-version", default=4)  # type: ignore[assignment]
    location: str = Field(default="")

    def located(self, metadata_location: str | None) -> TableMetadataV4:
        """The same metadata with a location and absolute paths, given the location of its file."""
        location = self.location or _implied(metadata_location or "")
        changed: dict[str, Any] = {} if location == self.location else {"location": location}
        for name, attribute in _PATHS:
            items = getattr(self, name)
            if any(is_relative(getattr(item, attribute)) for item in items):
                paths = [resolve(location, getattr(item, attribute)) for item in items]
                pairs = zip(items, paths, strict=True)
                changed[name] = [item.model_copy(update={attribute: path}) for item, path in pairs]
        return self.model_copy(update=changed) if changed else self


def _implied(metadata_location: str) -> str:
    """The location of a table whose metadata file is in the folder of that name."""
    folder = metadata_location.rpartition("/")[0]
    location, _, name = folder.rpartition("/")
    if not location or name != METADATA_FOLDER:
        raise ValidationError(
            f"the metadata has no location, and its file {metadata_location!r} is not in a folder {METADATA_FOLDER}/ "
            "that would imply it: the catalog must supply the location"
        )
    return location


def accept_format_4(model: type[BaseModel], field: str) -> None:
    """Let a field of a PyIceberg model hold metadata of format 4 besides the formats it knows."""
    known = model.__pydantic_fields__[field]
    known.annotation = known.annotation | TableMetadataV4  # type: ignore[assignment]
    model.model_rebuild(force=True)


def _locate_tables() -> None:
    """Give every ``Table`` of format 4 a location and absolute paths."""
    usual = Table.__init__

    @wraps(usual)
    def located(self: Table, identifier: Any, metadata: Any, metadata_location: Any, *args: Any, **more: Any) -> None:
        if isinstance(metadata, TableMetadataV4):
            metadata = metadata.located(metadata_location)
        usual(self, identifier, metadata, metadata_location, *args, **more)

    Table.__init__ = located  # type: ignore[method-assign]


# Metadata files, and the results of commits. REST responses follow when the REST client is imported (rest_timeouts).
accept_format_4(TableMetadataWrapper, "root")
accept_format_4(CommitTableResponse, "metadata")
_locate_tables()
