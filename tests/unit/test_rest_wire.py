"""Paths, callers and encodings of REST requests, and JSON that is edited in one place only."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
import zstandard
from starlette.datastructures import Headers

from floeplan.errors import BadInputError, CorruptMetadataError, FloeplanError, UnknownTableError
from floeplan.rest.forwarding import JsonMembers
from floeplan.rest.wire import (
    RestError,
    TablePath,
    decoded,
    encoded_response,
    engine_of,
    json_object,
    planning_error,
    principal,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/namespaces/db/tables/t", ("", "db", "t", "", "")),
        ("/v1/namespaces/a%1Fb/tables/t/plan", ("", "a%1Fb", "t", "plan", "")),
        ("/v1/p/namespaces/a%2Eb/tables/t%2Fu/plan/id-1", ("p", "a%2Eb", "t%2Fu", "plan", "id-1")),
        ("/v1/projects/x/catalogs/y/namespaces/db/tables/t/tasks", ("projects/x/catalogs/y", "db", "t", "tasks", "")),
        ("/v1/namespaces/db/tables/t/metrics", ("", "db", "t", "metrics", "")),
    ],
)
def test_table_paths_are_matched_as_they_were_sent(path: str, expected: tuple[str, ...]) -> None:
    found = TablePath.match(path)
    assert found is not None
    assert (found.prefix, found.namespace, found.table, found.action, found.plan_id) == expected
    assert path.startswith(found.path)
    assert found.path.endswith(found.table)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/config",
        "/v1/namespaces/db/tables",
        "/v1/namespaces/db/tables/t/credentials",
        "/v1/namespaces/db/tables/t/tasks/x",
        "/v1/namespaces/db/views/v",
        "/v1/tables/rename",
        "/v2/namespaces/db/tables/t",
    ],
)
def test_other_paths_are_not_table_paths(path: str) -> None:
    assert TablePath.match(path) is None


def test_namespaces_are_split_at_the_separator_of_the_catalog() -> None:
    assert decoded("a%1Fb", ("\x1f",)) == ("a", "b")
    assert decoded("a%2Eb", ("\x1f", ".")) == ("a", "b")
    assert decoded("a%2Eb", ("\x1f",)) == ("a.b",)


def test_a_principal_is_stable_over_tokens_of_one_subject() -> None:
    def jwt(**claims: object) -> str:
        parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
        return f"Bearer {parts[0]}.{parts[1]}.signature"

    assert principal(jwt(sub="ana", exp=1)) == principal(jwt(sub="ana", exp=2)) == "ana"
    assert principal("") == principal("Bearer None") == "anonymous"
    assert principal("Basic " + base64.b64encode(b"bob:secret").decode()) == "bob"
    opaque = principal("Bearer opaque-token")
    assert opaque == principal("bearer opaque-token") != principal("Bearer other")
    assert "opaque" not in opaque
    for odd in ("Bearer a.b.c", "Basic %%%", jwt(sub=7), jwt(sub="")):
        assert principal(odd).startswith("token-")


def test_the_engine_is_the_client_library() -> None:
    assert engine_of(Headers({"User-Agent": "PyIceberg/0.12.0"})) == ("PyIceberg", "0.12.0")
    java = {"User-Agent": "Apache-HttpClient/5.5 (Java/17)", "X-Client-Version": "Apache Iceberg 1.12.0 (commit 1)"}
    assert engine_of(Headers(java)) == ("Iceberg Java", "1.12.0")
    assert engine_of(Headers({})) == ("unknown", "")
    name, version = engine_of(Headers({"User-Agent": f"{'a' * 9_000}/{'1' * 9_000}"}))
    assert max(len(name), len(version)) <= 100  # it is in every record, and a label of the metrics


def test_responses_are_encoded_as_the_client_accepts() -> None:
    body = b'{"rows":"' + b"x" * 5000 + b'"}'
    assert zstandard.decompress(encoded_response(body, "gzip, zstd").body) == body
    zipped = encoded_response(body, "gzip;q=0.5, zstd;q=0, br")
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == body
    for accepted in ("", "identity", "br", "gzip;q=0", "gzip;q=x"):
        plain = encoded_response(body, accepted)
        assert plain.body == body
        assert "content-encoding" not in plain.headers
    assert encoded_response(b"{}", "gzip").body == b"{}"


@pytest.mark.parametrize(
    ("error", "status", "retried"),
    [
        (BadInputError("no such column"), 400, False),
        (UnknownTableError("no such table"), 404, False),
        (CorruptMetadataError("not Avro"), 500, False),
        (FloeplanError("store is away", retryable=True), 503, True),
        (ZeroDivisionError("secret detail"), 503, True),
        (RestError(404, "NoSuchPlanTaskException", "expired"), 404, False),
    ],
)
def test_errors_of_planning_say_whether_to_retry(error: Exception, status: int, retried: bool) -> None:
    response = planning_error(error).response()
    assert response.status_code == status
    assert ("retry-after" in response.headers) == retried
    sent = json.loads(bytes(response.body))["error"]
    assert sent["code"] == status
    assert "secret detail" not in sent["message"]


def test_messages_do_not_repeat_long_requests() -> None:
    body = RestError(400, "BadRequestException", f"there is no column {'x' * 100_000}").response().body
    message = json.loads(body)["error"]["message"]
    assert message.startswith("there is no column xxx")
    assert len(message) == 2000


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RestError, match="request body") as refused:
        json_object(body)
    assert refused.value.status == 400


def test_one_member_changes_and_the_rest_stays_as_it_is() -> None:
    text = '\n{ "a" : 1.0000000000000000001e400 ,"config":{"x": "y"}, "z\\u0041":[1, {"config": 2}]}'
    members = JsonMembers.of(text)
    edited = members.replaced("config", {"mode": "ü"})
    assert edited == text.replace('{"x": "y"}', '{"mode": "ü"}')
    assert members.text_of("zA") == '[1, {"config": 2}]'
    assert members.text_of("missing") == "null"
    assert JsonMembers.of(members.replaced("new", 1)).values["new"] == 1
    assert JsonMembers.of("{}").replaced("new", 1) == '{"new":1}'


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"}', '{"a":1', "<html>", '{"a":1,,}'])
def test_an_upstream_that_sends_no_object_is_an_error(text: str) -> None:
    with pytest.raises(RestError, match="no JSON object") as refused:
        JsonMembers.of(text)
    assert refused.value.status == 502
