"""Plan tasks: only the caller they were made for opens them, for the same table, while they last."""

from __future__ import annotations

import base64
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from floeplan.errors import BadInputError
from floeplan.rest import tokens
from floeplan.rest.tokens import KEY_BYTES, KeyRing, NoSuchPlanTaskError, PlanTask

pytestmark = pytest.mark.unit

TASK = PlanTask("plan", '{"filter":true}', 5, (0, 1), 100, 200, "files")
KEYS = KeyRing({"a": bytes(range(32)), "b": bytes(32)})


def sealed(keys: KeyRing = KEYS, task: PlanTask = TASK, lifetime: float = 60) -> str:
    return keys.seal(task, principal="me", table_uuid="t", lifetime=lifetime)


def opened(token: str, keys: KeyRing = KEYS, principal: str = "me", table_uuid: str = "t") -> PlanTask:
    return keys.open(token, principal=principal, table_uuid=table_uuid)


def test_a_token_opens_to_its_task_on_any_instance() -> None:
    assert opened(sealed(), KeyRing(dict(KEYS.keys))) == TASK


def test_tokens_are_short_and_tell_nothing() -> None:
    filter_ = '{"filter":{"type":"eq","term":"name","value":"secret"}}'
    token = sealed(task=PlanTask("p" * 36, filter_, 5, (0,), 0, 9, os.urandom(12).hex()))
    assert len(token) < 320
    raw = base64.urlsafe_b64decode(token + "==")
    assert b"secret" not in raw
    assert b"secret" not in zlib.compress(raw)
    assert sealed() != sealed(), "a nonce is never used twice"


def test_every_token_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bytes] = []

    def noted(key: bytes) -> AESGCM:
        used.append(key)
        return AESGCM(key)

    monkeypatch.setattr(tokens, "AESGCM", noted)
    for _ in range(3):
        sealed()
    assert len({*used, *KEYS.keys.values()}) == 5


@pytest.mark.parametrize(
    "damaged",
    [
        lambda token: "",
        lambda token: "x",
        lambda token: token[:-1],
        lambda token: token[:40],
        lambda token: token + "AAAA",
        lambda token: token[::-1],
        lambda token: "é" + token[1:],
        lambda token: "A" * (tokens.MAX_TOKEN + 1),
        lambda token: base64.urlsafe_b64encode(b"\x02\xff").decode(),
        lambda token: base64.urlsafe_b64encode(b"\x01" + base64.urlsafe_b64decode(token + "==")[1:]).decode(),
    ],
)
def test_damaged_tokens_are_refused(damaged: Callable[[str], str]) -> None:
    with pytest.raises(NoSuchPlanTaskError):
        opened(damaged(sealed()))


def test_every_changed_byte_is_noticed() -> None:
    raw = base64.urlsafe_b64decode(sealed() + "==")
    for at in range(len(raw)):
        forged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(NoSuchPlanTaskError):
            opened(base64.urlsafe_b64encode(forged).decode())


def test_tokens_of_others_are_refused() -> None:
    token = sealed()
    for change in ({"principal": "you"}, {"table_uuid": "u"}, {"keys": KeyRing.generate()}):
        with pytest.raises(NoSuchPlanTaskError):
            opened(token, **change)  # type: ignore[arg-type]
    with pytest.raises(NoSuchPlanTaskError):  # the boundary between the two cannot be moved
        KEYS.open(KEYS.seal(TASK, principal="ab", table_uuid="c", lifetime=60), principal="a", table_uuid="bc")


def test_expired_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    token = sealed(lifetime=60)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    with pytest.raises(NoSuchPlanTaskError):
        opened(token)


def test_tokens_of_another_plan_format_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    token = sealed()
    monkeypatch.setattr(tokens, "PLAN_FORMAT", tokens.PLAN_FORMAT + 1)
    with pytest.raises(NoSuchPlanTaskError):
        opened(token)


def test_content_that_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    token = sealed(task=PlanTask("p", " " * 100_000, 5, (0,), 0, 9, "f" * 24))
    monkeypatch.setattr(tokens, "MAX_CONTENT", 50_000)
    with pytest.raises(NoSuchPlanTaskError):
        opened(token)


def test_keys_rotate() -> None:
    """The new key is known everywhere before the first instance encrypts with it."""
    old, new = bytes(range(32)), bytes(reversed(range(32)))
    before, during, after = KeyRing({"1": old}), KeyRing({"1": old, "2": new}), KeyRing({"2": new, "1": old})
    assert opened(sealed(before), during) == opened(sealed(during), after) == opened(sealed(after), during) == TASK
    with pytest.raises(NoSuchPlanTaskError):
        opened(sealed(before), KeyRing({"2": new}))


def test_key_files(tmp_path: Path) -> None:
    file, keys = tmp_path / "keys", [base64.b64encode(bytes([n]) * KEY_BYTES).decode() for n in (1, 2)]
    file.write_text(f"# keys\n2026-11 {keys[0]}\n\n2026-10 {keys[1]}\n")
    ring = KeyRing.load(file)
    assert list(ring.keys) == ["2026-11", "2026-10"]
    assert opened(sealed(ring), ring) == TASK


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no key"),
        ("# nothing", "there is no key"),
        ("a", "line 1 of the key file .* is not an id and a base64 key"),
        ("\na ???", "line 2 of the key file .* has a key that is not base64"),
        (f"a {base64.b64encode(bytes(16)).decode()}", "key a has 16 bytes and must have 32"),
        (f"a {base64.b64encode(bytes(32)).decode()}\n" * 2, "line 2 of the key file .* repeats the id a"),
        (f"{'a' * 65} {base64.b64encode(bytes(32)).decode()}", "must have 1 to 64 bytes"),
    ],
)
def test_invalid_key_files_are_errors_without_keys(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(BadInputError, match=message):
        KeyRing.load(tmp_path / "keys")


def test_a_missing_key_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot read the key file"):
        KeyRing.load(tmp_path / "none")
