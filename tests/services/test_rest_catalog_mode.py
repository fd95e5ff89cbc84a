"""Catalog mode, used by PyIceberg's own REST client: what it advertises works, and the rest is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType
from starlette.requests import Request

from floeplan.catalog import open_catalog
from floeplan.rest import catalog_endpoints
from floeplan.rest.catalog_endpoints import CatalogBackend
from floeplan.rest.limits import AllowedStores, ServerLimits
from floeplan.rest.policy import MODE_KEY, PlanningPolicy
from floeplan.rest.server import ServerOptions, build
from floeplan.rest.wire import TablePath
from tests.support.rest_server import serving

pytestmark = pytest.mark.services

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "region": ["eu", "us"] * 50})


@pytest.fixture
def uri(floeplan_home: Path) -> Iterator[str]:
    options = ServerOptions(policy=PlanningPolicy(plan=("*",)), audit=floeplan_home / "audit")
    with serving(build(options)) as served:
        yield served


@pytest.fixture
def catalog(uri: str) -> Iterator[RestCatalog]:
    with RestCatalog("served", uri=uri) as opened:
        opened.create_namespace("db", {"owner": "ana"})
        yield opened


@pytest.fixture
def table(catalog: RestCatalog) -> Table:
    """Two partition specs, with files of each."""
    created = catalog.create_table("db.events", ROWS.schema)
    created.append(ROWS)
    with created.update_spec() as update:
        update.add_field("region", IdentityTransform(), "region")
    created.append(ROWS)
    return created


def records(home: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in (home / "audit").glob("*.jsonl") for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("where", "count"), [("id < 10", 20), ("region = 'eu' and id >= 90", 10), ("id > 1000", 0), ("region != 'eu'", 100)]
)
def test_pyiceberg_reads_what_the_server_plans(table: Table, floeplan_home: Path, where: str, count: int) -> None:
    scan = table.scan(row_filter=where)
    assert scan.to_arrow().num_rows == count
    assert scan.count() == count
    local = open_catalog().load_table("db.events").scan(row_filter=where)
    assert {task.file.file_path for task in scan.plan_files()} == {t.file.file_path for t in local.plan_files()}
    recorded = records(floeplan_home)
    assert len(recorded) == 3
    server = recorded[0]["server"]
    assert isinstance(server, dict)
    assert (server["engine"], server["principal"]) == ("PyIceberg", "anonymous")
    assert recorded[0]["table-name"] == "db.events"


def test_pyiceberg_changes_a_table_through_the_server(table: Table, catalog: RestCatalog) -> None:
    table.delete("id < 50")
    table.overwrite(ROWS.slice(0, 5), overwrite_filter="region = 'us'")
    with table.update_schema() as update:
        update.add_column("note", StringType())
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "now").commit()
    loaded = catalog.load_table("db.events")
    assert loaded.scan().count() == open_catalog().load_table("db.events").scan().count() == 55
    assert loaded.refs()["now"].snapshot_id == loaded.current_snapshot().snapshot_id
    assert loaded.scan(snapshot_id=loaded.history()[0].snapshot_id).count() == 100


def test_a_table_is_created_in_a_transaction(catalog: RestCatalog) -> None:
    with catalog.create_table_transaction("db.staged", ROWS.schema, properties={"format-version": "2"}) as staged:
        assert not catalog.table_exists("db.staged")
        staged.append(ROWS)
    assert catalog.load_table("db.staged").scan().count() == 100
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("db.staged", ROWS.schema)


def test_namespaces(catalog: RestCatalog) -> None:
    catalog.create_namespace(("db", "inner"))
    assert catalog.list_namespaces() == [("db",)]
    assert catalog.list_namespaces("db") == [("db", "inner")]
    assert catalog.load_namespace_properties("db") == {"owner": "ana"}
    summary = catalog.update_namespace_properties("db", {"owner", "absent"}, {"team": "lake"})
    assert (summary.removed, summary.updated, summary.missing) == (["owner"], ["team"], ["absent"])
    catalog.update_namespace_properties("db", {"team"})
    assert catalog.namespace_exists("db")
    assert catalog.load_namespace_properties("db") == {}
    assert catalog.update_namespace_properties("db", {"exists"}).missing == ["exists"]
    assert catalog.namespace_exists("db"), "the mark of the SQL catalog is no property of users"
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("db")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("db")
    catalog.drop_namespace(("db", "inner"))
    catalog.drop_namespace("db")
    assert not catalog.namespace_exists("db")
    for missing in (lambda: catalog.list_namespaces("nowhere"), lambda: catalog.list_tables("nowhere")):
        with pytest.raises(NoSuchNamespaceError):
            missing()


def test_tables_are_listed_renamed_registered_and_dropped(table: Table, catalog: RestCatalog) -> None:
    assert catalog.list_tables("db") == [("db", "events")]
    catalog.rename_table("db.events", "db.renamed")
    assert catalog.list_tables("db") == [("db", "renamed")]
    assert not catalog.table_exists("db.events")
    registered = catalog.register_table("db.again", table.metadata_location)
    assert registered.metadata.table_uuid == table.metadata.table_uuid
    catalog.drop_table("db.again")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.again")
    catalog.purge_table("db.renamed")
    assert catalog.list_tables("db") == []
    assert not Path(table.metadata_location.removeprefix("file://")).exists()


def test_a_commit_that_another_writer_has_overtaken_is_rejected(table: Table, catalog: RestCatalog) -> None:
    stale = catalog.load_table("db.events")
    with table.update_schema() as update:
        update.add_column("note", StringType())
    behind = stale.update_schema().add_column("other", LongType())
    with pytest.raises(CommitFailedException):
        behind.commit()


def test_what_the_server_would_misread_is_refused(table: Table, catalog: RestCatalog, uri: str) -> None:
    for property_ in ("py-io-impl", "s3.endpoint", "write.py-location-provider.impl"):
        with pytest.raises(BadRequestError, match="how this server reads files"):
            table.transaction().set_properties({property_: "evil.module.Class"}).commit_transaction()
        with pytest.raises(BadRequestError, match="how this server reads files"):
            catalog.create_table("db.evil", ROWS.schema, properties={property_: "evil.module.Class"})
    for name in ("a.b", ""):
        document = {"name": name, "schema": {"type": "struct", "fields": []}}
        assert requests.post(f"{uri}/v1/namespaces/db/tables", json=document).status_code == 400
    commit = f"{uri}/v1/namespaces/db/tables/events"
    for update in (
        {"action": "no-such-update"},
        {"action": "set-properties", "updates": {"a": "b"}, "a-new-field": 1},
        {"action": "set-location", "location": "s3://elsewhere/table"},
    ):
        response = requests.post(commit, json={"requirements": [], "updates": [update]})
        assert response.status_code in (400, 403, 406), update
    assert table.refresh().properties == {}
    elsewhere = {"name": "far", "metadata-location": "s3://elsewhere/v1.metadata.json"}
    assert requests.post(f"{uri}/v1/namespaces/db/register", json=elsewhere).status_code == 403


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("namespaces/db/properties", {"removals": 5}),
        ("namespaces/db/properties", {"removals": "owner"}),
        ("namespaces/db/properties", {"removals": [{"a": 1}]}),
        ("namespaces/db/register", {"name": "again"}),
        ("namespaces/db/register", {"name": "again", "metadata-location": 5}),
    ],
)
def test_malformed_bodies_are_refused(catalog: RestCatalog, uri: str, path: str, document: object) -> None:
    response = requests.post(f"{uri}/v1/{path}", json=document)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "BadRequestException")
    assert catalog.load_namespace_properties("db") == {"owner": "ana"}


def test_compressed_metadata_is_bounded(
    table: Table, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    compressed = tmp_path / "v9.gz.metadata.json"
    compressed.write_bytes(gzip.compress(metadata))
    document = {"name": "small", "metadata-location": compressed.as_uri()}
    assert requests.post(f"{uri}/v1/namespaces/db/register", json=document).status_code == 200
    monkeypatch.setattr(catalog_endpoints, "_MOST_METADATA", len(metadata) - 1)
    response = requests.post(f"{uri}/v1/namespaces/db/register", json=document | {"name": "bomb"})
    assert response.status_code == 400
    assert "bytes of metadata" in response.json()["error"]["message"]


def test_new_metadata_is_written_in_the_allowed_stores_only(table: Table, catalog: RestCatalog, uri: str) -> None:
    elsewhere = {"write.metadata.path": "hdfs://elsewhere:8020/metadata"}
    with pytest.raises(ForbiddenError, match="outside the stores"):
        table.transaction().set_properties(elsewhere).commit_transaction()
    with pytest.raises(ForbiddenError, match="outside the stores"):
        catalog.create_table("db.far", ROWS.schema, properties=elsewhere)
    catalog.create_namespace("far", {"location": "hdfs://elsewhere:8020/far"})
    with pytest.raises(ForbiddenError, match="outside the stores"):
        catalog.create_table("far.t", ROWS.schema)
    assert (catalog.list_tables("far"), table.refresh().properties) == ([], {})


def test_a_purge_deletes_no_files_outside_the_table(table: Table, catalog: RestCatalog, tmp_path: Path) -> None:
    imported = tmp_path / "imported.parquet"
    pq.write_table(ROWS, imported)
    other = catalog.create_table("db.imports", ROWS.schema)
    other.add_files([str(imported)])
    catalog.purge_table("db.imports")
    assert imported.exists()
    assert not Path(other.metadata_location.removeprefix("file://")).exists()
    table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    with pytest.raises(BadRequestError, match=r"gc\.enabled"):
        catalog.purge_table("db.events")
    assert table.refresh().scan().to_arrow().num_rows == 200


def test_what_is_not_served_is_neither_advertised_nor_answered(uri: str) -> None:
    config = requests.get(f"{uri}/v1/config").json()
    assert config["overrides"] == {MODE_KEY: "server"}
    assert not any("views" in endpoint or "transactions" in endpoint for endpoint in config["endpoints"])
    for method, path in (("GET", "/v1/namespaces/db/views"), ("POST", "/v1/transactions/commit"), ("GET", "/v2")):
        response = requests.request(method, f"{uri}{path}", json={})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == 404


def test_a_loaded_table_carries_its_mode_and_an_etag_that_covers_it(table: Table, uri: str) -> None:
    path = f"{uri}/v1/namespaces/db/tables/events"
    loaded = requests.get(path)
    assert loaded.json()["config"] == {MODE_KEY: "server"}
    on_disk = json.loads(Path(table.refresh().metadata_location.removeprefix("file://")).read_text())
    assert loaded.json()["metadata"] == on_disk
    assert "ETag" in list(loaded.raw.headers), "Java looks for it in this case"
    tag = {"If-None-Match": loaded.headers["ETag"]}
    assert requests.get(path, headers=tag).status_code == 304
    table.transaction().set_properties({"floeplan.scan-planning-mode": "client"}).commit_transaction()
    changed = requests.get(path, headers=tag)
    assert (changed.status_code, changed.json()["config"]) == (200, {MODE_KEY: "client"})


def test_requests_that_wait_for_a_load_share_the_next_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    began, release, loads = threading.Event(), threading.Event(), list[int]()

    def slow(self: CatalogBackend, name: tuple[str, ...]) -> Table:
        loads.append(len(loads))
        began.set()
        assert release.wait(60)
        return self._catalog.load_table(name)

    monkeypatch.setattr(CatalogBackend, "_load", slow)

    target = TablePath.match("/v1/namespaces/db/tables/events/plan")
    assert target is not None
    request = Request({"type": "http", "method": "POST", "path": target.path, "headers": []})
    backend = CatalogBackend(open_catalog(), PlanningPolicy(), AllowedStores(), ServerLimits())

    async def load_often() -> list[Table]:
        first = asyncio.ensure_future(backend.load(request, target))
        assert await asyncio.to_thread(began.wait, 60)
        others = [asyncio.ensure_future(backend.load(request, target)) for _ in range(8)]
        await asyncio.sleep(0)  # all of them have begun
        release.set()
        found = await asyncio.gather(first, *others)
        await backend.load(request, target)
        await backend.close()
        return found

    tables = asyncio.run(load_often())
    assert {each.metadata_location for each in tables} == {table.metadata_location}
    assert len({id(each) for each in tables}) == 2, "one was running, and those that arrived meanwhile share the next"
    assert len(loads) == 3


def test_metadata_is_parsed_once_and_a_change_is_seen_at_once(
    table: Table, catalog: RestCatalog, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, load_table = list[str](), SqlCatalog.load_table

    def counted(self: SqlCatalog, name: str | tuple[str, ...]) -> Table:
        parsed.append(".".join(name))
        return load_table(self, name)

    monkeypatch.setattr(SqlCatalog, "load_table", counted)

    def plan() -> requests.Response:
        return requests.post(f"{uri}/v1/namespaces/db/tables/events/plan", json={})

    before = [len(plan().json()["file-scan-tasks"]) for _ in range(3)]
    assert len(parsed) <= 1
    table.append(ROWS)
    assert len(plan().json()["file-scan-tasks"]) > before[0]
    catalog.rename_table("db.events", "db.other")
    assert plan().status_code == 404, "the name is checked every time"
    catalog.rename_table("db.other", "db.events")
    catalog.drop_table("db.events")
    assert plan().status_code == 404


def test_health_and_metrics(table: Table, uri: str) -> None:
    table.scan().plan_files()
    assert requests.get(f"{uri}/healthz").json() == {"status": "ok"}
    text = requests.get(f"{uri}/metrics").text
    assert 'floeplan_requests_total{endpoint="plan",status="200"} 1' in text
    assert 'floeplan_plan_seconds_count{engine="PyIceberg"} 1' in text


def test_client_reports_are_recorded(table: Table, uri: str, floeplan_home: Path) -> None:
    report = {"report-type": "commit-report", "table-name": "lake.db.events", "snapshot-id": 1, "metrics": {}}
    response = requests.post(f"{uri}/v1/namespaces/db/tables/events/metrics", json=report)
    assert response.status_code == 204
    assert [record["report-type"] for record in records(floeplan_home)] == ["commit-report"]


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Accept-Language": "fo"}]
)
def test_web_pages_of_other_sites_are_refused(uri: str, headers: dict[str, str]) -> None:
    created = requests.post(f"{uri}/v1/namespaces", json={"namespace": ["evil"]}, headers=headers)
    assert created.status_code == 403
    assert requests.get(f"{uri}/v1/namespaces").json() == {"namespaces": []}
