"""Secrets stay out of messages, documents, logs and reports."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from floeplan import text as redact
from floeplan.catalog import load_table
from floeplan.cli.main import main
from floeplan.errors import FloeplanError
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.text import document_text, redacted, without_secrets
from tests.support.tables.two_specs import events, two_spec_table

pytestmark = pytest.mark.unit

TOKEN, KEY, PASSWORD = "tok-5f2a91c0", "wJalrXUtnFEMI/K7MDENG", "hunter2-p%40ss"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_known", set())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://ann:s3cret@db:5432/x failed", "postgresql+psycopg://***@db:5432/x failed"),
        ("GET https://h/p?X-Amz-Signature=abc&a=1", "GET https://h/p?X-Amz-Signature=***&a=1"),
        ("s3.secret-access-key=abc, s3.region=eu", "s3.secret-access-key=***, s3.region=eu"),
        ("{'token': 'abc', 'uri': 'http://h'}", "{'token': '***', 'uri': 'http://h'}"),
        ('{"s3.session-token": "abc"}', '{"s3.session-token": "***"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("unexpected token: )", "unexpected token: )"),
        ("no column 'token'; did you mean tokens?", "no column 'token'; did you mean tokens?"),
        ("s3://bucket/a@b/file.parquet", "s3://bucket/a@b/file.parquet"),
    ],
)
def test_secrets_of_messages_are_masked(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_short_secret_is_masked_only_as_a_whole_word() -> None:
    redact.remember({"s3.access-key-id": "test", "s3.secret-access-key": "minioadmin"})
    assert without_secrets("/tmp/pytest-1/test_a/latest.parquet") == "/tmp/pytest-1/test_a/latest.parquet"
    assert without_secrets("user test, 'test', k=test") == "user ***, '***', k=***"
    assert without_secrets("xminioadminx") == "x***x"


def test_secrets_within_properties_and_behind_names_are_known() -> None:
    redact.remember({"auth": {"type": "oauth2", "oauth2": {"client_id": "ann-1", "client_secret": KEY}}})
    redact.remember({"credential": f"ann-1:{TOKEN}", "header.Authorization": "Bearer eyJhbGci"})
    assert without_secrets(f"ann-1 {KEY} {TOKEN} oauth2 eyJhbGci") == "ann-1 *** *** oauth2 ***"


def test_documents_lose_known_secrets_only() -> None:
    uri = f"postgresql://ann:{PASSWORD}@db/x"
    redact.remember({"credential": KEY, "uri": uri, "warehouse": "s3://lake", "token": "true", "password": "1234"})
    document = {
        "partition": {"token": "eu"},
        "path": f"s3://lake/{KEY}/x",
        "nested": ("hunter2-p@ss",),
        "n": 1234,
        "b": True,
    }
    assert json.loads(document_text(document)) == {
        "partition": {"token": "eu"},
        "path": "s3://lake/***/x",
        "nested": ["***"],
        "n": 1234,
        "b": True,
    }


@pytest.mark.parametrize("secret", ['quo"te\\d', "pässwörd"])
@pytest.mark.parametrize("only_ascii", [False, True])
def test_secrets_are_found_however_json_writes_them(secret: str, only_ascii: bool) -> None:
    redact.remember({"password": secret})
    assert json.loads(document_text({"a": [f"<{secret}>"]}, only_ascii=only_ascii)) == {"a": ["<***>"]}


def test_secrets_of_the_environment_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    assert without_secrets(f"signed with {KEY}") == "signed with ***"


def test_errors_hold_no_secret() -> None:
    redact.remember({"token": TOKEN})
    error = FloeplanError(f"the catalog refused {TOKEN}", context={"uri": f"https://h/?token={TOKEN}", "all": [TOKEN]})
    assert TOKEN not in str(error) + repr(error) + json.dumps(error.to_dict())


@pytest.fixture
def run_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command on the table ``db.t_<token>`` of a catalog with secrets; returns all output and stored files."""
    reports = tmp_path / "reports"
    monkeypatch.setenv("FLOEPLAN_REPORTS", str(reports))
    table = two_spec_table(tmp_path, f"db.t_{TOKEN}")
    for name, value in {
        "TYPE": "sql",
        "URI": table.catalog.properties["uri"],
        "TOKEN": TOKEN,
        "S3__SECRET_ACCESS_KEY": KEY,
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LOCAL__{name}", value)

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["-v", *arguments, "--catalog", "local"]) == code, (arguments, capsys.readouterr())
        shown = capsys.readouterr()
        return shown.out + shown.err + "".join(path.read_text() for path in reports.glob("*"))

    return run


def assert_no_secret(text: str) -> None:
    for secret in (TOKEN, KEY):
        assert secret not in text


COMMANDS = {
    "plan": "plan {table}",
    "entries": "entries {table} -o {rows}.tree",
    "entries in one file": "entries {table} -o {rows}.entries.parquet",
    "scan": "scan {table}",
    "inspect": "inspect {table}",
    "expire": "expire {table}",
    "remove orphans": "remove-orphans {table}",
    "append": "append {table} {rows}",
    "delete": "delete {table} --where id<3",
    "update": "update {table} --set region='x' --where id=250",
    "merge": "merge {table} --source {rows} --on id --when-matched-update * --when-not-matched-insert *",
    "rewrite plan": "rewrite {table} --dry-run",
    "rewrite": "rewrite {table} --option rewrite-all=true --progress json",
    "upgrade": "upgrade-spec {table}",
    "manifests": "rewrite-manifests {table}",
    "report": "report {table} -o {site} --where id<3",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_or_stores_a_secret(run_cli: Callable[..., str], tmp_path: Path, name: str) -> None:
    """On a table whose name contains one, as text and as JSON, and when the table does not exist."""
    rows = tmp_path / f"rows-{TOKEN}.parquet"
    pq.write_table(events(290, 310), rows)
    site = tmp_path / "site"
    for form in ([], ["--json"]):
        present, missing = (
            COMMANDS[name].format(table=f"db.{which}_{TOKEN}", rows=rows, site=site).split() for which in ("t", "none")
        )
        assert_no_secret(run_cli(*present, *form))
        absent = run_cli(*missing, *form, code=2)
        assert_no_secret(absent)
        assert "db.none_***" in absent
    for written in (path for path in site.rglob("*") if path.suffix in (".html", ".js", ".json")):
        assert_no_secret(written.read_text())


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_sql_doctor_and_advice_show_no_secret(run_cli: Callable[..., str], tmp_path: Path, form: list[str]) -> None:
    table = f"db.`t_{TOKEN}`"
    assert_no_secret(run_cli("sql", f"DELETE FROM {table} WHERE region = '{KEY}' OR id = 1", *form))
    assert_no_secret(run_cli("sql", f"DELETE FROM {table} WHERE volt = '{KEY}'", *form, code=2))
    assert_no_secret(run_cli("sql", f"DELETE FRM {table} WHERE region = '{KEY}'", *form, code=2))
    assert_no_secret(run_cli("scan", f"db.t_{TOKEN}", "--where", f"region = '{KEY}'", *form))
    assert_no_secret(run_cli("advise", f"db.t_{TOKEN}", "--reports", str(tmp_path / "reports"), *form))
    assert_no_secret(run_cli("doctor", f"db.t_{TOKEN}", *form))


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_traceback_of_an_unexpected_error_shows_no_secret(
    run_cli: Callable[..., str], monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        try:
            raise OSError(f"Authorization: Bearer {KEY}")
        except OSError as error:
            raise RuntimeError(f"https://h/?token={TOKEN}&password={PASSWORD}") from error

    monkeypatch.setattr("floeplan.scan.plan.plan_scan", fail)
    text = run_cli("plan", f"db.t_{TOKEN}", *form, code=1)
    assert_no_secret(text)
    assert PASSWORD not in text
    assert "Traceback" in text
    assert "RuntimeError" in text


def test_a_catalog_that_cannot_be_opened_keeps_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__FAR__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", f"nosuchdialect://ann:{PASSWORD}@db/x")
    for form in ([], ["--json"]):
        assert main(["-v", "plan", "db.t", "--catalog", "far", *form])
    shown = capsys.readouterr()
    assert PASSWORD not in shown.out + shown.err
    assert "nosuchdialect" in shown.err


def test_log_lines_are_masked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    redact.remember({"token": TOKEN})
    assert main(["-v", "--version"]) == 0
    logging.getLogger("pyiceberg.io").warning("opened %s with %s", "s3://a:b@c/d", TOKEN)
    assert capsys.readouterr().err == "WARNING pyiceberg.io: opened s3://***@c/d with ***\n"
    try:
        raise RuntimeError(f"refused {TOKEN}")
    except RuntimeError:
        logging.getLogger("floeplan.explorer.server").exception("GET /api/plan?where=%s", TOKEN)
    logged = capsys.readouterr().err
    assert "refused ***" in logged
    assert TOKEN not in logged


def test_a_table_given_as_an_object_makes_its_secrets_known(tmp_path: Path) -> None:
    made = two_spec_table(tmp_path)
    catalog = SqlCatalog("local", **(dict(made.catalog.properties) | {"s3.secret-access-key": KEY}))
    table = load_table(catalog.load_table(made.name()))
    plan_scan(table, options=ScanOptions(report=False))
    assert redacted(KEY) == "***"
