"""The files of the front end, as they are shipped with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floeplan.explorer.documents import for_browsers
from floeplan.redact import document_text

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
