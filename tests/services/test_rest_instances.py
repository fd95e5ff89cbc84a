"""`floeplan serve-catalog` as users start it: options, two instances, Iceberg's own server behind it, stopping."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import main
from tests.support.rest_server import program, upstream
from tests.support.servers import rest_catalog

pytestmark = pytest.mark.services

TABLE = "/v1/namespaces/db/tables/t"


@pytest.fixture
def table(floeplan_home: Path) -> Iterator[None]:
    """A table of 200 files in the embedded catalog."""
    with open_catalog() as catalog:
        catalog.create_namespace("db")
        created = catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("part", pa.int64())]))
        fp.sql(None, "ALTER TABLE db.t ADD PARTITION FIELD part", catalog=catalog)
        created.refresh()
        fp.append(created, pa.table({"id": list(range(400)), "part": [i // 2 for i in range(400)]}))
        yield


def keys(path: Path) -> Path:
    path.write_text(f"first {base64.b64encode(os.urandom(32)).decode()}\n")
    return path


def paths(document: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [task["data-file"]["file-path"] for task in document.get("file-scan-tasks", [])]


@pytest.mark.usefixtures("table")
def test_any_instance_serves_any_page_and_one_may_die(tmp_path: Path) -> None:
    shared = ("--plan", "*", "--keys", str(keys(tmp_path / "keys.txt")), "--page-bytes", "4000")
    with program(tmp_path / "a", *shared) as first, program(tmp_path / "b", *shared) as second:
        ana, bob = ({"Authorization": f"Bearer {name}"} for name in ("ana", "bob"))
        plan = requests.post(f"{first.uri}{TABLE}/plan", json={}, headers=ana).json()
        tokens = plan["plan-tasks"]
        assert len(tokens) > 5
        first.kill()
        files = paths(plan)
        for token in tokens:
            page = requests.post(f"{second.uri}{TABLE}/tasks", json={"plan-task": token}, headers=ana)
            files += paths(page.json())
        assert len(files) == len(set(files)) == 200
        foreign = requests.post(f"{second.uri}{TABLE}/tasks", json={"plan-task": tokens[0]}, headers=bob)
        forged = requests.post(f"{second.uri}{TABLE}/tasks", json={"plan-task": tokens[0][:-4] + "AAAA"}, headers=ana)
        for refused in (foreign, forged):
            assert (refused.status_code, refused.json()["error"]["type"]) == (404, "NoSuchPlanTaskException")


@pytest.mark.usefixtures("table")
def test_a_page_of_an_expired_snapshot_is_gone(tmp_path: Path) -> None:
    with program(tmp_path, "--plan", "*", "--page-bytes", "4000") as served:
        token = requests.post(f"{served.uri}{TABLE}/plan", json={}).json()["plan-tasks"][0]
        fp.append("db.t", pa.table({"id": [1], "part": [1]}))
        assert requests.post(f"{served.uri}{TABLE}/tasks", json={"plan-task": token}).status_code == 200
        assert main(["expire", "db.t", "--retain-last", "1", "--older-than", "0", "--yes"]) == 0
        gone = requests.post(f"{served.uri}{TABLE}/tasks", json={"plan-task": token})
        assert (gone.status_code, gone.json()["error"]["type"]) == (404, "NoSuchPlanTaskException")


@pytest.mark.usefixtures("table")
@pytest.mark.matrix
def test_many_clients_at_once_get_plans_or_are_told_to_wait(tmp_path: Path) -> None:
    with program(tmp_path, "--plan", "*", "--max-plans", "2", "--max-waiting", "4") as served:

        def ask(number: int) -> list[int]:
            """Statuses until the plan is there, waiting as told: every client must get its plan in the end."""
            filter_ = {"type": "eq", "term": "id", "value": number}
            statuses = []
            while not statuses or statuses[-1] == 429:
                answer = requests.post(f"{served.uri}{TABLE}/plan", json={"filter": filter_})
                statuses.append(answer.status_code)
                if answer.status_code == 429:
                    threading.Event().wait(float(answer.headers["Retry-After"]))
            return statuses

        with ThreadPoolExecutor(32) as clients:
            found = list(clients.map(ask, range(64)))
        assert {statuses[-1] for statuses in found} == {200}


@pytest.mark.usefixtures("table")
def test_sigterm_finishes_what_is_running(tmp_path: Path) -> None:
    with upstream() as behind:
        behind.answer("/v1/config", {"overrides": {}, "endpoints": []})
        behind.answer("/v1/namespaces/db/tables/slow", {"error": {"message": "late", "type": "X", "code": 404}}, 404)
        with program(tmp_path, "--upstream", behind.uri, "--plan", "*") as served:
            found: list[int] = []

            def ask() -> None:
                found.append(requests.post(f"{served.uri}/v1/namespaces/db/tables/slow/plan", json={}).status_code)

            running = threading.Thread(target=ask)
            running.start()
            while not any(received.path.endswith("/slow") for received in behind.received):
                threading.Event().wait(0.01)
            served.process.terminate()
            threading.Event().wait(0.2)
            assert served.process.poll() is None, "a request is running"
            behind.hang.set()
            running.join()
            assert found == [404]
            assert served.process.wait(30) == 0


def test_the_switch_file_sends_client_to_all(floeplan_home: Path, tmp_path: Path) -> None:
    switch = tmp_path / "off"
    with program(tmp_path, "--plan", "*", "--switch-file", str(switch)) as served:
        modes = []
        for _ in range(2):
            modes.append(requests.get(f"{served.uri}/v1/config").json()["overrides"]["scan-planning-mode"])
            switch.touch()
        assert modes == ["server", "client"]


def test_json_and_ready_line(floeplan_home: Path) -> None:
    command = [sys.executable, "-m", "floeplan.cli", "serve-catalog", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        uri = json.loads(process.stdout.readline())["uri"]
        assert requests.get(f"{uri}/healthz").status_code == 200
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()


def test_a_catalog_that_others_can_change_is_logged(floeplan_home: Path, tmp_path: Path) -> None:
    with program(tmp_path / "open", "--host", "0.0.0.0", "--plain-http") as served:
        (warning,) = served.events("no-authentication")
        assert (warning["level"], warning["host"]) == ("WARNING", "0.0.0.0")
    with program(tmp_path / "local") as served:
        assert not served.events("no-authentication")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "plain HTTP"),
        (["--upstream", "http://a", "--catalog", "b"], "cannot be combined"),
        (["--upstream", "ftp://a"], "http or https"),
        (["--tls-certificate", "x.crt"], "together"),
        (["--tls-certificate", "x.crt", "--tls-key", "x.key"], "no file"),
        (["--port", "70000"], "65535"),
        (["--io", "novalue", "--upstream", "http://a"], "key=value"),
        (["--keys", "missing.txt", "--port", "0"], "missing.txt"),
        (["--catalog", "missing"], "no catalog"),
        (["--tls-certificate", __file__, "--tls-key", __file__, "--port", "0"], "cannot use the certificate"),
        (["--upstream", "http://a", "--upstream-ca", __file__, "--port", "0"], "--upstream-ca"),
        (["--upstream", "http://a", "--upstream-ca", "missing.pem", "--port", "0"], "missing.pem"),
        (["--io", "s3.region=eu-central-1", "--port", "0"], "--io needs --upstream"),
        (["--replace-upstream-planning", "--port", "0"], "needs --upstream"),
    ],
)
def test_bad_options_are_one_line(
    floeplan_home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["serve-catalog", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_extra_is_named(floeplan_home: Path) -> None:
    # In a process of its own: modules imported a second time would stay behind in their package.
    program = (
        "import sys; sys.modules['httpx'] = None; from floeplan.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "serve-catalog", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "floeplan: serve-catalog needs httpx: pip install floeplan[server]\n")


def test_tls(floeplan_home: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    with program(tmp_path, "--tls-certificate", str(certificate), "--tls-key", str(key)) as served:
        assert served.uri.startswith("https://")
        assert requests.get(f"{served.uri}/healthz", verify=str(certificate)).status_code == 200
        with pytest.raises((requests.ConnectionError, ssl.SSLError)):
            requests.get(served.uri.replace("https", "http"), timeout=5).raise_for_status()


@pytest.mark.matrix
def test_pyiceberg_through_the_proxy_before_icebergs_own_server(tmp_path: Path) -> None:
    rows = pa.table({"id": list(range(100)), "region": ["eu", "us"] * 50})
    (tmp_path / "warehouse").mkdir()
    with rest_catalog(tmp_path, (tmp_path / "warehouse").as_uri(), {}) as behind:
        options = ("--upstream", behind, "--plan", "*", "--replace-upstream-planning")
        with program(tmp_path / "server", *options) as served, RestCatalog("lake", uri=served.uri) as catalog:
            catalog.create_namespace(("a", "b"))
            table = catalog.create_table(("a", "b", "t"), rows.schema)
            table.append(rows)
            with table.update_spec() as update:
                update.add_identity("region")
            table.append(rows)
            table.delete("id < 10")
            with RestCatalog("direct", uri=behind) as direct:
                expected = direct.load_table(("a", "b", "t")).scan(row_filter="region = 'eu'").to_arrow()
            found = catalog.load_table(("a", "b", "t")).scan(row_filter="region = 'eu'")
            assert sorted(found.to_arrow()["id"].to_pylist()) == sorted(expected["id"].to_pylist())
            assert found.count() == len(expected) == 90
            assert catalog.list_tables(("a", "b")) == [("a", "b", "t")]
            assert {event["table"] for event in served.events("plan")} == {"a.b.t"}
