"""Proxy mode before a scripted catalog: what passes through, what is edited, and what becomes of failures."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.rest.limits import ServerLimits
from floeplan.rest.planner import ScanPlanner
from floeplan.rest.policy import MODE_KEY, PlanningPolicy
from floeplan.rest.proxy import PLAN, TASKS, ProxyOptions
from floeplan.rest.server import ServerOptions, build
from tests.support.rest_server import Upstream, serving, upstream

pytestmark = pytest.mark.services

CONFIG, TABLE = "/v1/config", "/v1/namespaces/a.b/tables/t"
LOAD = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}"
ALL = PlanningPolicy(plan=("*",))


@pytest.fixture
def behind() -> Iterator[Upstream]:
    with upstream() as scripted:
        scripted.answer(CONFIG, {"defaults": {}, "overrides": {"namespace-separator": "%2E"}, "endpoints": [LOAD]})
        yield scripted


@pytest.fixture
def loaded(floeplan_home: Path) -> dict[str, Any]:
    """What a catalog sends when a client loads a table of 10 files."""
    catalog = open_catalog()
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    for start in range(0, 100, 10):
        fp.append(table, pa.table({"id": list(range(start, start + 10))}))
    table.refresh()
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {"token": "t"}, "new": [1.50]}


def server(behind: Upstream, audit: Path | None = None, **changes: Any) -> Any:
    options = ServerOptions(
        upstream=ProxyOptions(
            behind.uri, **{k: v for k, v in changes.items() if k in ("replace_planning", "warehouse")}
        ),
        policy=changes.get("policy", ALL),
        limits=changes.get("limits", ServerLimits()),
        stores=changes.get("stores", ()),
        audit=audit,
    )
    return serving(build(options))


def test_requests_and_responses_pass_through_untouched(behind: Upstream) -> None:
    path = "/v1/p%2Fq/namespaces/a%1Fb/views/v%20w?pageToken=&x=%C3%BC"
    body = b"\x00 any bytes \xff" * 1000
    headers = {"Authorization": "Bearer x", "X-Iceberg-Access-Delegation": "vended-credentials", "Idempotency-Key": "7"}
    hop = {"Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers"}
    with server(behind) as uri:
        response = requests.post(f"{uri}{path}", data=body, headers=headers | hop)
    assert (response.status_code, response.content, response.headers["X-Echo"]) == (200, body, "yes")
    (received,) = behind.received
    assert (received.method, received.path, received.body) == ("POST", path, body)
    assert {name: received.header(name.lower()) for name in headers} == headers
    assert [received.header(name) for name in ("x-hop", "te")] == [None, None]
    assert received.header("host") == behind.uri.removeprefix("http://")


@pytest.mark.parametrize("status", [204, 304, 400, 404, 409, 419, 500, 503])
def test_statuses_and_errors_pass_through(behind: Upstream, status: int) -> None:
    behind.answer("/v1/tables/rename", {"error": {"code": status, "type": "Any", "message": "ü"}}, status, X_Id="9")
    with server(behind) as uri:
        response = requests.post(f"{uri}/v1/tables/rename", json={})
    assert (response.status_code, response.headers["X-Id"]) == (status, "9")
    if status not in (204, 304):
        assert response.json()["error"]["message"] == "ü"


def test_the_configuration_is_edited_for_planning(behind: Upstream) -> None:
    behind.answer(
        f"{CONFIG}?warehouse=w",
        {
            "defaults": {"uri": "http://past"},
            "overrides": {"uri": "http://past", "prefix": "p"},
            "endpoints": [LOAD],
            "n": 1,
        },
    )
    with server(behind) as uri:
        config = requests.get(f"{uri}{CONFIG}?warehouse=w").json()
    assert config == {
        "defaults": {},
        "overrides": {"prefix": "p", MODE_KEY: "server"},
        "endpoints": [LOAD, PLAN, TASKS],
        "n": 1,
    }


def test_a_catalog_that_lists_no_endpoints_keeps_those_that_clients_take_for_granted(behind: Upstream) -> None:
    behind.answer(CONFIG, {"defaults": {}, "overrides": {}})
    with server(behind, policy=PlanningPolicy()) as uri:
        config = requests.get(f"{uri}{CONFIG}").json()
    assert {LOAD, PLAN, TASKS} < set(config["endpoints"])
    assert config["overrides"] == {MODE_KEY: "client"}


def test_a_loaded_table_gets_its_mode_and_nothing_else_changes(behind: Upstream, loaded: dict[str, Any]) -> None:
    behind.answer(TABLE, loaded, ETag='"abc"')
    with server(behind, policy=PlanningPolicy(plan=("a.b.t",))) as uri:
        requests.get(f"{uri}{CONFIG}")
        response = requests.get(f"{uri}{TABLE}")
        assert response.json() == loaded | {"config": {"token": "t", MODE_KEY: "server"}}
        assert "1.50" in response.text or "1.5" in response.text
        tag = response.headers["ETag"]
        assert tag != '"abc"'
        assert "ETag" in list(response.raw.headers), "Java looks for it in this case"
        behind.answer(TABLE, b"", 304, ETag='"abc"')
        again = requests.get(f"{uri}{TABLE}", headers={"If-None-Match": tag})
        assert (again.status_code, again.headers["ETag"]) == (304, tag)
        assert behind.received[-1].header("if-none-match") == '"abc"'
    with server(behind, policy=PlanningPolicy()) as uri:
        requests.get(f"{uri}{TABLE}", headers={"If-None-Match": tag})
        assert behind.received[-1].header("if-none-match") is None, "the mode has changed: the table must be sent again"


def test_a_created_table_gets_its_mode(behind: Upstream, loaded: dict[str, Any]) -> None:
    path = "/v1/namespaces/db/tables"
    behind.answer(path, loaded)
    with server(behind, policy=PlanningPolicy(plan=("db.new",))) as uri:
        created = [requests.post(f"{uri}{path}", json={"name": name}).json()["config"] for name in ("new", "other")]
    assert [config[MODE_KEY] for config in created] == ["server", "client"]


def test_pyiceberg_plans_through_the_proxy_as_the_caller(
    behind: Upstream, loaded: dict[str, Any], tmp_path: Path
) -> None:
    behind.answer(TABLE, loaded)
    with server(behind, tmp_path / "audit") as uri, RestCatalog("c", uri=uri, token="opaque-token") as catalog:
        scan = catalog.load_table(("a", "b", "t")).scan(row_filter="id >= 42 and id < 44")
        assert len(list(scan.plan_files())) == 1
        assert sorted(scan.to_arrow()["id"].to_pylist()) == [42, 43]
    loads = [received for received in behind.received if received.path == TABLE]
    assert len(loads) == 3, "one by the client, and one before each plan"
    assert {received.header("authorization") for received in loads} == {"Bearer opaque-token"}
    assert not any(received.path.endswith("/plan") for received in behind.received)
    (audit,) = (tmp_path / "audit").glob("*.jsonl")
    record = json.loads(audit.read_text().splitlines()[0])
    assert record["table-name"] == "a.b.t"
    assert record["floeplan"]["summary"]["files_kept"] == 1
    assert "opaque-token" not in audit.read_text()


@pytest.mark.parametrize("status", [401, 403, 404, 419, 429])
def test_who_may_not_load_a_table_gets_no_plan(behind: Upstream, loaded: dict[str, Any], status: int) -> None:
    behind.answer(TABLE, loaded)
    with server(behind) as uri:
        assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 200
        behind.answer(TABLE, {"error": {"code": status, "type": "X", "message": "no"}}, status)
        for action, body in (("plan", {}), ("tasks", {"plan-task": "x"})):
            refused = requests.post(f"{uri}{TABLE}/{action}", json=body)
            assert (refused.status_code, refused.json()["error"]["message"]) == (status, "no")


def test_a_table_that_has_not_changed_is_not_sent_again_unless_credentials_are_vended(
    behind: Upstream, loaded: dict[str, Any]
) -> None:
    behind.answer(TABLE, loaded, ETag='"abc"')
    with server(behind) as uri:
        for _ in range(2):
            assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 200
        assert behind.received[-1].header("if-none-match") == '"abc"'
        behind.answer(TABLE, b"", 304)
        assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 200
        other = {"Authorization": "Bearer other"}
        assert requests.post(f"{uri}{TABLE}/plan", json={}, headers=other).status_code == 503
        behind.answer(TABLE, loaded | {"storage-credentials": [{"prefix": "s3://", "config": {}}]}, ETag='"abc"')
        for _ in range(2):
            requests.post(f"{uri}{TABLE}/plan", json={}, headers=other)
        assert behind.received[-1].header("if-none-match") is None


def test_an_upstream_that_plans_keeps_planning(behind: Upstream, loaded: dict[str, Any]) -> None:
    planning = {"defaults": {}, "overrides": {"scan-planning-mode": "server"}, "endpoints": [LOAD, PLAN, TASKS]}
    behind.answer(CONFIG, planning)
    behind.answer(TABLE, loaded)
    behind.answer(f"{TABLE}/plan", {"status": "completed", "from": "upstream"})
    with server(behind, policy=PlanningPolicy()) as uri:
        assert requests.post(f"{uri}{TABLE}/plan", json={}).json()["from"] == "upstream"
        assert requests.get(f"{uri}{CONFIG}").json() == planning
        assert requests.get(f"{uri}{TABLE}").json() == loaded
    with server(behind, replace_planning=True) as uri:
        assert "from" not in requests.post(f"{uri}{TABLE}/plan", json={}).json()
        assert requests.get(f"{uri}{TABLE}").json()["config"][MODE_KEY] == "server"


def test_an_instance_that_has_seen_no_configuration_leaves_the_mode_of_an_upstream_that_plans(
    behind: Upstream, loaded: dict[str, Any]
) -> None:
    behind.answer(CONFIG, {"defaults": {}, "overrides": {}, "endpoints": [LOAD, PLAN, TASKS]})
    enforced = loaded | {"config": {MODE_KEY: "server"}}
    for path in (TABLE, "/v1/namespaces/a.b/tables"):
        behind.answer(path, enforced)
    with server(behind, policy=PlanningPolicy()) as uri:
        assert requests.get(f"{uri}{TABLE}").json() == enforced
    with server(behind, policy=PlanningPolicy()) as uri:
        assert requests.post(f"{uri}/v1/namespaces/a.b/tables", json={"name": "t"}).json() == enforced
    behind.answer(CONFIG, {"error": {"code": 400, "type": "X", "message": "no warehouse"}}, 400)
    with server(behind, policy=PlanningPolicy()) as uri:
        assert requests.get(f"{uri}{TABLE}").json() == enforced
        behind.answer(TABLE, loaded)
        assert requests.get(f"{uri}{TABLE}").json()["config"][MODE_KEY] == "client"


@pytest.mark.parametrize("target", ["/v1/../admin", "/v1/%2e%2e/%2E%2e/admin", "/v1/namespaces/%2F../x", "admin", "*"])
def test_a_path_cannot_leave_the_path_of_the_upstream_catalog(behind: Upstream, target: str) -> None:
    with server(behind) as uri:
        connection = http.client.HTTPConnection(uri.removeprefix("http://"))
        connection.putrequest("GET", target)
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()
    assert behind.received == []


def test_without_knowing_whether_upstream_plans_nothing_is_planned(behind: Upstream, loaded: dict[str, Any]) -> None:
    behind.answer(CONFIG, {"error": {"code": 400, "type": "X", "message": "no warehouse"}}, 400)
    behind.answer(f"{CONFIG}?warehouse=lake", {"overrides": {"prefix": "p"}, "endpoints": [LOAD]})
    behind.answer(TABLE, loaded)
    with server(behind) as uri:
        refused = requests.post(f"{uri}{TABLE}/plan", json={})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "--warehouse" in refused.json()["error"]["message"]
    with server(behind, warehouse="lake") as uri:
        assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 200


def test_plans_have_no_state_to_ask_for_or_to_cancel(behind: Upstream) -> None:
    with server(behind) as uri:
        assert requests.delete(f"{uri}{TABLE}/plan/some-id").status_code == 204
        missing = requests.get(f"{uri}{TABLE}/plan/some-id")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NoSuchPlanIdException")


HOSTILE = (
    b"",
    b"[1]",
    b"{",
    b'{"filter": null}',
    b'{"snapshot-id": "x"}',
    b'{"snapshot-id": 12345}',
    b'{"filter": {"type": "eq", "term": "nope", "value": 1}}',
    b'{"filter": {"type": "eq", "term": "id", "value": {"a": 1}}}',
    b'{"filter": {"type": "in", "term": "id", "values": [' + b"1," * 300_000 + b"1]}}",
    b'{"filter": ' + b'{"type":"not","child":' * 20_000 + b"true" + b"}" * 20_000 + b"}",
    b"[" * 100_000,
)


def test_hostile_bodies_are_refused_for_good(behind: Upstream, loaded: dict[str, Any]) -> None:
    behind.answer(TABLE, loaded)
    with server(behind) as uri:
        for body in HOSTILE:
            refused = requests.post(f"{uri}{TABLE}/plan", data=body)
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "BadRequestException"), body[:80]
        assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 200


def test_bodies_are_limited(behind: Upstream, loaded: dict[str, Any]) -> None:
    behind.answer(TABLE, loaded)
    with server(behind, limits=ServerLimits(body_bytes=100)) as uri:
        assert requests.post(f"{uri}{TABLE}/plan", data=b" " * 200).status_code == 413
        packed = requests.post(f"{uri}{TABLE}/plan", data=b"x", headers={"Content-Encoding": "gzip"})
        assert packed.status_code == 415


def test_metadata_outside_the_allowed_stores_is_not_read(behind: Upstream, loaded: dict[str, Any]) -> None:
    behind.answer(TABLE, loaded)
    with server(behind, stores=("s3://lake",)) as uri:
        assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 403
    steered = json.loads(json.dumps(loaded))
    steered["metadata"]["snapshots"][-1]["manifest-list"] = "s3://internal.example.com/list.avro"
    behind.answer(TABLE, steered)
    with server(behind) as uri:
        refused = requests.post(f"{uri}{TABLE}/plan", json={})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "ForbiddenException")


def test_a_lost_response_is_never_one_that_clients_repeat(behind: Upstream) -> None:
    with server(behind, limits=ServerLimits(upstream_seconds=0.3)) as uri:
        lost = requests.post(f"{uri}/v1/namespaces/db/tables/lost", json={})
        slow = requests.post(f"{uri}/v1/namespaces/db/tables/slow", json={})
        read = requests.get(f"{uri}/v1/namespaces/db/tables/slow")
    assert [lost.status_code, slow.status_code, read.status_code] == [502, 504, 503]
    assert ["Retry-After" in response.headers for response in (lost, slow, read)] == [False, False, True]


def test_a_read_that_loses_its_connection_is_repeated_once(behind: Upstream, loaded: dict[str, Any]) -> None:
    behind.answer(TABLE, loaded)
    with server(behind) as uri:
        for method, path in (("GET", CONFIG), ("GET", TABLE), ("POST", f"{TABLE}/plan")):
            behind.dropped = dict.fromkeys((CONFIG, TABLE), 1)
            assert requests.request(method, f"{uri}{path}", json={}).status_code == 200, path
        behind.dropped = {TABLE: 2}
        assert requests.post(f"{uri}{TABLE}/plan", json={}).status_code == 503
        behind.dropped = {"/v1/namespaces/db/tables/t": 1}
        assert requests.post(f"{uri}/v1/namespaces/db/tables/t", json={}).status_code == 502, "it may be committed"


def test_an_upstream_that_is_gone_is_an_error_that_clients_repeat(behind: Upstream) -> None:
    gone = Upstream(uri="http://127.0.0.1:1")
    with server(gone) as uri:
        for method, path in (("POST", "/v1/namespaces/db/tables/t"), ("POST", f"{TABLE}/plan"), ("GET", CONFIG)):
            response = requests.request(method, f"{uri}{path}", json={})
            assert (response.status_code, response.headers["Retry-After"]) == (503, "1"), path


def test_too_many_plans_are_refused_and_those_that_were_admitted_end(
    behind: Upstream, loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind.answer(TABLE, loaded)
    planned, release = threading.Event(), threading.Event()

    def slow(self: Any, *_: Any) -> Any:
        planned.set()
        assert release.wait(30)
        raise fp.FloeplanError("the store is away", retryable=True)

    monkeypatch.setattr(ScanPlanner, "plan", slow)
    limits = ServerLimits(plans=1, waiting=0, plan_seconds=20)
    with server(behind, limits=limits) as uri, ThreadPoolExecutor(1) as client:
        first = client.submit(requests.post, f"{uri}{TABLE}/plan", json={})
        while not planned.wait(0.05):
            assert not first.done(), first.result().text
        received = len(behind.received)
        busy = requests.post(f"{uri}{TABLE}/plan", json={})
        assert (busy.status_code, busy.headers["Retry-After"]) == (429, "1")
        assert len(behind.received) == received, "no table is loaded for a request that is refused"
        assert requests.get(f"{uri}/healthz").status_code == 200, "the event loop is free"
        release.set()
        assert first.result().status_code == 503, first.result().text
        assert "floeplan_plans_admitted 0" in requests.get(f"{uri}/metrics").text


def test_a_plan_past_its_deadline_is_an_error_that_clients_repeat(
    behind: Upstream, loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind.answer(TABLE, loaded)
    release = threading.Event()
    monkeypatch.setattr(ScanPlanner, "plan", lambda *_: release.wait(30))
    with server(behind, limits=ServerLimits(plan_seconds=0.1)) as uri:
        late = requests.post(f"{uri}{TABLE}/plan", json={})
        release.set()
    assert (late.status_code, late.headers["Retry-After"]) == (503, "1")


def test_reports_of_clients_are_recorded_and_passed_on(behind: Upstream, tmp_path: Path) -> None:
    report = {"report-type": "scan-report", "table-name": "c.a.b.t", "filter": True, "metrics": {}}
    behind.answer(f"{TABLE}/metrics", b"", 204)
    with server(behind, tmp_path / "audit") as uri:
        assert requests.post(f"{uri}{TABLE}/metrics", json=report).status_code == 204
        behind.answer(f"{TABLE}/metrics", b"{}", 403)
        assert requests.post(f"{uri}{TABLE}/metrics", json=report).status_code == 403
    assert [json.loads(received.body) for received in behind.received] == [report, report]
    (audit,) = (tmp_path / "audit").glob("*.jsonl")
    assert len(audit.read_text().splitlines()) == 1, "only what the catalog accepted is recorded"
