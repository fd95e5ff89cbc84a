"""Committing a pending update to a catalog until its outcome is known.

Rule: refresh the table, build the update for it, commit. A rejected commit is retried on the newer table until the
retry limits are reached, and so is an attempt that missed files of concurrently expired snapshots. A lost response is
no rejection: the table is loaded to check whether the commit succeeded.

Fail-safe: a rejection is final only after that status check, because it may have been caused by our own earlier commit.
When the table cannot be loaded either, the commit state is unknown and reported as such. A request without a response
may still arrive late; it is harmless only once the table has moved on so that its requirements cannot hold
(``is_settled``), and until then no file it needs may be deleted.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import ClassVar, Protocol, TypeAlias, cast

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, ValidatableTableRequirement

from floeplan.catalog import require_writable, set_rest_timeouts
from floeplan.errors import (
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    CorruptMetadataError,
    FloeplanError,
    InvalidOptionError,
    UnknownTableError,
)
from floeplan.hadoop_tables import FolderCatalog
from floeplan.metadata.files import TableFiles
from floeplan.text import parse_count, reason
from floeplan.transaction.metadata_json import writable_metadata
from floeplan.transaction.validation import has_expired_snapshots

_RETRYABLE = (CommitFailedException, WaitingForLockException, TooManyRequestsError, BadRequestError)
"""The catalog rejected the commit; it may accept it on a newer table or at a later time."""

_FORBIDDEN = (UnauthorizedError, ForbiddenError)
"""The catalog rejected the commit and will do so again."""

_RETRY_PROPERTIES = {
    "retries": "num-retries",
    "min_wait_ms": "min-wait-ms",
    "max_wait_ms": "max-wait-ms",
    "total_timeout_ms": "total-timeout-ms",
}

UpdatesAndRequirements: TypeAlias = tuple[tuple[TableUpdate, ...], tuple[ValidatableTableRequirement, ...]]
"""The updates of one commit and what must hold for them; as in PyIceberg, but each requirement can be validated."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retrying, with exponential backoff.

    Attributes:
        retries: Retries after the first attempt.
        min_wait_ms: Wait before the first retry; it doubles with each one.
        max_wait_ms: Longest wait.
        total_timeout_ms: No retry starts later than this after the first attempt.
    """

    retries: int = 4
    min_wait_ms: int = 100
    max_wait_ms: int = 60_000
    total_timeout_ms: int = 30 * 60_000

    @classmethod
    def for_commits(cls, properties: Mapping[str, str]) -> RetryPolicy:
        """The ``commit.retry.*`` properties of a table."""
        return _policy("commit.retry.", properties, cls())

    @classmethod
    def for_status_checks(cls, properties: Mapping[str, str]) -> RetryPolicy:
        """The ``commit.status-check.*`` properties of a table."""
        return _policy("commit.status-check.", properties, cls(retries=3, min_wait_ms=1000))


@dataclass(frozen=True, slots=True)
class Timing:
    """Monotonic clock in seconds, sleep, and random numbers from 0 to 1; tests replace them."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


class Retries:
    """Counts the attempts of one operation and waits between them."""

    def __init__(self, policy: RetryPolicy, timing: Timing) -> None:
        self._policy = policy
        self._timing = timing
        self._started = timing.clock()
        self.attempts = 1

    def again(self) -> bool:
        """Wait and return true, or return false at once when the limits are reached."""
        policy = self._policy
        if self.attempts > policy.retries:
            return False
        longest = min(policy.max_wait_ms, policy.min_wait_ms * 2 ** (self.attempts - 1)) / 1000
        # Jitter: writers that failed at the same time must not retry at the same time.
        wait = longest * (1 + self._timing.chance()) / 2
        if (self._timing.clock() - self._started + wait) * 1000 > policy.total_timeout_ms:
            return False
        self.attempts += 1
        self._timing.sleep(wait)
        return True


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """How to commit.

    Attributes:
        retry: Retry limits; the table's ``commit.retry.*`` properties when not given.
        status_check: Limits of checking what became of a commit; ``commit.status-check.*`` when not given.
        clean: Whether to delete files that turn out to be unreferenced.
        owns_files: Whether the data and delete files of the change were written for it, so that they are deleted when
            the commit definitely failed.
        snapshot_id: The id of the new snapshot, to repeat a commit whose state was unknown: if the table has the
            snapshot already, nothing is done. A new id when not given.
        create_branch: Whether to create a missing branch from the head of main.
        on_step: Called with the name of each step of the protocol, in order.
        timing: Clock, sleep and random numbers.
    """

    retry: RetryPolicy | None = None
    status_check: RetryPolicy | None = None
    clean: bool = True
    owns_files: bool = False
    snapshot_id: int | None = None
    create_branch: bool = False
    on_step: Callable[[str], None] | None = None
    timing: Timing = field(default_factory=Timing)

    def step(self, name: str) -> None:
        """Report that a step of the protocol is done."""
        if self.on_step is not None:
            self.on_step(name)


class PendingUpdate(Protocol):
    """A change of a table's metadata that can be applied to any newer state of the table."""

    def build(self, table: Table) -> UpdatesAndRequirements:
        """The update for the table in its current state; raises when it no longer applies."""

    def is_committed(self, metadata: TableMetadata) -> bool:
        """Whether the table has it."""


class CatalogCommit:
    """Commits one pending update; ``newest`` is the table as last loaded."""

    completed: ClassVar[int] = 0
    """Commits of this process, by which the program reports whether an interrupted command committed anything."""

    def __init__(self, table: Table, update: PendingUpdate, options: CommitOptions) -> None:
        require_writable(table)
        set_rest_timeouts(table.catalog)
        self.newest = self._planned = table
        self._name = ".".join(table.name())
        self._update = update
        self._options = options
        self._unanswered: list[UpdatesAndRequirements] = []
        properties = table.metadata.properties
        self._status_policy = options.status_check or RetryPolicy.for_status_checks(properties)
        self._retries = Retries(options.retry or RetryPolicy.for_commits(properties), options.timing)

    @property
    def attempts(self) -> int:
        """Attempts so far."""
        return self._retries.attempts

    @property
    def is_settled(self) -> bool:
        """Whether the catalog can no longer accept a request that was never answered."""
        for _, requirements in self._unanswered:
            try:
                for requirement in requirements:
                    requirement.validate(self.newest.metadata)
            except CommitFailedException:
                continue
            return False  # the requirements hold: the request may still arrive and be accepted
        return True

    def run(self) -> Table:
        """Commit and return the table with the update.

        Raises:
            CommitConflictError: Other writers committed first at every attempt.
            CommitStateUnknownError: The update may have been committed.
            CommitError: The catalog rejected it for another reason.
        """
        while True:
            current = self._load()
            self._options.step("refreshed")
            if self._update.is_committed(current.metadata):
                return current
            failure = self._attempt(current)
            if failure is None:
                return self.newest
            if not self._retries.again():
                if self._check_status(failure):
                    return self.newest
                message = f"gave up committing to {self._name} after {self.attempts} attempts: {reason(failure)}"
                if isinstance(failure, CommitFailedException | CorruptMetadataError):
                    raise CommitConflictError(f"{message}; run the operation again", context=self._context())
                raise CommitError(message, context=self._context(), retryable=True)

    def _attempt(self, current: Table) -> Exception | None:
        """Build and commit once; ``None`` when committed, else the failure to retry."""
        try:
            built = self._update.build(current)
        except CorruptMetadataError as missing:
            # Another writer may have expired the snapshot whose files are missing: try again on the newer table.
            if has_expired_snapshots(self._load().metadata, current.metadata):
                return missing
            raise
        updates, requirements = built
        self._options.step("before-commit")
        try:
            with writable_metadata(current.io):
                # PyIceberg's union of requirement types is closed; catalogs only call ``validate``.
                response = current.catalog.commit_table(
                    current, cast(tuple[TableRequirement, ...], requirements), updates
                )
        except FloeplanError:
            raise
        except _RETRYABLE as rejection:
            return rejection
        except _FORBIDDEN as rejection:
            message = f"the catalog does not allow the commit: {rejection}"
            raise CommitError(message, context=self._context()) from rejection
        except NoSuchTableError as gone:
            raise self._dropped() from gone
        except Exception as lost:
            self._unanswered.append(built)
            return None if self._check_status(lost) else lost
        CatalogCommit.completed += 1
        metadata, location = response.metadata, response.metadata_location
        self.newest = Table(current.name(), metadata, location, current.io, current.catalog, current.config)
        if self._options.clean and isinstance(current.catalog, MetastoreCatalog | FolderCatalog):
            _remove_old_metadata(current.metadata, self.newest)
        return None

    def _check_status(self, lost: Exception) -> bool:
        """Load the table and check whether it has the update; raises when it cannot be loaded either."""
        retries = Retries(self._status_policy, self._options.timing)
        while True:
            try:
                return self._update.is_committed(self._refresh().metadata)
            except FloeplanError:
                raise
            except Exception as failure:
                if not retries.again():
                    raise CommitStateUnknownError(
                        f"the response to the commit was lost ({reason(lost)}) and the table cannot be loaded "
                        f"({reason(failure)}): it may have been committed; check the table before running it again",
                        context=self._context(),
                    ) from lost

    def _load(self) -> Table:
        """The table for the next attempt."""
        try:
            return self._refresh()
        except FloeplanError:
            raise
        except Exception as failure:
            error = CommitError if self.is_settled else CommitStateUnknownError
            message = f"cannot load table {self._name} to commit to it: {reason(failure)}"
            raise error(message, context=self._context(), retryable=self.is_settled) from failure

    def _refresh(self) -> Table:
        try:
            self.newest = self._planned.catalog.load_table(self._planned.name())
        except NoSuchTableError as gone:
            raise self._dropped() from gone
        if self.newest.metadata.table_uuid != self._planned.metadata.table_uuid:
            raise CommitError(
                f"table {self._name} was dropped and created again since the change was planned; run it again",
                context=self._context(),
            )
        return self.newest

    def _dropped(self) -> UnknownTableError:
        message = f"table {self._name} was dropped since the change was planned"
        return UnknownTableError(message, context=self._context())

    def _context(self) -> dict[str, object]:
        return {"table": self._name, "attempts": self.attempts}


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay the first Ctrl-C or SIGTERM until the block ends, so that the commit state is known.

    A second one acts at once. SIGTERM is left alone unless the program handles it. Does nothing in other threads and in
    background jobs that ignore SIGINT.
    """
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    handled = {number for number, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not handled:
        yield
        return
    received = list[int]()

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if (announce := getattr(before[signal.Signals(number)], "announce", None)) is not None:
            announce()
        restore()

    def restore() -> None:
        for number in handled:
            signal.signal(number, before[number])

    for number in handled:
        signal.signal(number, remember)
    try:
        yield
    finally:
        restore()
    if received:
        raise KeyboardInterrupt


def _remove_old_metadata(before: TableMetadata, committed: Table) -> None:
    """Delete the metadata files that the commit dropped from the metadata log, if the table asks for it.

    PyIceberg keeps ``write.metadata.previous-versions-max`` files in the log. A REST catalog deletes them itself.
    """
    if committed.metadata.properties.get("write.metadata.delete-after-commit.enabled", "").lower() == "true":
        kept = {entry.metadata_file for entry in committed.metadata.metadata_log}
        TableFiles.of(committed).remove({entry.metadata_file for entry in before.metadata_log} - kept)


def _policy(prefix: str, properties: Mapping[str, str], default: RetryPolicy) -> RetryPolicy:
    found: dict[str, int] = {}
    for field_name, name in _RETRY_PROPERTIES.items():
        text = properties.get(prefix + name)
        if text is not None:
            number = parse_count(text.strip())
            if number is None:
                raise InvalidOptionError(
                    f"table property {prefix}{name} is {text!r} but must be a non-negative whole number",
                    context={"property": prefix + name, "value": text},
                )
            found[field_name] = number
    return replace(default, **found)
