"""Committing to a catalog until it is certain what became of it.

Rule: refresh, propose, commit. A refusal is repeated on the newer table, with the same intent, until the limits are
reached, and so is an attempt that missed files of snapshots which were expired meanwhile. An answer that was lost is no
refusal: the table is loaded and asked whether the commit is there.

Fail-safe: a refusal is final only after the table was asked as well, for it may have met the request's own echo. When
the table cannot be loaded either, the outcome is unknown and is said to be. A request whose answer was lost may still
arrive late; it is harmless only once the table has moved on so that its requirements cannot hold (``settled``), and
until then nothing it needs may be removed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, ValidatableTableRequirement

from floeplan.catalog import limit_waiting
from floeplan.errors import (
    BadInputError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    CorruptMetadataError,
    FloeplanError,
    InvalidOptionError,
    UnknownTableError,
)
from floeplan.text import parse_count, reason
from floeplan.transaction.history import has_forgotten
from floeplan.transaction.metadata_json import writable_metadata

# How often and how long to try again: exponential waits with jitter, up to a number of times and a total time.
#
# Rule: the wait before the n-th repetition is ``min_wait * 2**(n - 1)``, at most ``max_wait``, then drawn evenly
# from the
# upper half of that, so that writers who failed together do not come back together. Clock, sleep and chance are given
# from outside: tests wait for nobody.


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of repetition.

    Attributes:
        retries: Repetitions after the first try.
        min_wait_ms: Wait before the first repetition.
        max_wait_ms: Longest wait.
        total_timeout_ms: No repetition starts later than this after the first try.
    """

    retries: int = 4
    min_wait_ms: int = 100
    max_wait_ms: int = 60_000
    total_timeout_ms: int = 30 * 60_000

    @classmethod
    def for_commits(cls, properties: Mapping[str, str]) -> RetryPolicy:
        """As the ``commit.retry.*`` properties of a table say."""
        return _from_properties("commit.retry.", properties, cls())

    @classmethod
    def for_status_checks(cls, properties: Mapping[str, str]) -> RetryPolicy:
        """As the ``commit.status-check.*`` properties of a table say."""
        return _from_properties("commit.status-check.", properties, cls(retries=3, min_wait_ms=1000))


def _from_properties(prefix: str, properties: Mapping[str, str], default: RetryPolicy) -> RetryPolicy:
    def number(name: str, otherwise: int) -> int:
        text = properties.get(prefix + name)
        if text is None:
            return otherwise
        told = parse_count(text.strip())
        if told is None:
            raise InvalidOptionError(
                f"table property {prefix}{name} is {text!r} but must be a number that is not negative",
                context={"property": prefix + name, "value": text},
            )
        return told

    return RetryPolicy(
        number("num-retries", default.retries),
        number("min-wait-ms", default.min_wait_ms),
        number("max-wait-ms", default.max_wait_ms),
        number("total-timeout-ms", default.total_timeout_ms),
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """Where time and chance come from: seconds that only grow, a way to wait, and numbers from 0 to 1."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


class Repetition:
    """Counts the tries of one thing."""

    def __init__(self, policy: RetryPolicy, timing: Timing) -> None:
        self._policy = policy
        self._timing = timing
        self._started = timing.clock()
        self.tries = 1

    def again(self) -> bool:
        """Wait and return true, or return false at once when the limits are reached."""
        policy = self._policy
        if self.tries > policy.retries:
            return False
        longest = min(policy.max_wait_ms, policy.min_wait_ms * 2 ** (self.tries - 1)) / 1000
        wait = longest * (1 + self._timing.chance()) / 2
        if (self._timing.clock() - self._started + wait) * 1000 > policy.total_timeout_ms:
            return False
        self.tries += 1
        self._timing.sleep(wait)
        return True


# ---

_REFUSED = (CommitFailedException, WaitingForLockException, TooManyRequestsError, BadRequestError)
"""The catalog said no; a newer table, or a later time, may change its mind."""

_FORBIDDEN = (UnauthorizedError, ForbiddenError)
"""The catalog said no, and will say so again."""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """How a commit is made.

    Attributes:
        retry: Limits of repetition; the table's ``commit.retry.*`` properties when not given.
        status_check: Limits of asking what became of a commit; ``commit.status-check.*`` when not given.
        clean: Whether files that turn out to be referred to by nobody are removed.
        owns_files: Whether the data and delete files a change adds were written for it, so that they are removed when
            it definitely failed.
        snapshot_id: The id of the new snapshot, for a commit whose outcome was unknown and which is made again: if the
            table has the snapshot already, nothing is done. A new id when not given.
        create_branch: Whether a branch that is not there is created from the head of main.
        on_step: Called with the name of each step of the protocol, in order.
        timing: Where time and chance come from.
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
        """Tell that a step of the protocol is done."""
        if self.on_step is not None:
            self.on_step(name)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is asked of the catalog: updates, and what must hold for them to be made."""

    requirements: tuple[ValidatableTableRequirement, ...]
    updates: tuple[TableUpdate, ...]


class PendingUpdate(Protocol):
    """Something to be done to a table, whatever state it is in."""

    def propose(self, table: Table) -> Proposal:
        """How it is done to the table as it is now; raises when it can no longer be done."""

    def is_committed(self, metadata: TableMetadata) -> bool:
        """Whether it has been done."""


class CatalogCommit:
    """One intent and its way into the catalog; ``newest`` is the table as it was seen last."""

    def __init__(self, table: Table, intent: PendingUpdate, options: CommitOptions) -> None:
        if isinstance(table, StaticTable):
            raise BadInputError(
                f"{table.metadata_location} was opened without a catalog and is read-only: name the table instead",
                context={"table": table.metadata_location},
            )
        limit_waiting(table.catalog)
        self._planned = table
        self._intent = intent
        self._options = options
        self._unanswered: list[Proposal] = []
        self.newest = table
        self._status_policy = options.status_check or RetryPolicy.for_status_checks(table.metadata.properties)
        self._repetition = Repetition(
            options.retry or RetryPolicy.for_commits(table.metadata.properties), options.timing
        )

    @property
    def attempts(self) -> int:
        """How many times the catalog was asked, or would have been."""
        return self._repetition.tries

    @property
    def settled(self) -> bool:
        """Whether no request is under way any more that could still be granted."""
        return not any(_may_hold(proposal, self.newest.metadata) for proposal in self._unanswered)

    def run(self) -> Table:
        """Commit.

        Returns:
            The table with the intent done.

        Raises:
            CommitConflictError: Other writers were faster every time.
            CommitStateUnknownError: Nobody can tell whether it was committed.
            CommitError: The catalog refused for another reason.
        """
        while True:
            current = self._load()
            self._options.step("refreshed")
            if self._intent.is_committed(current.metadata):
                return current
            failure = self._try(current)
            if failure is None:
                return self.newest
            if not self._repetition.again():
                if self._check_status(failure):
                    return self.newest
                raise self._exhausted(failure)

    def _try(self, current: Table) -> Exception | None:
        """One attempt; ``None`` if it is done, else why not."""
        try:
            proposal = self._intent.propose(current)
        except CorruptMetadataError as missing:
            if has_forgotten(self._load().metadata, current.metadata):
                return missing
            raise
        self._options.step("before-commit")
        return self._commit(current, proposal)

    def _commit(self, current: Table, proposal: Proposal) -> Exception | None:
        """Ask the catalog; ``None`` if it is done, else why not."""
        requirements = cast(tuple[TableRequirement, ...], proposal.requirements)
        try:
            with writable_metadata(current.io):
                response = current.catalog.commit_table(current, requirements, proposal.updates)
        except FloeplanError:
            raise
        except _REFUSED as refusal:
            return refusal
        except _FORBIDDEN as refusal:
            raise CommitError(f"the catalog does not allow the commit: {refusal}", context=self._context()) from refusal
        except NoSuchTableError as gone:
            raise self._gone() from gone
        except Exception as lost:
            self._unanswered.append(proposal)
            return None if self._check_status(lost) else lost
        self.newest = Table(
            current.name(),
            response.metadata,
            response.metadata_location,
            current.io,
            current.catalog,
            current.config,
        )
        return None

    def _check_status(self, lost: Exception) -> bool:
        """Load the table and look; raises when that does not work either."""
        asking = Repetition(self._status_policy, self._options.timing)
        while True:
            try:
                return self._intent.is_committed(self._refresh().metadata)
            except FloeplanError:
                raise
            except Exception as failure:
                if not asking.again():
                    raise CommitStateUnknownError(
                        f"the answer to the commit was lost ({reason(lost)}) and the table cannot be loaded "
                        f"({reason(failure)}): it may have been committed; look at the table before running it again",
                        context=self._context(),
                    ) from lost

    def _load(self) -> Table:
        """The table to try next."""
        try:
            return self._refresh()
        except FloeplanError:
            raise
        except Exception as failure:
            error = CommitError if self.settled else CommitStateUnknownError
            message = f"cannot load table {self._name} to commit to it: {reason(failure)}"
            raise error(message, context=self._context(), retryable=self.settled) from failure

    def _refresh(self) -> Table:
        try:
            self.newest = self._planned.catalog.load_table(self._planned.name())
        except NoSuchTableError as gone:
            raise self._gone() from gone
        if self.newest.metadata.table_uuid != self._planned.metadata.table_uuid:
            raise CommitError(
                f"table {self._name} was dropped and created again since the change was planned; run it again",
                context=self._context(),
            )
        return self.newest

    def _gone(self) -> UnknownTableError:
        return UnknownTableError(
            f"table {self._name} was dropped since the change was planned", context=self._context()
        )

    def _exhausted(self, failure: Exception) -> CommitError:
        message = f"gave up the commit to {self._name} after {self.attempts} attempts: {reason(failure)}"
        if isinstance(failure, CommitFailedException | CorruptMetadataError):
            return CommitConflictError(f"{message}; run the operation again", context=self._context())
        return CommitError(message, context=self._context(), retryable=True)

    @property
    def _name(self) -> str:
        return ".".join(self._planned.name())

    def _context(self) -> dict[str, object]:
        return {"table": self._name, "attempts": self.attempts}


def _may_hold(proposal: Proposal, metadata: TableMetadata) -> bool:
    """Whether the catalog could still grant a proposal."""
    try:
        for requirement in proposal.requirements:
            requirement.validate(metadata)
    except CommitFailedException:
        return False
    return True
