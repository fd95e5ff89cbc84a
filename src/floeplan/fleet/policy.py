"""What maintenance may do with each table: settings by pattern, time windows, and the budget of a run.

Rule: every table begins with the defaults of ``Settings``; the rules of a policy that match its name change them in the
order of the file, so a later rule overrides an earlier one. Without a policy the defaults apply to every table.

Fail-safe: by default nothing is deleted that the owner of the table has not enabled. Snapshots expire only where the
table has ``history.expire.*`` properties, and orphan files are removed only where a policy says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Any

from floeplan.times import age_text

OFF, ON, METADATA, REWRITE, TABLE, ADVISE = "off", "on", "metadata", "rewrite", "table", "advise"
RUNS_TABLE = "floeplan.maintenance_runs"
_MIN_INPUT_FILES = 5
"""As in a rewrite: a partition with fewer small files is left alone."""
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Window:
    """A time of day in which work may run, on some days of the week; it may end on the next day.

    Attributes:
        text: As it is written in the policy.
        days: Days on which it begins, 0 for Monday.
        start: Minutes after midnight.
        end: Minutes after midnight; up to the next day when it is not after the start.
        zone: The time zone.
    """

    text: str
    days: frozenset[int]
    start: int
    end: int
    zone: tzinfo

    def contains(self, now: datetime) -> bool:
        """Whether a time is in the window."""
        local = now.astimezone(self.zone)
        minute, today = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return today in self.days and self.start <= minute < self.end
        began_yesterday = (today - 1) % 7 in self.days and minute < self.end
        return began_yesterday or (today in self.days and minute >= self.start)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is done with one table; the names in a policy have dashes."""

    maintain: bool = True
    """Whether the table is maintained at all."""
    repair: bool = True
    """Repair what metadata alone can repair (`doctor --repair`)."""
    upgrade_specs: str = METADATA
    """Move files of old specs: `metadata` where bounds prove the partition, `rewrite` the others too, or `off`."""
    compact: bool = True
    """Merge small files, split large ones, and apply deletes."""
    compact_min_files: int = 10
    """Merge files from this many on, delete files included; in a partition from 5 on, or this if it is less."""
    target_file_size: int | None = None
    """Target file size, such as `256 MiB`; by default that of the table."""
    delete_file_threshold: int | None = None
    """Rewrite files to which this many or more delete files apply, regardless of `compact-min-files`; default off."""
    delete_ratio: float = 0.3
    """Rewrite files with at least this fraction of rows deleted, regardless of `compact-min-files`."""
    partition_age: timedelta = timedelta(hours=1)
    """Leave partitions by time to which files were added more recently than this."""
    cluster: str | tuple[str, ...] = OFF
    """Columns by which compaction orders rows, `advise` to apply what `floeplan advise` recommends, or `off`."""
    cluster_strategy: str = "sort"
    """How rows are ordered by the columns of `cluster`: `sort`, `zorder` or `hilbert`."""
    rewrite_manifests: bool = True
    """Cluster manifests by partition."""
    expire: str = TABLE
    """Expire snapshots: `on`, `off`, or `table` where the table has `history.expire.*` properties."""
    expire_older_than: timedelta | None = None
    """Expire snapshots older than this; by default `history.expire.max-snapshot-age-ms`, or 5 days."""
    retain_last: int | None = None
    """Snapshots of each branch to keep; by default `history.expire.min-snapshots-to-keep`, or 1."""
    remove_orphans: bool = False
    """Delete unreferenced files."""
    orphans_older_than: timedelta = timedelta(days=3)
    """Keep unreferenced files newer than this; at least 1 day."""
    orphans_every: timedelta = timedelta(days=7)
    """List the files of the table no more often than this."""
    yield_for: timedelta = timedelta(hours=1)
    """Leave a table alone for this long after maintenance of another engine."""
    windows: tuple[Window, ...] = ()
    """Times at which work may run, such as `22:00-06:00` or `sat,sun 00:00-24:00`; by default always."""
    after: tuple[str, ...] = ()
    """Patterns of tables whose work comes first."""

    @property
    def min_input_files(self) -> int:
        """From how many small files on a partition is compacted."""
        return min(self.compact_min_files, _MIN_INPUT_FILES)

    def to_dict(self) -> dict[str, Any]:
        """The settings under their names in a policy."""
        return {kebab(one.name): _shown(getattr(self, one.name)) for one in fields(self)}

    def in_window(self, now: datetime) -> bool:
        """Whether work may run at a time."""
        return not self.windows or any(window.contains(now) for window in self.windows)


@dataclass(frozen=True, slots=True)
class Rule:
    """Changes of settings for the tables that match, and the line of the policy where it begins."""

    match: tuple[str, ...]
    changes: Mapping[str, Any]
    line: int

    def matches(self, name: str) -> bool:
        """Whether the rule applies: some pattern matches, and none that begins with ``!``."""
        excluded = [pattern[1:] for pattern in self.match if pattern.startswith("!")]
        included = [pattern for pattern in self.match if not pattern.startswith("!")]
        return matches_any(name, included or ["*"]) and not matches_any(name, excluded)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one run may spend; ``None`` is no limit."""

    bytes: int | None = None
    minutes: float | None = None
    files: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy file.

    Attributes:
        rules: In the order of the file.
        budget: What one run may spend.
        catalogs: The catalogs whose tables are maintained; the default catalog if empty.
        runs: The table in which runs are recorded, or ``None``.
        reports: Scan reports, which say what queries read; ``None`` for the default.
        lease: How long a table is reserved for a run that no longer renews its lease.
        source: The path of the file.
    """

    rules: tuple[Rule, ...] = ()
    budget: Budget = field(default_factory=Budget)
    catalogs: tuple[str, ...] = ()
    runs: str | None = RUNS_TABLE
    reports: str | None = None
    lease: timedelta = timedelta(minutes=10)
    source: str | None = None

    def settings(self, name: str) -> tuple[Settings, tuple[int, ...]]:
        """The settings of a table, and the lines of the rules that they come from."""
        found, lines = Settings(), list[int]()
        for rule in self.rules:
            if rule.matches(name):
                found = replace(found, **rule.changes)
                lines.append(rule.line)
        return found, tuple(lines)

    def cycle(self, names: Iterable[str]) -> tuple[int, str] | None:
        """Tables that wait for each other: the line of one of the rules, and all of the tables. ``None`` if none do.

        A name may be a pattern, which stands for a table that matches it.
        """
        after = {name: settings.after for name in names if (settings := self.settings(name)[0]).maintain}
        waits = {
            name: [other for other in after if matches_any(other, patterns) and not _may_be_one(name, other)]
            for name, patterns in after.items()
            if patterns
        }
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            tables: list[str] = error.args[1][::-1]  # now each waits for the next
            lines = [self.line(name, "after") for name in tables[:-1]]
            steps = map("{} after {} (line {})".format, tables, tables[1:], lines)
            return lines[0], f"tables wait for each other: {', '.join(steps)}"
        return None

    def line(self, name: str, setting: str) -> int:
        """The line of the rule from which a table has a setting."""
        return next(rule.line for rule in self.rules[::-1] if rule.matches(name) and setting in rule.changes)

    def place(self, line: int) -> str:
        """A line of the file as the beginning of a message."""
        return f"{self.source}:{line}: " if self.source else ""


def _may_be_one(name: str, other: str) -> bool:
    """Whether two names, or patterns of names, may be those of one table."""
    return matches_any(name, [other]) or matches_any(other, [name])


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of several patterns with ``*`` and ``?``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def kebab(name: str) -> str:
    """A field as it is written in a policy."""
    return name.replace("_", "-")


def _shown(value: Any) -> Any:
    match value:
        case timedelta():
            return age_text(value)
        case Window():
            return value.text
        case tuple():
            return [_shown(one) for one in value]
    return value
