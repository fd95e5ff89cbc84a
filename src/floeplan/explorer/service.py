"""Requests of the live explorer: a name and parameters in, a JSON document out.

Rule: a request can name only tables that the catalog lists, or the one given on the command line, and never a file to
read. Errors are those of the command line.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.audit.reports import are_files
from floeplan.catalog import load_table, open_catalog
from floeplan.errors import BadInputError, InvalidOptionError, UnknownTableError
from floeplan.explorer.documents import (
    MOST_FILES,
    Footers,
    RewriteRequest,
    doctor_document,
    overview_document,
    plan_document,
    plan_for,
    rewrite_document,
    upgrade_document,
)
from floeplan.explorer.file_document import file_document
from floeplan.explorer.view import TableView
from floeplan.rewrite.execute import run_rewrite
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec

MOST_VIEWS = 4
"""Table views kept in memory."""

Parameters = Mapping[str, str]


@dataclass(slots=True)
class ExplorerService:
    """Serves documents about the tables of a catalog.

    Attributes:
        only: The only table served; by default all tables of the catalog.
        catalog: The name of the catalog.
        allow_writes: Whether rewrites and spec upgrades are allowed.
        audit: Runs the audit; called at most once.
        token: The session token that write requests must carry.
    """

    only: str | None
    catalog: str | None
    allow_writes: bool
    audit: Callable[[], Mapping[str, Any]] | None
    token: str
    _views: OrderedDict[str, TableView] = field(default_factory=OrderedDict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _audited: Mapping[str, Any] | None = None
    _audit_lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, name: str, parameters: Parameters) -> Mapping[str, Any]:
        """A document.

        Raises:
            BadInputError: The document does not exist, or a parameter is invalid.
        """
        answers: dict[str, Callable[[Parameters], Mapping[str, Any]]] = {
            "session": self._session,
            "overview": lambda given: overview_document(self._view(given, refresh="refresh" in given)),
            "map": lambda given: self._view(given).map.to_dict(),
            "plan": self._plan,
            "file": lambda given: file_document(self._view(given), _needed(given, "path"), given.get("where")),
            "cell": self._cell,
            "doctor": lambda given: doctor_document(self._load(self._name(given))),
            "rewrite": lambda given: rewrite_document(self._view(given), _rewrite_request(given)),
            "upgrade": lambda given: upgrade_document(self._view(given), given.get("to", "current")),
            "audit": lambda _: self._audit(),
        }
        if name not in answers:
            raise BadInputError(f"unknown document {name!r}; known documents are {', '.join(answers)}")
        return answers[name](parameters)

    def write(self, name: str, body: Parameters) -> Mapping[str, Any]:
        """Change a table; the caller has checked the token.

        Raises:
            BadInputError: Writes are not allowed, or the table's name was not confirmed.
        """
        if not self.allow_writes:
            raise BadInputError("this explorer is read-only; start it with --allow-writes", kind="read-only")
        if name not in ("rewrite", "upgrade"):
            raise BadInputError(f"unknown action {name!r}; known actions are rewrite and upgrade")
        view = self._view(body)
        if body.get("confirm") != view.name:
            raise BadInputError(f"type the table name {view.name} to confirm", kind="not-confirmed")
        table = self._load(self._name(body))
        try:
            if name == "rewrite":
                return run_rewrite(table, _rewrite_request(body).options()).to_dict()
            return upgrade_spec(table, options=UpgradeOptions(to=body.get("to", "current"))).to_dict()
        finally:
            with self._lock:
                self._views.pop(self._name(body), None)

    def tables(self) -> list[str]:
        """The tables that can be requested."""
        if self.only is not None:
            return [self.only]
        return sorted(_listed(open_catalog(self.catalog)))

    def _session(self, _: Parameters) -> dict[str, Any]:
        return {
            "tables": self.tables(),
            "allow_writes": self.allow_writes,
            "audit": self.audit is not None,
            "version": metadata.version("floeplan"),
        }

    def _name(self, parameters: Parameters) -> str:
        name = parameters.get("table") or self.only
        if name is None:
            raise InvalidOptionError("the parameter 'table' is missing", context={"option": "table"})
        return name

    def _view(self, parameters: Parameters, *, refresh: bool = False) -> TableView:
        """The cached view of a table; ``refresh`` loads it again."""
        name = self._name(parameters)
        with self._lock:
            if refresh or name not in self._views:
                self._views[name] = TableView.of(self._load(name))
            self._views.move_to_end(name)
            while len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
            return self._views[name]

    def _load(self, name: str) -> Table:
        if name not in self.tables():
            raise UnknownTableError(f"table {name!r} is not served", context={"table": name})
        return load_table(name, self.catalog)

    def _plan(self, parameters: Parameters) -> Mapping[str, Any]:
        asked = parameters.get("footers", Footers.AUTO)
        if asked not in list(Footers):
            raise InvalidOptionError(f"footers is {asked!r} but must be auto, yes or no", context={"option": "footers"})
        view, where = self._view(parameters), parameters.get("where", "")
        return plan_document(view, where, plan_for(view, where, Footers(asked)))

    def _cell(self, parameters: Parameters) -> dict[str, Any]:
        view = self._view(parameters)
        rows = view.map.files_in(_integer(parameters, "lane"), _integer(parameters, "bin"))
        return {"files": view.file_facts(np.asarray(rows[:MOST_FILES])), "total": len(rows)}

    def _audit(self) -> Mapping[str, Any]:
        if self.audit is None:
            raise BadInputError("no scan reports; start the explorer with --reports")
        with self._audit_lock:
            if self._audited is None:
                self._audited = self.audit()
            return self._audited


def _listed(catalog: Catalog) -> list[str]:
    """The tables of all namespaces, nested ones included."""
    found: list[str] = []
    open_ = list(catalog.list_namespaces())
    while open_:
        namespace = open_.pop()
        found += [".".join(identifier) for identifier in catalog.list_tables(namespace)]
        open_ += [inner for inner in catalog.list_namespaces(namespace) if len(inner) > len(namespace)]
    return found


def _needed(parameters: Parameters, name: str) -> str:
    if not parameters.get(name):
        raise InvalidOptionError(f"the parameter {name!r} is missing", context={"option": name})
    return parameters[name]


def _integer(parameters: Parameters, name: str) -> int:
    text = _needed(parameters, name)
    try:
        return int(text)
    except ValueError as error:
        raise InvalidOptionError(f"{name} is {text!r} but must be a number", context={"option": name}) from error


def _rewrite_request(parameters: Parameters) -> RewriteRequest:
    known = {name: parameters[name] for name in RewriteRequest.__slots__ if parameters.get(name)}
    return RewriteRequest(**known)


LOCAL_SPARK = "local[*]"


def check_reports(reports: str, catalog: str | None) -> None:
    """Check that the scan reports exist, without starting Spark.

    Raises:
        BadInputError: They do not exist.
    """
    if not are_files(reports):
        load_table(reports, catalog)


def audit_reports(reports: str, spark_url: str | None, catalog: str | None) -> dict[str, Any]:
    """Audit scan reports on Spark."""
    from floeplan.audit.job import audit
    from floeplan.spark.session import open_session

    check_reports(reports, catalog)
    return audit(open_session(spark_url or LOCAL_SPARK), reports, catalog=catalog).to_dict()
