"""Plan tasks as tokens: everything an instance needs to make a page, encrypted and authenticated.

No instance keeps state for a plan, so any instance can serve any page, and one that is restarted loses nothing. A token
holds the request, the range of files, the snapshot, the schemas that names were bound to, and the time it expires. The
principal, the table's UUID and the version of the plan format are authenticated with it but not stored: a token opens
only for the caller and the table it was made for.

Layout: ``base64url(version ‖ length of the key id ‖ key id ‖ salt ‖ AES-256-GCM(zlib(JSON)))``. Literals of the
filter are inside, so a token is encrypted, not only signed. Each token has a key of its own, derived from the key of
the ring and the salt: one key with random nonces must not encrypt more than 2³² tokens, which a busy server makes in
days.

Every token repeats the filter. Pages are larger where the filter is (``rest.planner``), so that tokens stay a small
fraction of a plan. Keys rotate by id: a ``KeyRing`` encrypts with its first key and decrypts with all of them. Replace
a key by adding the new one as the second line on every instance, then moving it to the first, then removing the old one
when its last token has expired.

Fail-safe: a token that is damaged, forged, expired, of another caller, table, key or plan format is one error
(``NoSuchPlanTaskError``) that does not tell which.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from floeplan.errors import BadInputError

PLAN_FORMAT = 1
"""Incremented whenever the content of a token means something else; which files it is for is in its digest."""

KEY_BYTES = 32
MAX_TOKEN = 2 * 1024 * 1024
MAX_CONTENT = 16 * 1024 * 1024
"""Bytes of a token after decompression; a request body is far smaller."""

_SALT_BYTES = 24
_NONCE = bytes(12)
"""Each key encrypts once."""

_VERSION = 2


class NoSuchPlanTaskError(BadInputError):
    """The plan task is unknown: expired, damaged, or made for another caller or table."""

    default_kind = "no-such-plan-task"

    def __init__(self) -> None:
        super().__init__("the plan task does not exist or has expired; plan the scan again")


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A range of the files of a plan.

    Attributes:
        plan_id: The plan it belongs to, for logs.
        request: The request as canonical JSON.
        snapshot_id: The snapshot that was planned.
        schema_ids: The schemas that column names are bound to, the preferred one first.
        start: The first file.
        end: One past the last file.
        files: The digest of all files of the plan; the range means nothing in another plan.
    """

    plan_id: str
    request: str
    snapshot_id: int
    schema_ids: tuple[int, ...]
    start: int
    end: int
    files: str


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys by id; the first one encrypts, all decrypt."""

    keys: Mapping[str, bytes]

    MAX_ID: ClassVar[int] = 64

    def __post_init__(self) -> None:
        if not self.keys:
            raise BadInputError("there is no key; a key file has lines of an id and a base64 key of 32 bytes")
        for name, key in self.keys.items():
            if not 1 <= len(name.encode()) <= self.MAX_ID:
                raise BadInputError(f"the key id {name!r} must have 1 to {self.MAX_ID} bytes")
            if len(key) != KEY_BYTES:
                raise BadInputError(f"key {name} has {len(key)} bytes and must have {KEY_BYTES}")

    @classmethod
    def generate(cls) -> KeyRing:
        """A new random key: tokens then end with the process, and other instances do not open them."""
        return cls({os.urandom(8).hex(): AESGCM.generate_key(KEY_BYTES * 8)})

    @classmethod
    def load(cls, path: str | Path) -> KeyRing:
        """Read a key file: an id and a base64 key per line; blank lines and lines that start with # are ignored.

        Raises:
            BadInputError: The file cannot be read, or a line is invalid. The message does not contain keys.
        """
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"cannot read the key file {path}: {error}", context={"file": str(path)}) from error
        keys: dict[str, bytes] = {}
        for number, line in enumerate(lines, start=1):
            parts = line.split()
            if not parts or parts[0].startswith("#"):
                continue
            where = f"line {number} of the key file {path}"
            if len(parts) != 2:
                raise BadInputError(f"{where} is not an id and a base64 key")
            if parts[0] in keys:
                raise BadInputError(f"{where} repeats the id {parts[0]}")
            try:
                keys[parts[0]] = base64.b64decode(parts[1], validate=True)
            except binascii.Error:
                raise BadInputError(f"{where} has a key that is not base64") from None
        return cls(keys)

    def seal(self, task: PlanTask, *, principal: str, table_uuid: str, lifetime: float) -> str:
        """The token of a task, which expires after ``lifetime`` seconds."""
        content = {
            "plan": task.plan_id,
            "request": task.request,
            "snapshot": task.snapshot_id,
            "schemas": list(task.schema_ids),
            "range": [task.start, task.end],
            "files": task.files,
            "expires": time.time() + lifetime,
        }
        name, key = next(iter(self.keys.items()))
        header = bytes([_VERSION, len(name.encode())]) + name.encode()
        salt = os.urandom(_SALT_BYTES)
        plain = zlib.compress(json.dumps(content, separators=(",", ":")).encode())
        sealed = _cipher(key, salt).encrypt(_NONCE, plain, _bound_to(header, principal, table_uuid))
        return base64.urlsafe_b64encode(header + salt + sealed).rstrip(b"=").decode()

    def open(self, token: str, *, principal: str, table_uuid: str) -> PlanTask:
        """The task of a token.

        Raises:
            NoSuchPlanTaskError: The token is not one of this server for this caller and table, or it has expired.
        """
        try:
            content = json.loads(self._decrypt(token, principal, table_uuid))
            if content["expires"] < time.time():
                raise NoSuchPlanTaskError
            schemas, (start, end) = tuple(content["schemas"]), content["range"]
            return PlanTask(
                content["plan"], content["request"], content["snapshot"], schemas, start, end, content["files"]
            )
        except (InvalidTag, ValueError, KeyError, IndexError, TypeError, zlib.error):
            raise NoSuchPlanTaskError from None

    def _decrypt(self, token: str, principal: str, table_uuid: str) -> bytes:
        if len(token) > MAX_TOKEN:
            raise NoSuchPlanTaskError
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        size = 2 + raw[1]
        header, salt, sealed = raw[:size], raw[size : size + _SALT_BYTES], raw[size + _SALT_BYTES :]
        if header[0] != _VERSION:
            raise NoSuchPlanTaskError
        key = self.keys[header[2:].decode()]
        plain = _cipher(key, salt).decrypt(_NONCE, sealed, _bound_to(header, principal, table_uuid))
        inflater = zlib.decompressobj()
        content = inflater.decompress(plain, MAX_CONTENT)
        if inflater.unconsumed_tail:
            raise NoSuchPlanTaskError
        return content


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    """The cipher of one token."""
    return AESGCM(hmac.digest(key, salt, "sha256"))


def _bound_to(header: bytes, principal: str, table_uuid: str) -> bytes:
    """What a token is authenticated with besides its content; JSON keeps the parts apart."""
    parts: list[Any] = [header.hex(), PLAN_FORMAT, principal, table_uuid]
    return json.dumps(parts).encode()
