"""Variant, geometry and geography columns: the table is usable without them, and errors name them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

import floeplan as fp
from floeplan.catalog import load_table
from floeplan.cli.main import main
from floeplan.errors import TypeMismatchError, UnsupportedError
from floeplan.maintain.doctor import doctor
from floeplan.opaque_types import OpaqueType
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions
from floeplan.transaction.metadata_json import writable_metadata
from tests.support.tables.commits import arrow, create_table, open_catalog, rows_of

pytestmark = pytest.mark.unit

TYPES = {"v": "variant", "g": "geometry(srid:3857)", "h": "geography(OGC:CRS84, karney)", "plain": "geometry"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table to which Java has added four columns of these types."""
    catalog = open_catalog(tmp_path)
    made = create_table(catalog, 3)
    path = Path(made.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    for at, (name, type_) in enumerate(TYPES.items(), 3):
        document["schemas"][0]["fields"].append({"id": at, "name": name, "type": type_, "required": False})
    document["last-column-id"] = 2 + len(TYPES)
    changed = path.with_name("00009-00000000-0000-4000-8000-000000000000.metadata.json")
    changed.write_text(json.dumps(document))
    catalog.register_table("db.opaque", str(changed))
    return load_table("db.opaque", catalog)


def test_types_are_kept_as_the_metadata_has_them(table: Table) -> None:
    """PyIceberg's parser accepts them: see floeplan/opaque_types.py if it does not any more."""
    types = {field.name: field.field_type for field in table.schema().fields}
    assert {name: str(types[name]) for name in TYPES} == TYPES
    assert types["v"] == OpaqueType("variant") != types["g"]
    again = pickle.loads(pickle.dumps(table.schema()))
    assert again == table.schema() == Schema.model_validate_json(table.schema().model_dump_json())
    fields = json.loads(table.schema().model_dump_json())["fields"]
    assert {field["name"]: field["type"] for field in fields} == {"id": "long", "part": "string", **TYPES}


def test_other_columns_are_planned_and_read(table: Table) -> None:
    plan = fp.plan_scan(table, "id < 10 AND part = 'a'")
    assert plan.summary.files_kept == 1
    assert plan.to_arrow(columns=["id", "part"]).to_pylist() == arrow(rows_of(0, 10)).to_pylist()
    assert fp.plan_scan(load_table(table.metadata_location), columns=["id"]).to_arrow().num_rows == 30


@pytest.mark.parametrize("name", TYPES)
def test_reading_such_a_column_is_an_error_that_names_it(table: Table, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"column {name} is a ge|column {name} is a variant"):
        fp.plan_scan(table).to_arrow(columns=["id", name])
    with pytest.raises(TypeMismatchError, match=f"column {name} is a .* filter by another column"):
        fp.plan_scan(table, f"{name} = 1")


def test_commands_that_need_no_row_work(table: Table, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in (["inspect"], ["plan", "--where", "id = 3"], ["doctor"], ["scan", "--columns", "id,part"]):
        assert main([command[0], table.metadata_location, *command[1:], "--json"]) == 0, command
        capsys.readouterr()
    assert main(["scan", table.metadata_location]) == 1
    assert "column v is a variant" in capsys.readouterr().err


def test_rows_are_deleted_and_files_moved_without_touching_the_types(table: Table) -> None:
    fp.delete(table, "id = 3", mode="merge-on-read")
    fp.delete(table, "part = 'b'")
    with writable_metadata(table.io), table.update_spec() as update:
        update.remove_field("part")
    moved = fp.upgrade_spec(table, options=UpgradeOptions(metadata_only=True, allow_coarser=True))
    assert moved.files_by_metadata == 2
    again = load_table("db.opaque", table.catalog)
    ids = fp.plan_scan(again, columns=["id"]).to_arrow()["id"].to_pylist()
    assert sorted(ids) == [i for i in range(30) if i != 3 and not 10 <= i < 20]
    assert {field.name: str(field.field_type) for field in again.schema().fields if field.name in TYPES} == TYPES
    assert doctor(again).healthy


def test_what_would_write_such_a_column_is_refused(table: Table) -> None:
    for write in (
        lambda: fp.append(table, arrow(rows_of(100, 110))),
        lambda: fp.delete(table, "id = 3", mode="copy-on-write"),
        lambda: fp.rewrite_data_files(table, options={"rewrite-all": "true"}),
    ):
        with pytest.raises(UnsupportedError, match="column v is a variant"):
            write()
    assert isinstance(table.catalog, SqlCatalog)
    assert fp.plan_scan(load_table("db.opaque", table.catalog), columns=["id"]).to_arrow().num_rows == 30
