"""Loads tables from a configured PyIceberg catalog, a metadata file or table folder, or the embedded default catalog.

A catalog is chosen in this order: the requested name; `default-catalog` or `default` of PyIceberg's configuration; the
only catalog configured; with none configured, the embedded `local`: a SQLite catalog and a warehouse in `./.floeplan`
(or `$FLOEPLAN_HOME`). Fail-safe: loading a table creates nothing, not even the embedded catalog.
"""

from __future__ import annotations

import difflib
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import cached_property, lru_cache
from gzip import BadGzipFile
from io import BytesIO
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, load_file_io
from pyiceberg.serializers import NOOP_COMPRESSOR, Compressor, FromByteStream, GzipCompressor
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata, check_partition_specs, check_schemas, check_sort_orders
from pyiceberg.utils.config import Config, merge_config

import floeplan.format4  # noqa: F401 - lets PyIceberg load tables of format 4
from floeplan import object_stores
from floeplan.errors import BadInputError, CorruptMetadataError, FloeplanError, UnknownCatalogError, UnknownTableError
from floeplan.opaque_types import accept_opaque_types
from floeplan.text import counted, reason, remember

if TYPE_CHECKING:  # a first plan of a metadata file needs no catalog
    from pyiceberg.catalog import Catalog

accept_opaque_types()

EMBEDDED = "local"
METADATA_SUFFIX = ".metadata.json"
_KEPT_BYTES = 256 * 1024
"""The largest metadata file that stays in memory when it is parsed."""
_MALFORMED = (ValidationError, ValueError, KeyError, TypeError, AttributeError, BadGzipFile, EOFError, zlib.error)
"""What PyIceberg raises for malformed table metadata."""


def load_table(table: str | os.PathLike[str] | Table, catalog: str | Catalog | None = None) -> Table:
    """Return the PyIceberg table behind a name, a metadata file or a table.

    Args:
        table: `namespace.name`, a PyIceberg table, the path of a table folder as Iceberg's Hadoop catalog writes it,
            with a `metadata/version-hint.text`, or, read-only, the path or URI of a `*.metadata.json`. A folder in an
            object store is read-only too.
        catalog: A catalog, or the name of one in PyIceberg's configuration; see the module for the default.

    Raises:
        UnknownTableError: There is no such table or file.
        UnknownCatalogError: There is no such catalog, or its configuration cannot be used.
        CorruptMetadataError: The metadata file is not the metadata of a table.
        FloeplanError: The catalog or the object store failed.
    """
    if isinstance(table, Table):
        remember(table.io.properties)
        if not isinstance(table, StaticTable):
            set_rest_timeouts(table.catalog)
        return table
    name = os.fspath(table)
    if name.endswith(METADATA_SUFFIX) or "/" in name:
        return _static_table(name, catalog)
    return _catalog_table(name, catalog)


def require_writable(table: Table) -> None:
    """Refuse to change a table that was opened by a metadata file, or by a folder that cannot be committed to.

    Raises:
        BadInputError: It is read-only.
    """
    if isinstance(table, StaticTable):
        raise BadInputError(
            f"{table.metadata_location} is read-only: it is a metadata file, or a folder that is not of a local "
            "Hadoop catalog; name the table as namespace.name in its catalog",
            context={"table": table.metadata_location},
        )


def set_rest_timeouts(catalog: Catalog) -> None:
    """Apply the timeouts of its properties to a REST catalog that the caller opened; others are left alone."""
    if "pyiceberg.catalog.rest" in sys.modules:  # importing the REST client costs start-up time
        from floeplan.rest_timeouts import set_timeouts

        set_timeouts(catalog)


def refreshed(table: Table) -> Table:
    """Refresh a table from its catalog; raises as ``load_table`` does."""
    with _translated_errors(".".join(table.name()), table.catalog):
        return table.refresh()


def update_to_commit(table: Table, committed: Table) -> None:
    """Update a table to the metadata its commit produced, without a request that could fail after the commit."""
    table.metadata, table.metadata_location = committed.metadata, committed.metadata_location


def open_catalog(name: str | None = None) -> Catalog:
    """Open a configured catalog, or the embedded default, which is created if it does not exist."""
    name, properties = _choose_catalog(name)
    if properties is None:
        home = embedded_home()
        (home / "warehouse").mkdir(parents=True, exist_ok=True)
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{home / 'catalog.db'}",
            "warehouse": (home / "warehouse").as_uri(),
        }
    return connect(name, properties)


def existing_catalog(name: str | None = None) -> Catalog:
    """As ``open_catalog``, but the embedded default is not created.

    Raises:
        UnknownCatalogError: There is no such catalog.
    """
    chosen, properties = _choose_catalog(name)
    if properties is None and not (embedded_home() / "catalog.db").exists():
        raise UnknownCatalogError(_no_embedded_catalog(), context={"catalog": chosen})
    return open_catalog(chosen)


def _no_embedded_catalog() -> str:
    return (
        f"there is no embedded catalog in {embedded_home()} yet; create a table, choose a configured catalog with "
        "--catalog, or set FLOEPLAN_HOME to where the tables are"
    )


def list_tables(catalog: str | Catalog | None = None, namespace: str | None = None) -> tuple[str, list[str]]:
    """The name of a catalog, and its tables in the order of their names; nested namespaces included.

    Args:
        catalog: A catalog, or the name of a configured one; see the module for the default.
        namespace: Only tables of this namespace, and of those in it.

    Raises:
        UnknownTableError: There is no such namespace.
        FloeplanError: The catalog failed.
    """
    if catalog is None or isinstance(catalog, str):
        chosen, properties = _choose_catalog(catalog)
        if properties is None and not (embedded_home() / "catalog.db").exists() and namespace is None:
            return chosen, []
        catalog = open_catalog(chosen)
    context = {"catalog": catalog.name, "namespace": namespace}
    try:
        namespaces = [*catalog.list_namespaces()] if namespace is None else [tuple(namespace.split("."))]
        found: list[str] = []
        while namespaces:
            outer = namespaces.pop()
            found += [".".join(identifier) for identifier in catalog.list_tables(outer)]
            # Only deeper ones, in case a catalog lists the namespace itself too.
            namespaces += [inner for inner in catalog.list_namespaces(outer) if len(inner) > len(outer)]
    except NoSuchNamespaceError as error:
        message = f"no namespace {namespace!r} in catalog {catalog.name!r}"
        raise UnknownTableError(message, kind="unknown-namespace", context=context) from error
    except Exception as error:
        message = f"catalog {catalog.name!r} cannot list its tables: {reason(error, lines=2)}"
        raise FloeplanError(message, kind="unreachable", context=context, retryable=True, safe_to_clean=True) from error
    return catalog.name, sorted(set(found))


def connect(name: str, properties: Mapping[str, Any]) -> Catalog:
    """Open a catalog with its PyIceberg configuration, overridden by these properties.

    Raises:
        UnknownCatalogError: Its configuration is invalid.
        FloeplanError: The catalog failed.
    """
    from pyiceberg.catalog import PY_CATALOG_IMPL, TYPE, URI, CatalogType, infer_catalog_type, load_catalog

    merged = cast("dict[str, Any]", merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    remember(merged)
    context = {"catalog": name}
    try:
        # Whether PyIceberg would open a REST catalog; invalid properties are left for PyIceberg to report.
        type_ = merged.get(TYPE)
        if PY_CATALOG_IMPL in merged or not merged.get(URI):
            kind = None
        else:
            kind = CatalogType(str(type_).lower()) if type_ else infer_catalog_type(name, merged)
        if kind is CatalogType.REST:
            from floeplan.rest_timeouts import TimeoutRestCatalog

            return TimeoutRestCatalog(name, **merged)
        return load_catalog(name, **merged)
    except FloeplanError:
        raise
    except (ValueError, ImportError) as error:
        message = f"cannot open catalog {name!r}: {error}; check its PyIceberg configuration"
        raise UnknownCatalogError(message, context=context) from error
    except Exception as error:
        message = f"catalog {name!r} cannot be opened: {reason(error, lines=2)}"
        raise FloeplanError(message, kind="unreachable", context=context, retryable=True, safe_to_clean=True) from error


def embedded_home() -> Path:
    """Return the folder of the embedded catalog."""
    return Path(os.environ.get("FLOEPLAN_HOME") or ".floeplan").absolute()


def _choose_catalog(name: str | None) -> tuple[str, dict[str, str] | None]:
    """Return the catalog's name and configuration; ``None`` is the embedded default."""
    config = Config()
    known = config.get_known_catalogs()
    default = config.get_default_catalog_name()
    if name is None and known:
        name = known[0] if len(known) == 1 and default not in known else default
    chosen = name or EMBEDDED
    properties = config.get_catalog_config(chosen)
    if properties is None and chosen != EMBEDDED:
        choices = ", ".join(sorted({*known, EMBEDDED}))
        raise UnknownCatalogError(
            f"no catalog {chosen!r} is configured; choose one of {choices}", context={"catalog": chosen, "known": known}
        )
    return chosen, cast("dict[str, str] | None", properties)


def _catalog_table(name: str, catalog: str | Catalog | None) -> Table:
    namespace, _, short_name = name.rpartition(".")
    if not namespace or not short_name:
        raise UnknownTableError(
            f"{name!r} does not name a table; write namespace.name, or the path of a *{METADATA_SUFFIX}",
            context={"table": name},
        )
    if catalog is None or isinstance(catalog, str):
        chosen, properties = _choose_catalog(catalog)
        if properties is None and not (embedded_home() / "catalog.db").exists():
            message = f"no table {name!r}: {_no_embedded_catalog()}"
            raise UnknownTableError(message, context={"table": name, "catalog": chosen})
        catalog = open_catalog(chosen)
    remember(catalog.properties)
    set_rest_timeouts(catalog)
    with _translated_errors(name, catalog):
        return _checked(catalog.load_table(name))


@contextmanager
def _translated_errors(name: str, catalog: Catalog) -> Iterator[None]:
    """Turn any exception raised while loading a table into a ``FloeplanError`` that names table and catalog."""
    context = {"table": name, "catalog": catalog.name}
    try:
        yield
    except _MALFORMED as error:
        message = f"the metadata of {name} in catalog {catalog.name!r} cannot be read: {reason(error, lines=2)}"
        raise CorruptMetadataError(message, context=context) from error
    except NoSuchTableError as error:
        if _is_view(catalog, name):
            # Catalogs keep materialised views as views, too.
            message = f"{name} is a view in catalog {catalog.name!r}, and views are not supported: name its tables"
            raise UnknownTableError(message, kind="view", context=context) from error
        hint = _hint(catalog, name.rpartition(".")[0], name)
        raise UnknownTableError(f"no table {name!r} in catalog {catalog.name!r}{hint}", context=context) from error
    except (UnauthorizedError, ForbiddenError) as error:
        message = f"catalog {catalog.name!r} denies access to {name}: {reason(error, lines=2)}"
        raise FloeplanError(message, kind="forbidden", context=context, safe_to_clean=True) from error
    except FileNotFoundError as error:
        message = (
            f"catalog {catalog.name!r} refers to a metadata file of {name} that does not exist: {reason(error)}; "
            "restore it, or register the newest metadata file that is left"
        )
        raise CorruptMetadataError(message, context=context) from error
    except Exception as error:
        message = f"catalog {catalog.name!r} cannot load {name}: {reason(error, lines=2)}"
        raise FloeplanError(message, kind="unreachable", context=context, retryable=True, safe_to_clean=True) from error


def _hint(catalog: Catalog, namespace: str, name: str) -> str:
    try:
        tables = [".".join(identifier) for identifier in catalog.list_tables(namespace)]
    except NoSuchNamespaceError:
        return f"; there is no namespace {namespace!r} either"
    close = difflib.get_close_matches(name, tables, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else f"; {namespace!r} has {counted(len(tables), 'table')}"


def _is_view(catalog: Catalog, name: str) -> bool:
    """Whether a catalog has a view, materialized or not, of this name."""
    with suppress(Exception):  # a catalog without views, or one that does not answer
        if "pyiceberg.catalog.sql" in sys.modules:
            from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

            if isinstance(catalog, SqlCatalog):  # it skips the views that Java writes, and cannot list them
                namespace, _, short_name = name.rpartition(".")
                place = (catalog.name, namespace, short_name)
                names = IcebergTables.__table__.c
                columns = (names.catalog_name, names.table_namespace, names.table_name)
                query = IcebergTables.__table__.select().with_only_columns(names.iceberg_type)
                with catalog.engine.connect() as connection:
                    return connection.execute(query.where(*map(eq, columns, place))).scalar() == "VIEW"
        return catalog.view_exists(name)
    return False


def _static_table(location: str, catalog: str | Catalog | None) -> Table:
    """Read a metadata file, or the newest one of a folder, with the credentials of a catalog's properties if given."""
    properties: dict[str, str] = {}
    if isinstance(catalog, str):
        properties = _choose_catalog(catalog)[1] or {}
    elif catalog is not None:
        properties = dict(catalog.properties)
    remember(properties)
    is_file = location.endswith(METADATA_SUFFIX)
    try:
        if is_file:
            path = location
        else:
            from floeplan.hadoop_tables import FolderCatalog, is_writable, newest_metadata  # imported late: rarely used

            path = newest_metadata(location, load_file_io(properties, location))
            if is_writable(path):
                return _checked(FolderCatalog(location.rstrip("/"), properties).load_table(location))
        local = path.removeprefix("file:").removeprefix("//")
        if os.path.isdir(local):
            message = (
                f"{location} is a folder, and a metadata file is expected; name a file, or the folder of the table"
            )
            raise UnknownTableError(message, context={"table": location})
        return _checked(_directly(local, path, properties) or StaticTable.from_metadata(path, properties))
    except FileNotFoundError as error:
        missing = f"no metadata file {location}" if is_file else f"{location} has no table metadata"
        raise UnknownTableError(missing, context={"table": location}) from error
    except _MALFORMED as error:
        raise CorruptMetadataError(
            f"{location} is not table metadata: {reason(error, lines=2)}", context={"file": location}
        ) from error


def _directly(path: str, location: str, properties: dict[str, str]) -> StaticTable | None:
    """As ``StaticTable.from_metadata``, but without a FileIO: from the local disk, or with one request to S3."""
    if os.path.isfile(path):
        data: bytes | None = Path(path).read_bytes()
    else:
        try:
            data = object_stores.fetch(location, DeferredFileIO(properties, location))
        except OSError:  # the FileIO reports what is wrong
            data = None
    if data is None:
        return None
    parse = _parsed if len(data) <= _KEPT_BYTES else _parsed.__wrapped__
    shared = parse(data, Compressor.get_compressor(location) is NOOP_COMPRESSOR)
    # Of the values only these lists and mappings can be modified.
    metadata = shared.model_copy(update={key: copy(one) for key, one in shared if isinstance(one, list | dict)})
    io = DeferredFileIO({**properties, **metadata.properties}, location)
    return MetadataFileTable(("static-table", location), metadata, location, io)


@lru_cache(maxsize=4)
def _parsed(data: bytes, plain: bool) -> TableMetadata:
    """Table metadata from the content of a file, plain or compressed.

    Cached by the whole content, because many queries of one snapshot parse the same file, and what they derive from
    its schemas is cached in these.
    """
    compression = NOOP_COMPRESSOR if plain else GzipCompressor()
    return FromByteStream.table_metadata(cast(InputStream, BytesIO(data)), compression=compression)


class MetadataFileTable(StaticTable):
    """A table of PyIceberg that was opened by its metadata file; the catalog, which has no tables, is made on demand.

    PyIceberg's catalogs import its views and their models.
    """

    def __init__(self, identifier: tuple[str, str], metadata: TableMetadata, location: str, io: FileIO) -> None:
        super().__init__(identifier, metadata, location, io, cast("Catalog", None))
        del self.catalog

    @cached_property
    def catalog(self) -> Catalog:  # type: ignore[override]
        """A catalog without tables, as PyIceberg gives to a ``StaticTable``."""
        from pyiceberg.catalog.noop import NoopCatalog

        return NoopCatalog("static-table")


class DeferredFileIO(FileIO):
    """The FileIO that PyIceberg chooses for a location, imported when it is first used.

    Plans and scans read local files without a FileIO. PyIceberg's own imports pyarrow's datasets, and these import
    pandas: more than a plan of a small table takes.
    """

    def __init__(self, properties: Mapping[str, str], location: str) -> None:
        super().__init__(dict(properties))
        self._location = location

    @cached_property
    def chosen(self) -> FileIO:
        """The FileIO itself."""
        return load_file_io(self.properties, self._location)

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return self.chosen.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        return self.chosen.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self.chosen.delete(location)


def _checked(table: Table) -> Table:
    """Check that the current schema, spec and sort order exist; PyIceberg does so for formats 2 and 3 only."""
    for check in (check_schemas, check_partition_specs, check_sort_orders):
        check(table.metadata)
    return table
