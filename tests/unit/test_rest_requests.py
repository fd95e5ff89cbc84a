"""Requests of REST clients: parsed, validated, and written canonically."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest as PyIcebergRequest
from pyiceberg.expressions import And, EqualTo, GreaterThan

from floeplan.errors import BadInputError
from floeplan.rest.requests import PlanTableScanRequest

pytestmark = pytest.mark.unit


def test_everything_that_spark_sends() -> None:
    body = {
        "snapshot-id": 5,
        "select": ["id", "nested.a", "_file", "_partition.day"],
        "filter": {"type": "not-null", "term": "id"},
        "case-sensitive": False,
        "use-snapshot-schema": True,
        "stats-fields": ["id"],
        "min-rows-requested": 10,
        "something-new": {"a": 1},
    }
    request = PlanTableScanRequest.parse(json.dumps(body))
    assert request == PlanTableScanRequest(
        snapshot_id=5,
        select=("id", "nested.a", "_file", "_partition.day"),
        filter={"type": "not-null", "term": "id"},
        case_sensitive=False,
        use_snapshot_schema=True,
        stats_fields=("id",),
        min_rows_requested=10,
    )
    assert PlanTableScanRequest.parse(request.text) == request


def test_what_pyiceberg_sends() -> None:
    sent = PyIcebergRequest(filter=And(EqualTo("id", 5), GreaterThan("x", 1.5)), select=["id"])
    request = PlanTableScanRequest.parse(sent.model_dump_json(by_alias=True, exclude_none=True))
    assert request.select == ("id",)
    assert request.filter["left"] == {"type": "eq", "term": "id", "value": 5}


def test_an_empty_request_scans_everything() -> None:
    assert PlanTableScanRequest.parse("{}") == PlanTableScanRequest()
    assert PlanTableScanRequest.parse('{"select": null, "snapshot-id": null}') == PlanTableScanRequest()


def test_equal_requests_have_equal_texts() -> None:
    texts = ('{"filter": true, "snapshot-id": 1}', '{"snapshot-id":1,"filter":true,"case-sensitive":true}')
    assert len({PlanTableScanRequest.parse(text).text for text in texts}) == 1


def test_incremental_requests() -> None:
    request = PlanTableScanRequest.parse('{"start-snapshot-id": 1, "end-snapshot-id": 2}')
    assert request.incremental
    assert (request.start_snapshot_id, request.end_snapshot_id) == (1, 2)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"filter": None}, "filter is null"),
        ({"snapshot-id": "5"}, "snapshot-id"),
        ({"snapshot-id": True}, "snapshot-id"),
        ({"snapshot-id": 2**63}, "snapshot-id"),
        ({"snapshot-id": 1.0}, "snapshot-id"),
        ({"min-rows-requested": "all"}, "min-rows-requested"),
        ({"min-rows-requested": -1}, "min-rows-requested is negative"),
        ({"case-sensitive": "yes"}, "case-sensitive"),
        ({"use-snapshot-schema": 1}, "use-snapshot-schema"),
        ({"select": "id"}, "select"),
        ({"select": ["id", 5]}, "select"),
        ({"select": ["id"] * 10_001}, "select"),
        ({"stats-fields": {}}, "stats-fields"),
        ({"start-snapshot-id": 1}, "end-snapshot-id"),
        ({"start-snapshot-id": 1, "end-snapshot-id": 2, "snapshot-id": 3}, "exclude each other"),
        ([], "not a JSON object"),
    ],
)
def test_invalid_values_name_their_key(document: Any, named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        PlanTableScanRequest.from_json(document)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + 400 * "0" + ".5"])
def test_numbers_that_no_double_holds_are_refused(number: str) -> None:
    """Parsed as infinity, they would be written into residuals as a bare ``Infinity``, which is not JSON."""
    body = f'{{"filter": {{"type": "in", "term": "amount", "values": [1.5, {number}]}}}}'
    with pytest.raises(BadInputError, match=r"1.* is out of the range of a double"):
        PlanTableScanRequest.parse(body)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"snapshot-id": NaN}', b'{"a": Infinity}', b"[" * 200_000])
def test_what_is_not_json_is_an_error(body: bytes) -> None:
    with pytest.raises(BadInputError, match=r"not valid JSON|nests too deeply"):
        PlanTableScanRequest.parse(body)
