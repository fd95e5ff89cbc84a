"""Queries that differ in their literals only are one query: its shape, its fingerprint, and how people read it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_COMPARISONS = {"eq": "=", "not-eq": "!=", "lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">="}
_OTHERS = {
    "in": "{} IN (?)",
    "not-in": "{} NOT IN (?)",
    "starts-with": "{} LIKE ?",
    "not-starts-with": "{} NOT LIKE ?",
    "is-null": "{} IS NULL",
    "not-null": "{} IS NOT NULL",
    "is-nan": "isnan({})",
    "not-nan": "NOT isnan({})",
}


def fingerprint(table: str, shape: str, opaque: str) -> str:
    """A short name that is the same for the same shape on the same table, today and tomorrow."""
    return hashlib.sha256("\n".join((table, shape, opaque)).encode()).hexdigest()[:12]


def readable(shape: str, opaque: str = "") -> str:
    """A filter whose literals are abstracted, as SQL; what is no expression of Iceberg is shown as it is."""
    try:
        text = _text(json.loads(shape))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = shape
    parts = [part for part in (text, opaque) if part and part != "true"]
    return " AND ".join(parts) or "true"


def _text(node: Any) -> str:
    if isinstance(node, bool):
        return str(node).lower()
    kind = node["type"]
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(_operand(node[side], kind) for side in ("left", "right"))
    if kind == "not":
        return f"NOT ({_text(node['child'])})"
    if kind in _COMPARISONS:
        return f"{_term(node['term'])} {_COMPARISONS[kind]} ?"
    return _OTHERS[kind].format(_term(node["term"]))


def _operand(node: Any, around: str) -> str:
    """In brackets where AND and OR meet."""
    mixed = isinstance(node, dict) and node["type"] in ("and", "or") and node["type"] != around
    return f"({_text(node)})" if mixed else _text(node)


def _term(term: Any) -> str:
    """A column, or a transform of one."""
    return term if isinstance(term, str) else f"{term['transform']}({_term(term['term'])})"
