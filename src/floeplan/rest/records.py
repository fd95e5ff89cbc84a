"""What the server leaves behind: an audit record per plan, the reports of clients, Prometheus metrics and JSON logs.

An audit record is a scan report (``scan.report``) with the key ``server``: plan id, principal, engine, time and bytes.
``floeplan audit``, ``advise`` and ``explain-plan`` read records from the folder that they are written to, together with
the scan and commit reports that clients send to ``/metrics`` of a table.

Fail-safe: a record that cannot be written is logged and counted; the plan is sent nevertheless. With ``redact``, no
literal of a filter is stored: they are replaced by a digest, in the way of Iceberg's own log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floeplan.errors import UnknownFileError
from floeplan.scan.report import JsonLinesReportStore
from floeplan.text import document_text, one_line, reason, redacted, without_named

if TYPE_CHECKING:
    from floeplan.rest.planner import Caller, PlanResponse

log = logging.getLogger("floeplan.rest")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_MOST_SERIES = 100
"""Label sets of a metric: clients name their engine, and may make up names without end."""
_TEXTS = ("predicate", "message", "text")
"""Keys of a report under which literals occur in text."""


class AuditRecorder:
    """Appends records to a folder; without one, records are only logged."""

    def __init__(self, folder: Path | None, metrics: Metrics, *, redact: bool = False) -> None:
        self._store = None if folder is None else JsonLinesReportStore(folder)
        self._metrics = metrics
        metrics.add("floeplan_audit_errors_total", 0)  # alerts see an increase only from a known value
        self.redact = redact

    def plan(self, planned: PlanResponse, caller: Caller, table: str, *, sent_bytes: int, ms: float) -> None:
        """Record one plan."""
        report = planned.report or {}
        own = dict(report.get("floeplan") or {})
        summary = own.get("summary") or {}
        cached = bool(own.pop("served", {}).get("cached"))
        server = {
            "plan-id": planned.plan_id,
            **_sender(caller),
            "cached": cached,
            "body-bytes": len(planned.body),
            "sent-bytes": sent_bytes,
            "ms": round(ms, 3),
        }
        # A report that was made for an earlier plan is recorded with the time of this one.
        record = {**report, "table-name": table, "floeplan": {**own, "timestamp": _now()}, "server": server}
        self._append(record)
        counts: dict[str, Any] = {
            name: summary.get(name) for name in ("files_kept", "files_total", "manifests_kept", "manifests_total")
        }
        fields: dict[str, Any] = {key.replace("-", "_"): value for key, value in server.items()}
        event("plan", **fields, **counts, table=table)
        self._metrics.add("floeplan_planned_files_total", summary.get("files_kept") or 0)

    def client_report(self, document: Mapping[str, Any], caller: Caller, table: str) -> None:
        """Record a scan or commit report that a client sent."""
        server = {**_sender(caller), "timestamp": _now()}
        self._append({**document, "table-name": document.get("table-name", table), "server": server})

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._store is None:
            return
        try:
            self._store.append(redacted_report(record) if self.redact else record)
        except (OSError, ValueError) as error:
            self._metrics.add("floeplan_audit_errors_total", 1)
            event("audit-failed", level=logging.ERROR, reason=reason(error))


def _sender(caller: Caller) -> dict[str, str]:
    return {"principal": caller.principal, "engine": caller.engine, "engine-version": caller.engine_version}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def redacted_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without the literals of its filter."""
    return {key: _hidden(value, key) for key, value in report.items()}


def _hidden(value: Any, key: str) -> Any:
    # The newer form of the specification has a literal on either side; a name there is hidden with it.
    if key == "value" or (key in ("left", "right") and not isinstance(value, bool | dict | list)):
        return _digest(value)
    if key == "values" and isinstance(value, list):
        return [_digest(item) for item in value]
    if key in _TEXTS and isinstance(value, str):
        return "(hidden)"
    if isinstance(value, Mapping):
        # The values of metrics are counts, not literals.
        keep = isinstance(value.get("value"), int) and "unit" in value
        return dict(value) if keep else {name: _hidden(item, name) for name, item in value.items()}
    return [_hidden(item, "") for item in value] if isinstance(value, list) else value


def _digest(literal: Any) -> str:
    return f"(hash-{hashlib.sha256(json.dumps(literal, default=str).encode()).hexdigest()[:8]})"


LAST = "last"
"""Names the most recent plan."""


def find_record(folder: Path, plan_id: str) -> dict[str, Any]:
    """The record of a plan, or of the most recent one (``last``).

    Raises:
        UnknownFileError: The folder has no record of this plan.
    """
    found: dict[str, Any] | None = None
    # Files of other processes may be read while they grow; the newest record decides, not the newest file.
    for path in sorted(folder.rglob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (plan_id if plan_id != LAST else '"plan-id"') not in line:  # skipped without parsing
                    continue
                try:
                    record = json.loads(line)
                    is_it = plan_id in (LAST, record["server"]["plan-id"])
                    if is_it and (found is None or found["floeplan"]["timestamp"] <= record["floeplan"]["timestamp"]):
                        found = record
                except (ValueError, LookupError, TypeError):
                    continue
    if found is None:
        what = "a plan" if plan_id == LAST else f"plan {plan_id!r}"
        raise UnknownFileError(
            f"no record of {what} in {folder}; name the folder of --audit with --reports",
            context={"plan": plan_id, "folder": str(folder)},
        )
    return found


class Metrics:
    """Counters and histograms in Prometheus' text format."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._buckets: dict[str, dict[str, list[int]]] = defaultdict(dict)
        self._sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, name: str, amount: float, /, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            counters = self._counters[name]
            counters[_series(counters, labels)] += amount

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        """Add a duration to a histogram."""
        with self._lock:
            series = _series(self._buckets[name], labels)
            counts = self._buckets[name].setdefault(series, [0] * (len(_SECONDS) + 1))
            counts[next((i for i, most in enumerate(_SECONDS) if seconds <= most), len(_SECONDS))] += 1
            self._sums[name][series] += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All metrics, with gauges of this moment."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, float]) -> Iterable[str]:
        for name, value in sorted(gauges.items()):
            yield f"# TYPE {name} gauge"
            yield f"{name} {value:g}"
        for name, values in sorted(self._counters.items()):
            yield f"# TYPE {name} counter"
            yield from (f"{name}{_braced(labels)} {value:.15g}" for labels, value in sorted(values.items()))
        for name, rows in sorted(self._buckets.items()):
            yield f"# TYPE {name} histogram"
            for labels, counts in sorted(rows.items()):
                below = 0
                for most, count in zip((*map(str, _SECONDS), "+Inf"), counts, strict=True):
                    below += count
                    bucket = ",".join(filter(None, (labels, f'le="{most}"')))
                    yield f"{name}_bucket{{{bucket}}} {below}"
                yield f"{name}_sum{_braced(labels)} {self._sums[name][labels]:.15g}"
                yield f"{name}_count{_braced(labels)} {below}"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))


def _series(known: Collection[str], labels: Mapping[str, str]) -> str:
    """The labels of a series; beyond ``_MOST_SERIES``, new ones are counted together."""
    text = _labels(labels)
    return text if text in known or len(known) < _MOST_SERIES else _labels(dict.fromkeys(labels, "other"))


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def event(name: str, /, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event with its fields."""
    log.log(level, name, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with secrets masked."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": one_line(without_named(record.getMessage())),  # known secrets are masked in the whole document
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["traceback"] = redacted(self.formatException(record.exc_info))
        return document_text(document, default=str)


def elapsed_ms(started: float) -> float:
    """Milliseconds since a value of ``time.perf_counter``."""
    return (time.perf_counter() - started) * 1000
