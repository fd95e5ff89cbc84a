"""What the shell offers for a table, a column, a branch, a catalog, or an option with a fixed set of values.

Fail-safe: a catalog that does not answer, or a table that does not exist, offers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pyiceberg.table import Table


def tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tables of the catalog."""
    from floeplan.catalog import list_tables

    with suppress(Exception):
        return _beginning(list_tables(ctx.params.get("catalog"))[1], incomplete)
    return []


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """The namespaces that have tables."""
    return sorted({name.rpartition(".")[0] for name in tables(ctx, incomplete)})


def catalogs(incomplete: str) -> list[str]:
    """The configured catalogs, and the embedded one."""
    from pyiceberg.utils.config import Config

    with suppress(Exception):
        return _beginning(sorted({*Config().get_known_catalogs(), "local"}), incomplete)
    return []


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """The columns of the table, for the last item of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(_columns(ctx), last.lstrip())]


def conditions(ctx: typer.Context, incomplete: str) -> list[str]:
    """The columns of the table, for the last word of an expression."""
    begun = re.search(r"[\w.]*$", incomplete)
    last = begun[0] if begun else ""
    before = incomplete[: len(incomplete) - len(last)]
    if before.count("'") % 2:  # in a string
        return []
    return [before + name for name in _beginning(_columns(ctx), last)]


def assignments(ctx: typer.Context, incomplete: str) -> list[str]:
    """The columns of the table, each with an equals sign."""
    return [f"{name}=" for name in _beginning(_columns(ctx), incomplete)]


def branches(ctx: typer.Context, incomplete: str) -> list[str]:
    """The branches of the table."""
    return _beginning(_refs(ctx, "branch"), incomplete)


def tags(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tags of the table."""
    return _beginning(_refs(ctx, "tag"), incomplete)


def refs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The branches and tags of the table."""
    return _beginning(_refs(ctx, "branch", "tag"), incomplete)


def one_of(*values: str) -> Callable[[str], list[str]]:
    """A fixed set of values."""

    def offered(incomplete: str) -> list[str]:
        return _beginning(values, incomplete)

    return offered


def _columns(ctx: typer.Context) -> list[str]:
    table = _table(ctx)
    return [] if table is None else list(table.schema().column_names)


def _refs(ctx: typer.Context, *kinds: str) -> list[str]:
    table = _table(ctx)
    found: dict[str, Any] = {} if table is None else table.metadata.refs
    return sorted(name for name, ref in found.items() if ref.snapshot_ref_type.value in kinds)


def _table(ctx: typer.Context) -> Table | None:
    from floeplan.catalog import load_table

    # While an option waits for its value, the arguments before it are not parsed yet.
    words = [word for word in ctx.args if not word.startswith("-")]
    with suppress(Exception):
        return load_table(ctx.params["table"] or words[0], ctx.params.get("catalog"))
    return None


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
