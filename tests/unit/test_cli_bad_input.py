"""Bad input of every command: exit code 2, one line that names it, one JSON document, and nothing is changed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import floeplan as fp
from floeplan.catalog import open_catalog
from floeplan.cli.main import COMMANDS, main
from tests.support.tables.two_specs import EVENTS, events

pytestmark = pytest.mark.unit

T = "db.events"
CASES = [
    ("plan nope.t", "no table 'nope.t'"),
    ("plan db.event", "did you mean db.events?"),
    ("plan db.zzzzzz", "'db' has 1 table"),
    ("plan T --where broken((", "cannot parse the predicate at position"),
    ("plan T --where nope=1", "no column nope"),
    ("plan T --columns nope", "no column 'nope'"),
    ("plan T --snapshot-id abc", "--snapshot-id is 'abc' but must be a whole number"),
    ("plan T --snapshot-id 1", "no snapshot 1"),
    ("plan T --ref nope", "no branch or tag nope"),
    ("plan T --as-of soon", "--as-of 'soon' is neither a time such as 2024-03-01T12:00:00 nor an age such as 2h"),
    ("plan T --as-of 9d", "no snapshot as old as 20"),
    ("plan T --as-of 9999999d", "--as-of is '9999999d', which is before the first year"),
    ("plan T --columns ,", "',' names no column"),
    ("plan T --where id=1 --where id=2", "--where is given 2 times; join the conditions by AND"),
    ("plan T --as-of 1990-01-01", "no snapshot as old as 1990-01-01 00:00:00 UTC; its first is of 20"),
    ("plan T --root FOLDER", "is a folder"),
    ("plan T --catalog nope", "no catalog 'nope'"),
    ("why T nope.parquet", "no data file 'nope.parquet'"),
    ("scan T -o FOLDER", "FOLDER is a folder, and a file is expected"),
    ("scan T -o FOLDER/no/x.csv", "no such folder"),
    ("scan T --format xml", "--format is 'xml'"),
    ("scan T --limit -1", "--limit is '-1' but must be at least 0"),
    ("prune FOLDER --where TRUE", "FOLDER is a folder, and a file is expected"),
    ("prune FOLDER/no.parquet --where TRUE", "no such file"),
    ("list nope", "no namespace 'nope'"),
    ("inspect nope.t", "no table 'nope.t'"),
    ("snapshots T --branch nope", "no branch or tag nope; it has: main"),
    ("rollback T --to 9999999d", "--to is '9999999d', which is before the first year"),
    ("rollback T --to 1", "cannot roll back main to snapshot 1"),
    ("cherrypick T --snapshot-id 1", "no snapshot 1"),
    ("branch T main --drop", "main cannot be dropped"),
    ("branch T x --retain 5x", "--retain is '5x'"),
    ("tag T ''", "the name of the tag is empty"),
    ("tag T main", "main is a branch, not a tag: choose another name"),
    ("properties T nope", "'nope' has no value"),
    ("entries T -o FILE", "FILE is a file, and a folder is expected"),
    ("entries T -o FOLDER --layout v9", "--layout: 'v9' is not one of 'file', 'v3', 'v4'"),
    ("entries T -o FOLDER --layout file", "FOLDER is a folder, and a file is expected"),
    ("append T FOLDER/no.parquet", "no file"),
    ("append T FILE --spec x", "--spec is 'x' but must be a whole number"),
    ("append T FILE --branch nope", "no branch nope"),
    ("delete T --where nope=1", "no column nope"),
    ("delete T --where \"region IS NOT 'eu'\"", "IS takes NULL, TRUE, FALSE or UNKNOWN; compare values with = or <=>"),
    ("delete T --where=id=1 --where id=2", "--where is given 2 times; join the conditions by AND"),
    ("delete T --where TRUE --mode fast", "'fast' is not one of"),
    ("update T --set nope=1 --where TRUE", "no column nope"),
    ("update T --set \"id = 'x'\" --where TRUE", "'x' is string and cannot be stored in column id"),
    ("update T --set \"id = 'x'\" --where TRUE --dry-run", "'x' is string and cannot be stored in column id"),
    ("merge T --source nope.t --on id --when-matched-delete TRUE", "no table 'nope.t' in catalog 'local'"),
    ("merge T --source FILE --on id", "at least one --when-"),
    ("sql SELEC", "SELEC is not supported; supported are queries, INSERT"),
    ("sql 'SELECT * FROM db.event'", "no table 'db.event' in catalog 'local'; did you mean db.events?"),
    (
        "sql 'MERGE INTO db.events t USING db.event s ON t.id = s.id WHEN MATCHED THEN DELETE'",
        "did you mean db.events?",
    ),
    ("sql 'INSERT INTO db.events SELECT * FROM db.event'", "no table 'db.event' in catalog 'local'; did you mean"),
    ("sql 'SELECT * FROM db.events.snapshot'", "db.events has no metadata table snapshot; did you mean snapshots?"),
    ("sql 'CREATE TABLE db.x (id INT, id INT)'", "cannot create db.x: Invalid schema, multiple fields for name id"),
    ("sql 'CREATE TABLE db.x (id INT, ID INT)'", "the columns id and ID differ only in case"),
    ("sql 'CREATE TABLE db.x (d DECIMAL(50, 2))'", "column d is DECIMAL(50, 2), but a decimal has 1 to 38 digits"),
    ("sql 'CREATE TABLE db.x (d DECIMAL(2, 5))'", "column d is DECIMAL(2, 5), but a decimal has 1 to 38 digits in all"),
    ("sql 'CALL floeplan.system.nope()'", "unknown procedure nope"),
    ("rewrite T --strategy magic", "unknown strategy 'magic'"),
    ("rewrite T --progress maybe --dry-run", "--progress is 'maybe' but must be auto, bar, json or none"),
    ("rewrite T --option nope=1", "unknown rewrite option 'nope'"),
    ("rewrite T --spec 99", "no partition spec 99"),
    ("audit --reports FOLDER/no", "no reports at"),
    ("audit --reports FOLDER --since 9999999d", "--since is '9999999d', which is before the first year"),
    ("audit --reports FOLDER --most 0", "--most is '0' but must be at least 1"),
    ("audit --reports FOLDER --min-ratio x", "--min-ratio is 'x' but must be a number"),
    ("audit --reports FOLDER --findings nope", "--findings is 'nope' but must be namespace.name"),
    ("advise T --reports FOLDER --kind magic", "--kind is 'magic'"),
    ("upgrade-spec T --to 99", "no partition spec 99"),
    ("upgrade-spec T --grace 5x", "--grace is '5x'"),
    ("upgrade-format T --to 9", "the format version is 9 but must be one of 2, 3, 4"),
    ("rewrite-manifests T --spec 99", "no partition spec 99"),
    ("rewrite-deletes T --where nope=1", "no column nope"),
    ("expire T --older-than soon", "--older-than is 'soon'"),
    ("expire T --yes --dry-run", "exclude each other"),
    ("remove-orphans T --older-than 1h", "1h"),
    ("doctor T --branch nope", "no branch or tag nope; it has: main"),
    ("maintain nope.t", "no table 'nope.t'"),
    ("maintain --policy FOLDER", "cannot read the policy"),
    ("maintain --budget-bytes lots", "--budget-bytes is 'lots'"),
    ("maintain --metrics FOLDER", "FOLDER is a folder, and a file is expected"),
    ("maintain --reports FOLDER/no", "no reports at"),
    ("report T -o FILE", "is not a folder"),
    ("serve nope.t", "no table 'nope.t'"),
    ("serve --port 99999", "--port is 99999"),
    ("serve --host nohost.invalid", "choose another address with --host"),
    ("serve-catalog --upstream nope", "--upstream 'nope'"),
    ("explain-plan nope --reports FOLDER", "no record of plan 'nope'"),
    ("demo --size huge", "--size is 'huge'"),
]


@pytest.fixture
def table(floeplan_home: Path) -> Table:
    lake = open_catalog()
    lake.create_namespace("db")
    table = lake.create_table(T, EVENTS)
    fp.append(table, events(0, 10))
    return table


def test_every_command_has_a_case() -> None:
    assert {case.split()[0] for case, _ in CASES} == set(COMMANDS)


@pytest.mark.parametrize(("command", "message"), CASES, ids=[case for case, _ in CASES])
def test_bad_input_is_named_and_changes_nothing(
    table: Table, command: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "rows"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), file)
    names = {"T": T, "FOLDER": str(folder), "FILE": str(file)}

    def named(text: str) -> str:
        return text.replace("FOLDER", names["FOLDER"]).replace("FILE", names["FILE"])

    arguments = [T if word == "T" else named(word) for word in shlex.split(command)]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("floeplan: ")
    assert named(message) in err
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert err == ""
    assert named(message) in error["message"]
    assert (error["retryable"], error["committed"]) == (False, False)
    assert open_catalog().load_table(T).metadata_location == table.metadata_location
    assert sorted(tmp_path.rglob("*.partial")) == []
