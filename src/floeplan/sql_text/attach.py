"""``fp.attach``: the tables of a namespace as temporary views of a session.

``fp.sql`` resolves the names of these views itself: it loads the table from its catalog and plans the current snapshot
with the query's predicates and columns. For Spark's own SQL and DataFrames a view has the snapshot that was current
when it was registered; ``attach``, or a statement of ``fp.sql`` that names another view of the session, registers the
views of changed tables again.

Fail-safe: a view that the user has replaced or dropped is the user's. An attached view is recognised by the metadata of
its first column.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from floeplan.catalog import load_table, open_catalog
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.sql_text.tokens import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARKER = "floeplan.table"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttachedTable:
    """A table whose view is registered, with the metadata that the view was made from."""

    view: str
    name: str
    catalog: Catalog
    metadata_location: str

    def load(self) -> Table:
        """The current state of the table."""
        return load_table(self.name, self.catalog)

    @property
    def marker(self) -> str:
        """The metadata of the view's first column."""
        return f"{self.catalog.name}.{self.name}"


_attached: WeakKeyDictionary[SparkSession, dict[str, AttachedTable]] = WeakKeyDictionary()


def attach(spark: SparkSession, catalog: str | Catalog | None = None, namespace: str | None = None) -> tuple[str, ...]:
    """Register every table of a namespace as a temporary view of its name; returns the names.

    Args:
        spark: A session, classic or Connect.
        catalog: A catalog, or the name of one in PyIceberg's configuration.
        namespace: The namespace; may be omitted if the catalog has only one.

    Raises:
        BadInputError: There is no such namespace, or the catalog has several and none is named.
    """
    opened = catalog if isinstance(catalog, Catalog) else open_catalog(catalog)
    if namespace is None:
        known = sorted(".".join(found) for found in opened.list_namespaces())
        if len(known) != 1:
            listed = ", ".join(known) or "none"
            raise BadInputError(f"name the namespace to attach; catalog {opened.name!r} has: {listed}")
        namespace = known[0]
    try:
        identifiers = opened.list_tables(namespace)
    except NoSuchNamespaceError as error:
        message = f"no namespace {namespace!r} in catalog {opened.name!r}"
        raise BadInputError(message, context={"namespace": namespace}) from error
    names = []
    for identifier in sorted(identifiers):
        table = load_table(".".join(identifier), opened)
        attached = AttachedTable(identifier[-1], ".".join(identifier), opened, table.metadata_location)
        try:
            _register(spark, attached, table)
        except UnsupportedError as error:  # its columns cannot be read on Spark, and other tables can
            _log.warning("%s is not attached: %s", attached.name, error)
            continue
        names.append(identifier[-1])
    return tuple(names)


def attached_tables(spark: SparkSession) -> Mapping[str, AttachedTable]:
    """The attached tables of a session whose views still exist, by lowercase name."""
    known = _attached.get(spark, {})
    return {name: table for name, table in known.items() if _is_registered(spark, table)}


def refresh_views(spark: SparkSession) -> None:
    """Register the views of tables that have changed since."""
    for attached in attached_tables(spark).values():
        table = attached.load()
        if table.metadata_location != attached.metadata_location:
            _register(spark, replace(attached, metadata_location=table.metadata_location), table)


def _register(spark: SparkSession, attached: AttachedTable, table: Table) -> None:
    from floeplan.spark.read.reader import read

    frame: DataFrame = read(spark, table)
    first = frame.columns[0]
    frame.withMetadata(first, {MARKER: attached.marker}).createOrReplaceTempView(quoted(attached.view))
    _attached.setdefault(spark, {})[attached.view.lower()] = attached


def _is_registered(spark: SparkSession, attached: AttachedTable) -> bool:
    if not spark.catalog.tableExists(quoted(attached.view)):
        return False
    (first, *_) = spark.table(quoted(attached.view)).schema.fields
    return bool(first.metadata.get(MARKER) == attached.marker)
