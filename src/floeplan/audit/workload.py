"""The workload of a table: the predicates of its logged scans, each with its number of runs.

Reports are read line by line in this process; those of other tables are skipped unparsed. A predicate that cannot be
used (its columns were dropped, or its writer hid the literals) is counted, never guessed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from floeplan.audit.reports import are_files
from floeplan.catalog import load_table
from floeplan.errors import BadInputError, UnsupportedError
from floeplan.predicate.compile import compile_predicate
from floeplan.predicate.ir import IrExpr
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.scan.read import read_batches

MOST_PREDICATES = 300
"""Only the most frequent predicates are used: each is evaluated on every candidate."""

_HIDDEN = re.compile(r'"\((?:\d+-digit|hash-|date|time)[^)"]*\)"')


@dataclass(frozen=True, slots=True)
class Workload:
    """Distinct predicates and their runs, most frequent first; ``unusable`` counts runs without a usable predicate."""

    predicates: tuple[tuple[IrExpr, int], ...]
    unusable: int

    @property
    def runs(self) -> int:
        """The number of runs of all predicates."""
        return sum(runs for _, runs in self.predicates)


def read_workload(
    reports: str, table: str, schema: Schema, *, since: datetime | None = None, catalog: str | None = None
) -> Workload:
    """The predicates of one table in a folder, a file or a table of reports.

    Raises:
        BadInputError: There are no reports at that location.
    """
    filters: Counter[str] = Counter()
    unusable = 0
    for report in _reports(reports, table, since, catalog):
        text = json.dumps(report.get("filter"), sort_keys=True)
        if text == "null" or _HIDDEN.search(text):
            unusable += 1
        else:
            filters[text] += 1
    predicates: Counter[IrExpr] = Counter()
    for text, runs in filters.most_common():
        predicate = _predicate(text, schema)
        if predicate is None:
            unusable += runs
        elif len(predicates) < MOST_PREDICATES:
            predicates[predicate] += runs
    return Workload(tuple(predicates.most_common()), unusable)


def _predicate(text: str, schema: Schema) -> IrExpr | None:
    try:
        return compile_predicate(BooleanExpression.model_validate(json.loads(text)), schema).predicate
    except (BadInputError, ValidationError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _reports(source: str, table: str, since: datetime | None, catalog: str | None) -> Iterator[dict[str, Any]]:
    """The scan reports of a table, whose name may have a catalog in front."""
    for line in _lines(source, catalog):
        start = line.find('{"')
        if start < 0 or table not in line:
            continue
        try:
            report = json.loads(line[start:])
        except (ValueError, RecursionError):
            continue
        named = str(report.get("table-name"))
        if (named == table or named.endswith(f".{table}")) and _is_recent(report, since) and "filter" in report:
            yield report


def _is_recent(report: dict[str, Any], since: datetime | None) -> bool:
    """Whether a report is not older than a time; one without a timestamp counts as recent."""
    own = report.get("floeplan")
    text = own.get("timestamp") if isinstance(own, dict) else None
    if since is None or not isinstance(text, str):
        return True
    try:
        written = datetime.fromisoformat(text)
    except ValueError:
        return True
    return (written if written.tzinfo else written.replace(tzinfo=UTC)) >= since


def _lines(source: str, catalog: str | None) -> Iterator[str]:
    if "://" in source:
        raise UnsupportedError(f"{source}: advise reads reports from local files or from an Iceberg table")
    if are_files(source):
        path = Path(source)
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as lines:
                    yield from lines
        return
    plan = plan_scan(load_table(source, catalog), columns=["report"], options=ScanOptions(report=False))
    for batch in read_batches(plan, plan.schema):
        yield from batch.column(0).to_pylist()
