"""Options that reading commands share: which rows, which columns, which snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from floeplan.errors import InvalidOptionError

ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="a,b", help="Columns to read, nested ones by path; all by default.")
]
SnapshotOption = Annotated[int | None, typer.Option("--snapshot-id", metavar="N", help="The snapshot to read.")]
RefOption = Annotated[str | None, typer.Option("--ref", metavar="NAME", help="The branch or tag to read.")]
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="Read as of a time such as 2024-03-01T12:00:00 (UTC unless it says)."),
]
CaseOption = Annotated[
    bool, typer.Option("--case-insensitive", help="Let column names match whatever their capitals are.")
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Decode manifests anew, without the local cache.")]
NoReportOption = Annotated[bool, typer.Option("--no-report", help="Append no scan report to the report store.")]


def column_names(text: str | None) -> list[str] | None:
    """The names in a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def timestamp_ms(text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO time, taken as UTC when it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"--as-of {text!r} is no time; write it as 2024-03-01T12:00:00", context={"option": "--as-of"}
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
