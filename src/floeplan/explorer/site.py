"""``write_report``: the explorer of one table as static files that need no server and no network.

A report contains the plans of the given predicates, with details of their first files. Fail-safe: a folder that
contains anything but an older report is not written to.
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
from floeplan.text import document_text

MOST_DETAILS = 25
"""Files of each plan with details."""

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
    """The files of the front end by their path in a site."""
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*")) if path.is_file()}


def to_json(document: Mapping[str, Any]) -> str:
    """Strict JSON whose numbers JavaScript does not round."""
    return document_text(for_browsers(document), only_ascii=True)


def data_script(report: Mapping[str, Any] | None) -> str:
    """The script that passes a report to the page, escaped so that no value can end the script element."""
    text = "null" if report is None else to_json(report)
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f"window.FLOEPLAN_REPORT = {escaped};\n"


@dataclass(frozen=True, slots=True)
class SiteReport:
    """A written report."""

    path: str
    table: str
    files: int
    plans: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {name: getattr(self, name) for name in self.__slots__}


def write_report(
    table: Table | str, folder: Path, wheres: Sequence[str] = (), *, audit: Mapping[str, Any] | None = None
) -> SiteReport:
    """Write the explorer of a table into a folder.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        folder: The folder to write; new, empty, or an older report.
        wheres: Predicates to plan; by default all rows.
        audit: The result of an audit, as its ``to_dict`` gives it.

    Raises:
        BadInputError: An unknown table, an invalid predicate, or a folder that contains other files.
    """
    index = folder / INDEX
    if folder.exists():
        if not folder.is_dir():
            message = f"{folder} is not a folder; choose another with -o"
            raise InvalidOptionError(message, context={"folder": str(folder)})
        mark = '<meta name="generator" content="floeplan">'
        is_report = index.is_file() and mark in index.read_text(encoding="utf-8", errors="replace")
        if any(folder.iterdir()) and not is_report:
            message = f"{folder} contains other files; choose a new or an empty folder with -o"
            raise InvalidOptionError(message, context={"folder": str(folder)})
    view = TableView.of(load_table(table))
    plans = []
    for where in dict.fromkeys(wheres or ("",)):
        plan = plan_document(view, where, plan_for(view, where))
        paths = [file["path"] for file in plan["files"][:MOST_DETAILS]]
        plans.append(plan | {"details": {path: file_document(view, path, where) for path in paths}})
    try:
        upgrade = upgrade_document(view)
    except FloeplanError:
        upgrade = None  # a table that cannot be upgraded
    script = data_script(
        {
            "version": metadata.version("floeplan"),
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "overview": overview_document(view),
            "map": view.map.to_dict(),
            "plans": plans,
            "doctor": doctor_document(view.table),
            "rewrite": rewrite_document(view, RewriteRequest()),
            "upgrade": upgrade,
            "audit": None if audit is None else dict(audit),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in asset_paths().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    (folder / DATA).write_text(script, encoding="utf-8")
    return SiteReport(str(index), view.name, len(view.files), len(plans), len(script))
