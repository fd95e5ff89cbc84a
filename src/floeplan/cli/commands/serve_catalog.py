"""``floeplan serve-catalog`` serves a REST catalog that plans scans; ``explain-plan`` explains one of its plans."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common
from floeplan.errors import FloeplanError, InvalidOptionError
from floeplan.text import human_bytes, percent

DEFAULT_PORT = 8181
_SERVER_PACKAGES = ("starlette", "uvicorn", "httpx", "cryptography")
_LEVELS = ("manifests", "files", "rows", "bytes")

PatternsOption = Annotated[
    list[str] | None,
    typer.Option("--plan", metavar="PATTERN", help="Plan scans of these tables: namespace.table with *; repeatable."),
]
FormatThreeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plan-format-3",
        metavar="PATTERN",
        help="Plan these tables of format 3 too: today's clients lose row lineage when they rewrite rows planned by a "
        "server (iceberg#17319).",
    ),
]


def serve_catalog(
    upstream: Annotated[
        str | None, typer.Option("--upstream", metavar="URI", help="Stand in front of this REST catalog.")
    ] = None,
    catalog: common.CatalogOption = None,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="The port; 0 picks a free one.")] = DEFAULT_PORT,
    plan: PatternsOption = None,
    plan_format_3: FormatThreeOption = None,
    plan_nothing: Annotated[
        bool, typer.Option("--plan-nothing", help="Let all clients plan their scans; overrides the other options.")
    ] = False,
    switch_file: Annotated[
        Path | None,
        typer.Option("--switch-file", metavar="FILE", help="While this file exists, act as with --plan-nothing."),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="Keys of plan tasks, the same for all instances of the server."),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option("--audit", metavar="DIR", help="The folder of audit records; by default that of scan reports."),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Store digests instead of the literals of filters in audit records.")
    ] = False,
    replace_planning: Annotated[
        bool,
        typer.Option(
            "--replace-upstream-planning",
            help="Plan here although the upstream catalog plans scans itself; its policies on rows are bypassed.",
        ),
    ] = False,
    warehouse: Annotated[
        str | None, typer.Option("--warehouse", metavar="NAME", help="Warehouse to request from the upstream catalog.")
    ] = None,
    upstream_ca: Annotated[
        Path | None, typer.Option("--upstream-ca", metavar="FILE", help="Certificates to verify the upstream with.")
    ] = None,
    io: Annotated[
        list[str] | None,
        typer.Option(
            "--io", metavar="K=V", help="A PyIceberg property to read the upstream's stores with; repeatable."
        ),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option("--store", metavar="PREFIX", help="Read metadata only below these locations; repeatable."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Serve HTTPS with this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Serve plain HTTP also on an address that is not loopback.")
    ] = False,
    max_body_bytes: Annotated[
        int, typer.Option("--max-body-bytes", metavar="N", min=1, help="Largest body of a planning request.")
    ] = 1024 * 1024,
    max_plans: Annotated[int, typer.Option("--max-plans", metavar="N", min=1, help="Concurrent plans.")] = 4,
    max_waiting: Annotated[
        int,
        typer.Option(
            "--max-waiting", metavar="N", min=0, help="Requests that may wait for a running plan; others get 429."
        ),
    ] = 256,
    page_bytes: Annotated[
        int, typer.Option("--page-bytes", metavar="N", min=1, help="Bytes of JSON in one page of a plan.")
    ] = 1024 * 1024,
    plan_seconds: Annotated[
        float, typer.Option("--plan-seconds", metavar="N", min=0.001, help="Deadline of a plan.")
    ] = 60.0,
    upstream_seconds: Annotated[
        float, typer.Option("--upstream-seconds", metavar="N", min=0.001, help="Longest wait for the upstream catalog.")
    ] = 60.0,
    shutdown_seconds: Annotated[
        int,
        typer.Option(
            "--shutdown-seconds", metavar="N", min=0, help="Seconds that running requests may take after SIGTERM."
        ),
    ] = 60,
    json: common.JsonOption = False,
) -> None:
    """Serve a REST catalog that plans scans for Spark, PyIceberg and others, until interrupted.

    floeplan serve-catalog --upstream https://catalog.example.com/api --plan 'sales.*'
    """
    if upstream is not None and catalog is not None:
        message = "--upstream and --catalog cannot be combined: the first is a catalog to stand in front of"
        raise InvalidOptionError(message, context={"option": "--upstream"})
    of_upstream: dict[str, object] = {"--io": io, "--warehouse": warehouse, "--upstream-ca": upstream_ca}
    of_upstream["--replace-upstream-planning"] = replace_planning or None
    for option, given in of_upstream.items():
        if upstream is None and given is not None:
            raise InvalidOptionError(f"{option} needs --upstream", context={"option": option})
    if not 0 <= port <= 65535:
        raise InvalidOptionError(f"--port is {port} but must be between 0 and 65535", context={"option": "--port"})
    from floeplan.audit.reports import default_reports

    try:
        from floeplan.rest.limits import ServerLimits
        from floeplan.rest.planner import PlannerOptions
        from floeplan.rest.policy import PlanningPolicy
        from floeplan.rest.proxy import ProxyOptions
        from floeplan.rest.server import ServerOptions, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _SERVER_PACKAGES:
            raise
        message = f"serve-catalog needs {error.name}: pip install floeplan[server]"
        raise FloeplanError(message, kind="missing-extra") from error
    proxied = None
    if upstream is not None:
        ca_file = None if upstream_ca is None else str(upstream_ca)
        proxied = ProxyOptions(_checked_uri(upstream), warehouse, replace_planning, _properties(io), ca_file)
    options = ServerOptions(
        upstream=proxied,
        catalog=catalog,
        host=host,
        port=port,
        policy=PlanningPolicy(tuple(plan or ()), tuple(plan_format_3 or ()), plan_nothing, switch_file),
        limits=ServerLimits(max_body_bytes, max_plans, max_waiting, plan_seconds, upstream_seconds, shutdown_seconds),
        planner=PlannerOptions(page_bytes=page_bytes),
        stores=tuple(store or ()),
        keys=keys,
        audit=audit or Path(default_reports()),
        redact=redact,
        certificate=tls_certificate,
        private_key=tls_key,
        plain_http=plain_http,
    )

    def ready(uri: str) -> None:
        if json:
            common.print_json({"uri": uri})
        else:
            common.text_console().print(f"serving {uri}")
        sys.stdout.flush()

    serve(options, ready)


def _checked_uri(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        message = f"--upstream {text!r} is not the http or https URI of a REST catalog"
        raise InvalidOptionError(message, context={"option": "--upstream"})
    return text.rstrip("/").removesuffix("/v1")


def _properties(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise InvalidOptionError(f"--io {pair!r} is not of the form key=value", context={"option": "--io"})
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """The audit record of one plan."""

    record: Mapping[str, Any]

    def to_dict(self) -> Mapping[str, Any]:
        """The JSON form: the record."""
        return self.record


def explain_plan(
    plan_id: Annotated[str, typer.Argument(metavar="ID", help="The plan id, from the log of the server, or last.")],
    reports: Annotated[
        Path | None,
        typer.Option("--reports", metavar="DIR", help="The folder of --audit; by default that of scan reports."),
    ] = None,
    json: common.JsonOption = False,
) -> None:
    """Explain why a query that the server planned read what it read.

    floeplan explain-plan last
    """
    from floeplan.audit.reports import default_reports
    from floeplan.rest.records import find_record

    common.show(RecordedPlan(find_record(reports or Path(default_reports()), plan_id)), draw_plan, as_json=json)


def draw_plan(plan: RecordedPlan) -> RenderableType:
    """Render the caller, the query, what each level kept, and why no more was dropped."""
    record = plan.record
    own, server = record.get("floeplan") or {}, record["server"]
    facts = common.key_value_table()
    engine = f"{server.get('engine')} {server.get('engine-version')}".strip()
    for name, value in (
        ("table", record.get("table-name")),
        ("snapshot", record.get("snapshot-id")),
        ("planned for", f"{server.get('principal')} with {engine}"),
        ("at", own.get("timestamp")),
        ("filter", own.get("predicate")),
        ("columns", ", ".join(record.get("projected-field-names") or ())),
        ("took", f"{server.get('ms')} ms, {human_bytes(server.get('sent-bytes') or 0)} sent"),
    ):
        facts.add_row(name, str(value))
    parts: list[RenderableType] = [facts, _levels(own.get("summary") or {}), _specs(own.get("specs") or ())]
    passes = [step for step in own.get("passes") or () if step.get("effects")]
    return Group(*parts, *_conjuncts(passes), *_reasons(passes))


def _levels(summary: Mapping[str, Any]) -> RenderableType:
    table = common.header_table("", ">kept", ">of", ">")
    for level in _LEVELS:
        kept, total = summary.get(f"{level}_kept"), summary.get(f"{level}_total")
        if kept is not None and total is not None:
            shown = human_bytes if level == "bytes" else "{:,}".format
            table.add_row(level, shown(kept), shown(total), percent(kept, total))
    return table


def _specs(specs: Any) -> RenderableType:
    table = common.header_table("spec", ">files kept", ">of")
    for spec in specs:
        kept, total = spec.get("files_kept"), spec.get("files_total")
        table.add_row(f"{spec.get('spec_id')}: {spec.get('spec')}", str(kept), "" if total is None else str(total))
    return table


def _conjuncts(passes: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """What each conjunct drops alone in each pass, and what decides it in the last one."""
    if not passes:
        return []
    decided = {"by_partition": "by partition", "by_bounds": "by bounds", "undecided": "undecided"}
    units = [f">{step.get('unit')}" for step in passes]
    table = common.header_table("dropped by each conjunct alone", *units, *(f">{name}" for name in decided.values()))
    for effects in zip(*(step["effects"] for step in passes), strict=False):
        dropped = (f"{one.get('dropped')}/{step.get('total')}" for one, step in zip(effects, passes, strict=True))
        table.add_row(str(effects[0].get("predicate")), *dropped, *(str(effects[-1].get(name)) for name in decided))
    return [table]


def _reasons(passes: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Each conjunct that drops few files, with what would help."""
    from floeplan.scan.explain import CURES

    found = {
        (str(effect.get("predicate")), str(effect.get("why")))
        for step in passes
        for effect in step["effects"]
        if effect.get("why") in CURES
    }
    return [Text(f"→ {predicate}: {why}; {CURES[why]}", style="cyan") for predicate, why in sorted(found)]
