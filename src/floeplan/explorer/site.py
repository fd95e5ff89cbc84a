"""``write_report``: the explorer of one table as a folder of files that opens without a server or a network.

Rule: a report holds what was asked for when it was made: the plans of the given predicates, each with a closer look at
its first files. Fail-safe: a folder with anything else in it is not written into.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from floeplan.catalog import load_table
from floeplan.errors import FloeplanError, InvalidOptionError
from floeplan.explorer.documents import (
    RewriteRequest,
    doctor_document,
    for_browsers,
    overview_document,
    plan_document,
    plan_for,
    rewrite_document,
    upgrade_document,
)
from floeplan.explorer.file_document import file_document
from floeplan.explorer.view import TableView
from floeplan.redact import document_text

# The files of the front end, as they are shipped with the package.


ROOT = Path(__file__).parent / "static"
INDEX, DATA = "index.html", "data.js"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
    "": "text/plain; charset=utf-8",
}
"""Media types by suffix; other files are not served."""


def asset_paths() -> dict[str, Path]:
    """Every file of the front end by its place in a site."""
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*")) if path.is_file()}


def to_json(document: Mapping[str, Any]) -> str:
    """Strict JSON that JavaScript reads as it was meant."""
    return document_text(for_browsers(document), only_ascii=True)


def data_script(report: Mapping[str, Any] | None) -> str:
    """The script that carries a report into a page; nothing in it can end the script."""
    text = "null" if report is None else to_json(report)
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f"window.FLOEPLAN_REPORT = {escaped};\n"


# ---

MOST_DETAILS = 25
"""Files of each plan that a report can be asked about."""

_MARK = '<meta name="generator" content="floeplan">'


@dataclass(frozen=True, slots=True)
class SiteReport:
    """A report that was written."""

    path: str
    table: str
    files: int
    plans: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


def write_report(
    table: Table | str,
    folder: Path,
    wheres: Sequence[str] = (),
    *,
    audit: Mapping[str, Any] | None = None,
) -> SiteReport:
    """Write the explorer of a table into a folder.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        folder: Where to; new, empty, or an older report.
        wheres: Predicates to plan; every row when there are none.
        audit: The result of an audit, as its ``to_dict`` gives it.

    Raises:
        BadInputError: An unknown table, a predicate that cannot be meant, or a folder with other things in it.
    """
    _check_folder(folder)
    view = TableView.of(load_table(table))
    document = report_document(view, wheres, audit)
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in asset_paths().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    script = data_script(document)
    (folder / DATA).write_text(script, encoding="utf-8")
    index = folder / INDEX
    return SiteReport(str(index), view.name, len(view.files), len(document["plans"]), len(script))


def report_document(view: TableView, wheres: Sequence[str], audit: Mapping[str, Any] | None) -> dict[str, Any]:
    """All documents of a report."""
    return {
        "version": metadata.version("floeplan"),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "overview": overview_document(view),
        "map": view.map.to_dict(),
        "plans": [_plan(view, where) for where in dict.fromkeys(wheres or ("",))],
        "doctor": doctor_document(view.table),
        "rewrite": rewrite_document(view, RewriteRequest()),
        "upgrade": _upgrade(view),
        "audit": None if audit is None else dict(audit),
    }


def _plan(view: TableView, where: str) -> dict[str, Any]:
    document = plan_document(view, where, plan_for(view, where))
    paths = [file["path"] for file in document["files"][:MOST_DETAILS]]
    return document | {"details": {path: file_document(view, path, where) for path in paths}}


def _upgrade(view: TableView) -> dict[str, Any] | None:
    """Moving files is looked into where there is another spec; a table that cannot be moved has no such page."""
    try:
        return upgrade_document(view)
    except FloeplanError:
        return None


def _check_folder(folder: Path) -> None:
    """New, empty, or an older report."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidOptionError(f"{folder} is not a folder; choose another with -o", context={"folder": str(folder)})
    index = folder / INDEX
    if any(folder.iterdir()) and not (index.is_file() and _MARK in index.read_text(encoding="utf-8", errors="replace")):
        raise InvalidOptionError(
            f"{folder} has other files in it; choose a new or an empty folder with -o", context={"folder": str(folder)}
        )
