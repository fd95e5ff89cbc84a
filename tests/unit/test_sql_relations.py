"""Table names in queries that are looked up in the catalog, and when a Spark session is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger

import floeplan as fp
from floeplan.errors import BadInputError, UnknownTableError
from floeplan.spark import session
from floeplan.spark.metadata_tables import _TABLES, metadata_rows
from floeplan.spark.session import SparkOnDemand, spark_errors_translated
from floeplan.sql_text.relations import as_of, find_relation, find_table, open_table, table_references
from floeplan.sql_text.run import StatementOptions, run_text
from tests.support.tables.two_specs import catalog, two_spec_table

pytestmark = pytest.mark.unit


def replaced(text: str) -> str:
    """The query with each name in angle brackets, and with a star where it needs an alias."""
    for place in reversed(list(table_references(text))):
        name = text[place.start : place.end]
        text = f"{text[: place.start]}<{name}>{'*' if place.needs_alias else ''}{text[place.end :]}"
    return text


@pytest.mark.parametrize(
    "marked",
    [
        "SELECT * FROM <db.t>*",
        "SELECT * FROM <db.t> x",
        "SELECT * FROM <db.t> AS x WHERE x.a IN (SELECT b.c FROM <db.`odd name`>*)",
        "SELECT a.b, c.d FROM <db.t> a, <db.u> c, v",
        "SELECT a.b, (SELECT max(x.y) FROM <db.t> x), a.c FROM <local.db.u.branch_b> a",
        "WITH n AS (SELECT * FROM <db.t>*) SELECT n.* FROM n JOIN <db.u>* ON n.id = u.id WHERE n.a = 1",
        "SELECT extract(YEAR FROM ts), id FROM t GROUP BY a.b, c.d",
        "TABLE <db.t>",
        "SELECT * FROM <db.t>* UNION ALL TABLE <db.u>",
        "FROM <db.t> x SELECT x.a, x.b",
        "SELECT * FROM <parquet.`/a/b`>*",
        "SELECT * FROM db.f(1)",
        "SELECT 'FROM db.t' AS a",
        "VALUES (a.b, c.d)",
        "SELECT * FROM <db.t> x LEFT JOIN <db.u> y USING (id) LATERAL VIEW explode(x.l) z AS w",
    ],
)
def test_names_where_a_table_is_expected(marked: str) -> None:
    plain = marked.replace("<", "").replace(">*", "").replace(">", "")
    assert replaced(plain) == marked


@pytest.mark.parametrize(
    ("clause", "version", "timestamp"),
    [
        ("VERSION AS OF 5", "5", None),
        ("FOR SYSTEM_VERSION AS OF 'b'", "b", None),
        ("TIMESTAMP AS OF '2024-01-01'", None, "'2024-01-01'"),
        ("FOR SYSTEM_TIME AS OF TIMESTAMP '2024-01-01 00:00:00'", None, "TIMESTAMP '2024-01-01 00:00:00'"),
        ("TIMESTAMP AS OF now() - INTERVAL 1 DAY", None, "now() - INTERVAL 1 DAY"),
        ("TIMESTAMP AS OF (SELECT max(t) FROM u)", None, "(SELECT max(t) FROM u)"),
    ],
)
@pytest.mark.parametrize("alias", ["", " x", " AS x"])
def test_the_snapshot_of_a_table(clause: str, version: str | None, timestamp: str | None, alias: str) -> None:
    text = f"SELECT * FROM db.t {clause}{alias} WHERE a = 1"
    (found,) = table_references(text)
    assert (found.version, found.timestamp, found.needs_alias) == (version, timestamp, not alias)
    assert text[found.start : found.end] == f"db.t {clause}"


def test_a_snapshot_without_its_value_is_refused() -> None:
    for text in ("SELECT * FROM db.t VERSION AS OF x", "SELECT * FROM db.t TIMESTAMP AS OF"):
        with pytest.raises(BadInputError, match="expected"):
            list(table_references(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT * FROM Events e JOIN other", ["Events", "other"]),
        ("WITH events AS (SELECT 1) SELECT * FROM events", []),
        ("WITH x AS (SELECT * FROM events) SELECT * FROM x, events", ["events", "events"]),
        ("WITH events (a, b) AS (SELECT 1, 2) SELECT * FROM events", []),
        ("SELECT events, b FROM other WHERE a IN (1, events)", ["other"]),
    ],
)
def test_names_of_one_part_are_tables_unless_the_query_defines_them(text: str, found: list[str]) -> None:
    assert [".".join(reference.parts) for reference in table_references(text, single=True)] == found


def test_the_last_part_of_a_name_is_a_snapshot_or_a_metadata_table(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    local = catalog(tmp_path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for last, expected in (
        (f"snapshot_id_{snapshot.snapshot_id}", ("snapshot_id", snapshot.snapshot_id)),
        (f"at_timestamp_{snapshot.timestamp_ms}", ("timestamp_ms", snapshot.timestamp_ms)),
        ("tag_v1", ("ref", "v1")),
        ("files", ("metadata", "files")),
    ):
        found = find_relation(("db", "events", last), local)
        assert found is not None
        assert (found.table.name(), getattr(found, expected[0])) == (table.name(), expected[1])
    for name in _TABLES:
        metadata = find_relation(("db", "events", name.upper()), local)
        assert metadata is not None
        assert metadata.metadata == name
    assert find_relation(("db", "events", "snapshot_id_x"), local) is None
    assert find_table(("db", "events", "files"), local) is None
    (reference,) = table_references("SELECT * FROM db.events.tag_v1 VERSION AS OF 1")
    tagged = find_relation(reference.parts, local)
    assert tagged is not None
    with pytest.raises(BadInputError, match="already names a snapshot"):
        as_of(tagged, reference, None)


def test_a_metadata_table_has_snapshots_too(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    first, *_ = table.snapshots()
    text = f"SELECT * FROM db.events.files VERSION AS OF {first.snapshot_id}"
    (reference,) = table_references(text)
    found = find_relation(reference.parts, catalog(tmp_path))
    assert found is not None
    found = as_of(found, reference, None)
    assert (found.metadata, found.snapshot_id) == ("files", first.snapshot_id)
    assert metadata_rows(found.table, "files", snapshot_id=found.snapshot_id).num_rows == 1


def test_names_are_looked_up_with_catalog_and_branch(tmp_path: Path) -> None:
    table = two_spec_table(tmp_path)
    local = catalog(tmp_path)
    assert _found(("db", "events"), local) == (table.name(), None)
    assert _found(("local", "db", "events"), local) == (table.name(), None)
    assert _found(("db", "events", "branch_b"), local) == (table.name(), "b")
    assert _found(("local", "db", "events", "tag_v1"), local) == (table.name(), "v1")
    assert _found(("db", "nope"), local) is None
    assert _found(("nope", "db", "events"), local) is None
    assert _found(("events",), local) is None
    assert _found(("parquet", "/a/b"), local) is None
    with pytest.raises(UnknownTableError):
        open_table(("db", "nope"), local)
    with pytest.raises(BadInputError, match="dot"):
        open_table(("db", "a.b"), local)


def _found(parts: tuple[str, ...], local: SqlCatalog) -> tuple[object, str | None] | None:
    found = find_table(parts, local)
    return None if found is None else (found[0].name(), found[1])


class OpenedError(Exception):
    """A session was requested."""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(url: str) -> None:
        raise OpenedError(url)

    monkeypatch.setattr(session, "open_session", opened)


@pytest.mark.usefixtures("no_spark")
def test_spark_is_opened_only_for_what_arrow_cannot_do(tmp_path: Path) -> None:
    two_spec_table(tmp_path)
    options = StatementOptions(catalog=catalog(tmp_path))

    def run(statement: str) -> object:
        return run_text(statement, SparkOnDemand(url="local[1]"), options)

    for alone in (
        "DELETE FROM db.events WHERE region = 'eu' AND id > 250",
        "UPDATE db.events SET v = abs(v) + 1 WHERE id < 3",
        "INSERT INTO db.events (id, v) VALUES (1, 2.5 + 1)",
        "INSERT OVERWRITE db.events PARTITION (region = 'us') (id) VALUES (7)",
        "MERGE INTO db.events t USING db.events s ON t.id = s.id AND s.id = 5 WHEN MATCHED THEN DELETE",
    ):
        run(alone)
    for together in (
        "DELETE FROM db.events WHERE soundex(region) = 'E000'",
        "UPDATE db.events SET region = soundex(region)",
        "INSERT INTO db.events SELECT * FROM db.events",
        "INSERT INTO db.events (region) VALUES (soundex('x'))",
        "MERGE INTO db.events t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "MERGE INTO db.events t USING a_view s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(OpenedError, match=r"local\[1\]"):
            run(together)


def test_spark_errors_are_one_line_and_reported_once() -> None:
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    with spark_errors_translated():
        assert logger.disabled
    with pytest.raises(BadInputError) as refused, spark_errors_translated():
        raise AnalysisException("\n[NO] no\nsuch thing\n at java")
    assert refused.value.message == "Spark cannot run the query: [NO] no"
    with pytest.raises(fp.FloeplanError, match="nothing was committed: late") as failed, spark_errors_translated():
        raise PySparkException("late\n at java")
    assert (failed.value.exit_code, failed.value.kind, logger.disabled) == (1, "spark-failed", False)


def test_a_statement_that_needs_a_session_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_spec_table(tmp_path)
    monkeypatch.setattr("floeplan.sql_text.run.active_session", lambda: None)  # other tests may have started one
    for text in (
        "SELECT * FROM db.events",
        "INSERT INTO db.events SELECT 1",
        "MERGE INTO db.events t USING v ON t.id = 1 WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(BadInputError, match="needs a Spark session"):
            fp.sql(None, text, catalog=catalog(tmp_path))
    with pytest.raises(fp.FloeplanError, match="outside Spark"):
        fp.sql(None, "DELETE FROM db.events WHERE soundex(region) = 'x'", catalog=catalog(tmp_path))
