"""A lease on a table: at most one run works on it at a time, and none is blocked by a run that died.

A lease is a table property ``floeplan.lease.<holder>`` with the time at which it expires, set, renewed and removed by
commits. A holder announces its claim and then looks: it has the lease if no other claim is live in the metadata that
its own commit produced, or later. Of two claims, whichever is committed later sees the other one and is withdrawn.
That needs nothing from a catalog but that commits are ordered, so it works with a REST catalog, whose requirements
cannot name a property. Where this process validates requirements (SQL, Hive, Glue and others), a commit also requires
that no other claim is live, and a second claim is never committed.

Rule: the clocks of two machines may differ by ``SKEW``: a holder stops using its lease that long before it expires, and
others take it over that long after. Fail-safe: a lease protects work, not data. A run that loses its lease during a
commit harms nothing, because commits validate what they replace.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    ValidatableTableRequirement,
)

from floeplan.errors import FloeplanError
from floeplan.times import age_text
from floeplan.transaction.catalog_commit import CatalogCommit, CommitOptions, UpdatesAndRequirements

PREFIX = "floeplan.lease."
SKEW = timedelta(seconds=30)
"""How far the clocks of two machines may differ."""
_RENEWALS = 3
"""How often a lease is renewed while it lasts."""
_LAST_TIME = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_OWN = "floeplan."
_AMORO = "self-optimizing.enabled"


class LeaseHeldError(FloeplanError):
    """Another run has the lease of the table."""

    default_kind = "lease-held"
    default_retryable = True
    default_safe_to_clean = True


def live_claims(properties: Mapping[str, str], now_s: float) -> dict[str, float]:
    """The holders of live claims, and when each expires; a claim that cannot be read is live for ever."""
    found = {}
    for name, text in properties.items():
        if name.startswith(PREFIX):
            until = _time(text, "until")
            if until + SKEW.total_seconds() > now_s:
                found[name.removeprefix(PREFIX)] = until
    return found


def _time(claim: str, name: str) -> float:
    """A time of a claim; infinity if it cannot be read."""
    try:
        time = float(json.loads(claim)[name])
    except (ValueError, LookupError, TypeError, OverflowError):
        return float("inf")
    return time if time < _LAST_TIME else float("inf")  # NaN is not below it


@dataclass(slots=True)
class Lease:
    """A lease of one holder on one table.

    Attributes:
        table: The table as last loaded.
        holder: A name that no other run has.
        ttl: How long the lease lasts without being renewed.
        clock: The time in seconds since 1970.
        until: When it expires.
        took_over: Holders whose expired claims were removed.
    """

    table: Table
    holder: str
    ttl: timedelta
    clock: Callable[[], float]
    commit: CommitOptions = field(default_factory=CommitOptions)
    until: float = 0.0
    took_over: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_lost(self) -> bool:
        """Whether another run may have the lease."""
        return self.clock() >= self.until - SKEW.total_seconds()

    def take(self) -> None:
        """Take the lease.

        Raises:
            LeaseHeldError: Another run has it.
        """
        self._claim(renewal=False)

    def renew(self) -> None:
        """Let the lease expire later.

        Raises:
            LeaseHeldError: It has expired, so another run may have it.
        """
        self._claim(renewal=True)

    def release(self) -> None:
        """Give the lease back; if that fails, it expires."""
        with self._lock, suppress(FloeplanError):
            removal = _Release(PREFIX + self.holder)
            self.table = CatalogCommit(self.table, removal, self.commit).run()
            self.until = 0.0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease in the background while the block runs; whether it was kept is ``is_lost``."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self.ttl.total_seconds() / _RENEWALS):
                with suppress(FloeplanError):  # tried again until it expires
                    self.renew()

        thread = threading.Thread(target=renew, name="floeplan-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _claim(self, *, renewal: bool) -> None:
        with self._lock:
            claim = _Claim(self, renewal)
            committed = CatalogCommit(self.table, claim, self.commit).run()
            if not isinstance(committed.catalog, MetastoreCatalog):
                committed = committed.catalog.load_table(committed.name())
                others = live_claims(committed.metadata.properties, self.clock())
                others.pop(self.holder, None)
                if others and not renewal:
                    CatalogCommit(committed, _Release(PREFIX + self.holder), self.commit).run()
                    raise _held(committed, others, self.clock())
            self.table, self.until, self.took_over = committed, claim.until, claim.expired


def _held(table: Table, others: Mapping[str, float], now_s: float) -> LeaseHeldError:
    holder, until = next(iter(others.items()))
    name = ".".join(table.name())
    removal = f"if no run works on it, remove it with 'floeplan properties {name} --unset {PREFIX}{holder}'"
    if until == float("inf"):
        message = f"{name} has a lease of {holder} without a readable expiry time; {removal}"
    else:
        expires = datetime.fromtimestamp(until, UTC)
        message = f"{name} is maintained by {holder} until {expires:%Y-%m-%d %H:%M:%S} UTC; "
        ahead = _time(table.metadata.properties[PREFIX + holder], "since") - now_s
        if SKEW.total_seconds() < ahead < float("inf"):
            message += f"its clock is {age_text(timedelta(seconds=round(ahead)))} ahead of this one: {removal}"
        else:
            message += "run it again later"
    return LeaseHeldError(message, context={"table": name, "holder": holder})


@dataclass(slots=True)
class _Claim:
    """Sets the claim of a holder and removes claims that have expired."""

    lease: Lease
    renewal: bool
    until: float = 0.0
    text: str = ""
    expired: tuple[str, ...] = ()

    def build(self, table: Table) -> UpdatesAndRequirements:
        lease, properties = self.lease, table.metadata.properties
        own, now_s = PREFIX + lease.holder, lease.clock()
        others = live_claims(properties, now_s)
        others.pop(lease.holder, None)
        if others:
            raise _held(table, others, now_s)
        if self.renewal and (own not in properties or lease.is_lost):
            message = f"the lease on {'.'.join(table.name())} has expired; run it again"
            raise LeaseHeldError(message, context={"holder": lease.holder})
        self.until = now_s + lease.ttl.total_seconds()
        self.text = json.dumps({"until": self.until, "since": now_s})
        stale = [name for name in properties if name.startswith(PREFIX) and name != own]
        self.expired = tuple(name.removeprefix(PREFIX) for name in stale)
        updates: tuple[TableUpdate, ...] = (SetPropertiesUpdate(updates={own: self.text}),)
        if stale:
            updates = (RemovePropertiesUpdate(removals=stale), *updates)
        requirements: list[ValidatableTableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
        if isinstance(table.catalog, MetastoreCatalog):
            requirements.append(_AssertNoOtherClaim(holder=lease.holder, now_s=now_s))
        return updates, tuple(requirements)

    def is_committed(self, metadata: TableMetadata) -> bool:
        return bool(self.text) and metadata.properties.get(PREFIX + self.lease.holder) == self.text


@dataclass(frozen=True, slots=True)
class _Release:
    """Removes a claim."""

    name: str

    def build(self, table: Table) -> UpdatesAndRequirements:
        return (RemovePropertiesUpdate(removals=[self.name]),), (AssertTableUUID(uuid=table.metadata.table_uuid),)

    def is_committed(self, metadata: TableMetadata) -> bool:
        return self.name not in metadata.properties


class _AssertNoOtherClaim(ValidatableTableRequirement):
    """No other holder has a live claim in the metadata that the commit replaces."""

    type: Literal["assert-no-other-claim"] = "assert-no-other-claim"
    holder: str
    now_s: float

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        properties: Mapping[str, Any] = {} if base_metadata is None else base_metadata.properties
        if live_claims(properties, self.now_s).keys() - {self.holder}:
            raise CommitFailedException("another run has the lease of the table")


def foreign_maintenance(metadata: TableMetadata, now_s: float, within: timedelta) -> str | None:
    """What another engine did to maintain the table recently, or that it does so by itself; else ``None``.

    A rewrite of files or manifests is a ``replace`` snapshot; those of Floeplan state their operation in the summary.
    """
    if metadata.properties.get(_AMORO, "").lower() == "true":
        return f"Amoro optimizes the table ({_AMORO})"
    after_ms = (now_s - within.total_seconds()) * 1000
    for snapshot in reversed(metadata.snapshots):
        summary = snapshot.summary
        if snapshot.timestamp_ms <= after_ms or summary is None or summary.operation is not Operation.REPLACE:
            continue
        stated = summary.additional_properties
        if not any(name.startswith(_OWN) for name in stated):
            engine = stated.get("engine-name") or ("Spark" if "spark.app.id" in stated else "another engine")
            ago = age_text(timedelta(seconds=int(max(0, now_s - snapshot.timestamp_ms / 1000))))
            return f"{engine} rewrote the table {ago} ago (snapshot {snapshot.snapshot_id})"
    return None
