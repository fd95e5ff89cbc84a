"""Table metadata as JSON, where PyIceberg writes the metadata file itself (SQL, Hive, Glue and other catalogs).

PyIceberg 0.12 models all of format 3 but refuses to serialise it, and silently drops fields its models do not have.
``floeplan.format4`` adds format 4; relative paths of a metadata file become absolute in the next one, as Iceberg 1.12.0
writes them.

Rule: within ``writable_metadata``, PyIceberg's own models serialise metadata of every format, compressed when the table
property ``write.metadata.compression-codec`` is ``gzip``. Fail-safe: before that,
the previous metadata file goes through the same models; if they lose or change anything in it (encryption keys, fields
of later formats), the commit is refused and names what would be lost. Outside the context PyIceberg is unchanged.
Catalogs that write metadata themselves (REST) do not use this.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1, TableMetadataV2, TableMetadataV3
from pyiceberg.typedef import IcebergBaseModel

from floeplan.errors import InvalidOptionError, UnsupportedError
from floeplan.format4 import is_relative
from floeplan.metadata.files import read_file

_io: ContextVar[FileIO | None] = ContextVar("floeplan_metadata_io", default=None)
_check: ContextVar[Callable[[str], None] | None] = ContextVar("floeplan_metadata_check", default=None)
_MOST_NAMED = 5
_GZIP = b"\x1f\x8b"
_CODEC = "write.metadata.compression-codec"
_PATH = TableProperties.WRITE_METADATA_PATH
_SUFFIX = ".metadata.json"
_ZEROS = re.compile(r"(:\d\d\.\d*?)0+(?=$|\+)")
_NO_SNAPSHOT = -1
"""How Java writes that a table has no current snapshot."""


@contextmanager
def writable_metadata(io: FileIO, check: Callable[[str], None] | None = None) -> Iterator[None]:
    """Let catalogs serialise table metadata of every format, provided that nothing is lost.

    Args:
        io: Reads the metadata file that the new one replaces.
        check: Sees the location of each metadata file before it is written, and may raise.
    """
    _guard_models()
    tokens = _io.set(io), _check.set(check)
    try:
        yield
    finally:
        _io.reset(tokens[0])
        _check.reset(tokens[1])


@cache
def _guard_models() -> None:
    """Replace the serialisation of PyIceberg's models, once; outside of ``writable_metadata`` it is as before."""
    for model in (TableMetadataV1, TableMetadataV2, TableMetadataV3):
        model.model_dump_json = _guarded(model.model_dump_json)  # type: ignore[method-assign]
    usual = LocationProvider.new_table_metadata_file_location
    LocationProvider.new_table_metadata_file_location = _with_codec(usual)  # type: ignore[method-assign]


def _with_codec(usual: Callable[..., str]) -> Callable[..., str]:
    def location(self: LocationProvider, new_version: int = 0) -> str:
        found = usual(self, new_version)
        if _io.get() is not None and is_relative(found) and not found.startswith("/"):
            # Format 4 allows paths relative to the table; PyIceberg would write relative to the folder of the process.
            raise UnsupportedError(
                f"{_PATH} of the table is the relative path {self.table_properties[_PATH]!r}: commit through a REST "
                "catalog",
                context={"property": _PATH},
            )
        check = _check.get()
        if check is not None:
            check(found)
        codec = self.table_properties.get(_CODEC, "none").strip().lower()
        if _io.get() is None or codec == "none":
            return found
        if codec != "gzip":
            raise InvalidOptionError(
                f"table property {_CODEC} is {codec!r} but must be none or gzip", context={"property": _CODEC}
            )
        # PyIceberg compresses by the name of the file, which is the one that Java gives it.
        return found.removesuffix(_SUFFIX) + ".gz" + _SUFFIX

    return location


def _guarded(usual: Callable[..., str]) -> Callable[..., str]:
    def dump(self: Any, *args: Any, **kwargs: Any) -> str:
        io = _io.get()
        if io is None:
            return usual(self, *args, **kwargs)
        if self.metadata_log:
            check_lossless(self.metadata_log[-1].metadata_file, io)
        whole = self.model_copy(update=_completed(self))
        try:
            return usual(whole, *args, **kwargs)
        except NotImplementedError:
            return IcebergBaseModel.model_dump_json(whole, *args, **kwargs)

    return dump


def _completed(metadata: Any) -> dict[str, Any]:
    """The fields that the format requires and PyIceberg leaves out or gets wrong."""
    # This machine's clock may be behind, and Java refuses metadata that is older than its newest log entry.
    logged = [entry.timestamp_ms for entry in (*metadata.snapshot_log, *metadata.metadata_log)]
    fields: dict[str, Any] = {"last_updated_ms": max([metadata.last_updated_ms, *logged])}
    if isinstance(metadata, TableMetadataV1):
        # Format 1 requires the current schema and spec in ``schema`` and ``partition-spec``; PyIceberg omits them.
        fields["partition_spec"] = [field.model_dump() for field in metadata.spec().fields]
        fields["schema_"] = metadata.schema()
    elif isinstance(metadata, TableMetadataV3) and metadata.next_row_id is None:
        # Format 3 requires ``next-row-id``; PyIceberg creates tables without it.
        ends = ((snapshot.first_row_id or 0) + (snapshot.added_rows or 0) for snapshot in metadata.snapshots)
        fields["next_row_id"] = max(ends, default=0)
    return fields


def check_lossless(location: str, io: FileIO) -> None:
    """Refuse a metadata file that PyIceberg's models cannot represent completely."""
    data = read_file(location, io)
    text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode()
    before = json.loads(text)
    if not before.get("location"):
        raise UnsupportedError(
            f"{location} has no table location, which a new metadata file must state: commit through a REST catalog",
            context={"file": location},
        )
    after = json.loads(IcebergBaseModel.model_dump_json(TableMetadataUtil.parse_raw(text)))
    # Later formats do not use the keys of format 1.
    unused = {"schema", "partition-spec"} if before["format-version"] > 1 else set()
    lost = sorted(set(losses(before, after)) - unused)
    if lost:
        named = ", ".join(lost[:_MOST_NAMED]) + (" and more" if len(lost) > _MOST_NAMED else "")
        raise UnsupportedError(
            f"cannot write the table's metadata without losing {named}: commit through a REST catalog",
            context={"file": location, "lost": lost},
        )


def losses(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths that one document has and the other has not; null and empty values do not count."""
    if before is None or before == after or (path == "current-snapshot-id" and before == _NO_SNAPSHOT):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from losses(value, after.get(key), f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from losses(left, right, f"{path}[{index}]")
    elif before not in ({}, []) and not (path.endswith("-default") and _same_time(before, after)):
        yield path


def _same_time(before: Any, after: Any) -> bool:
    """Whether two texts differ in zeros at the end of a fraction of a second only, which Java leaves out."""
    texts = [_ZEROS.sub(r"\1", text) for text in (before, after) if isinstance(text, str)]
    return len(texts) == 2 and texts[0] == texts[1]
