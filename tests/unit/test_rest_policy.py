"""Which tables the server tells clients to leave to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from floeplan.rest.policy import CLIENT, SERVER, TABLE_PROPERTY, PlanningPolicy, has_float_partitions

pytestmark = pytest.mark.unit

ALL = PlanningPolicy(plan=("*",))


def test_without_a_pattern_every_table_is_planned_by_its_client() -> None:
    policy = PlanningPolicy()
    assert policy.table_mode("db.events", 2, {}) == CLIENT
    assert policy.catalog_mode == CLIENT


@pytest.mark.parametrize(
    ("pattern", "mode"),
    [
        ("*", SERVER),
        ("db.*", SERVER),
        ("db.events", SERVER),
        ("*.events", SERVER),
        ("db.event", CLIENT),
        ("other.*", CLIENT),
        ("DB.*", CLIENT),
    ],
)
def test_patterns_match_the_whole_name(pattern: str, mode: str) -> None:
    assert PlanningPolicy(plan=(pattern,)).table_mode("db.events", 2, {}) == mode


def test_nested_namespaces_are_matched_with_dots() -> None:
    assert PlanningPolicy(plan=("a.b.*",)).table_mode("a.b.t", 1, {}) == SERVER


@pytest.mark.parametrize(("version", "mode"), [(1, SERVER), (2, SERVER), (3, CLIENT), (4, CLIENT), (0, CLIENT)])
def test_only_formats_whose_plans_are_complete_are_planned(version: int, mode: str) -> None:
    assert ALL.table_mode("db.events", version, {}) == mode


def test_format_3_is_planned_on_request_and_nothing_else_is_by_that() -> None:
    policy = PlanningPolicy(plan_format_3=("db.*",))
    assert policy.table_mode("db.events", 3, {}) == SERVER
    assert policy.table_mode("db.events", 2, {}) == CLIENT
    assert policy.table_mode("db.events", 4, {}) == CLIENT


def test_a_table_property_decides_for_its_table() -> None:
    assert PlanningPolicy().table_mode("db.events", 2, {TABLE_PROPERTY: "server"}) == SERVER
    assert PlanningPolicy().table_mode("db.events", 3, {TABLE_PROPERTY: "server"}) == CLIENT
    assert ALL.table_mode("db.streamed", 2, {TABLE_PROPERTY: "CLIENT"}) == CLIENT
    assert ALL.table_mode("db.events", 2, {TABLE_PROPERTY: "neither"}) == SERVER


def test_float_partitions_are_planned_by_clients_unless_a_table_property_asks() -> None:
    """NaN among partition values cannot be sent."""
    policy = PlanningPolicy(plan=("*",), plan_format_3=("*",))
    asked = {TABLE_PROPERTY: "server"}
    for version in (1, 2, 3):
        assert policy.table_mode("db.events", version, {}, float_partitions=True) == CLIENT
        assert policy.table_mode("db.events", version, asked, float_partitions=True) == SERVER


FIELDS = [
    {"id": 1, "name": "x", "required": False, "type": "double"},
    {"id": 2, "name": "s", "required": False, "type": {"type": "struct", "fields": [{"id": 3, "type": "float"}]}},
    {"id": 4, "name": "n", "required": False, "type": "int"},
    {"id": 5, "name": "l", "required": False, "type": {"type": "list", "element-id": 6, "element": "double"}},
]


@pytest.mark.parametrize(
    ("source", "transform", "found"),
    [(1, "identity", True), (3, "identity", True), (4, "identity", False), (1, "void", False), (9, "identity", False)],
)
def test_float_partitions_are_found_in_metadata_of_every_format(source: int, transform: str, found: bool) -> None:
    schema = {"type": "struct", "schema-id": 0, "fields": FIELDS}
    field = {"source-id": source, "field-id": 1000, "name": "p", "transform": transform}
    specs = [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": [field]}]
    assert has_float_partitions({"schemas": [schema], "partition-specs": specs}) == found
    assert has_float_partitions({"schema": schema, "partition-spec": [field]}) == found
    assert not has_float_partitions({})


def test_the_switch_sends_client_for_all_tables(tmp_path: Path) -> None:
    switch = tmp_path / "off"
    policy = PlanningPolicy(plan=("*",), plan_format_3=("*",), switch_file=switch)
    on = policy.fingerprint()
    assert (policy.table_mode("db.events", 3, {}), policy.catalog_mode) == (SERVER, SERVER)
    switch.touch()
    assert policy.table_mode("db.events", 2, {TABLE_PROPERTY: "server"}) == CLIENT
    assert policy.catalog_mode == CLIENT
    assert policy.fingerprint() != on
    switch.unlink()
    assert policy.fingerprint() == on
    assert PlanningPolicy(plan=("*",), nothing=True).table_mode("db.events", 2, {}) == CLIENT
