"""Which tables the server tells clients to leave to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from floeplan.rest.policy import CLIENT, SERVER, TABLE_PROPERTY, PlanningPolicy

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
