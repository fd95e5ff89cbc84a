"""What a rewrite may be told: Iceberg's options under their own names, and what Floeplan adds to them.

Defaults and checks are those of Iceberg 1.12. Options come as fields of ``RewriteOptions`` or, from a command line, as
text under Iceberg's kebab-case names (``RewriteOptions.with_options``); a name that does not exist is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import InvalidOptionError, UnknownOptionError, UnknownSpecError
from floeplan.predicate.compile import PredicateSource
from floeplan.rewrite.strategies.registry import find_strategy

KEEP, CURRENT = "keep", "current"


class JobOrder(StrEnum):
    """Which groups come first."""

    NONE = "none"
    BYTES_ASC = "bytes-asc"
    BYTES_DESC = "bytes-desc"
    FILES_ASC = "files-asc"
    FILES_DESC = "files-desc"


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Which files are rewritten, into what, and in what portions."""

    partition_filter: PredicateSource | None = None
    """Rewrite whole partitions that may hold a matching row."""
    where: PredicateSource | None = None
    """As ``partition_filter``, and of those partitions only files whose bounds admit a matching row."""
    case_sensitive: bool = True
    """Whether column names in the filters must match exactly."""
    strict: bool = False
    """Refuse the plan when a candidate is in it only because nothing could decide the filter for it."""
    trust_lists: bool = False
    """Plan from a manifest list even when it has fewer files than the snapshot summary counts."""
    strategy: str = "binpack"
    """How files are made: ``binpack``, ``sort``, ``zorder``, ``hilbert`` or ``stitch``."""
    by: tuple[str, ...] = ()
    """Columns to sort or cluster by; ``sort`` takes the table's sort order when there are none."""
    spec: str | int = KEEP
    """Spec of the new files: ``keep`` that of the old ones, ``current`` the table's, or a spec id."""
    target_spec_id: int | None = None
    """The same as ``spec`` with an id."""
    target_file_size_bytes: int | None = None
    """Size to aim at; the table's ``write.target-file-size-bytes`` when not given."""
    min_file_size_bytes: int | None = None
    """Smaller files are rewritten; 75 % of the target when not given."""
    max_file_size_bytes: int | None = None
    """Larger files are rewritten; 180 % of the target when not given."""
    min_input_files: int = 5
    """A group of so many files is worth rewriting whatever their size."""
    rewrite_all: bool = False
    """Rewrite every file that passes the filters."""
    max_file_group_size_bytes: int = 100 * 1024**3
    """Bytes in one group at most; a larger file is a group of its own."""
    max_file_group_input_files: int = 2**63 - 1
    """Files in one group at most."""
    delete_file_threshold: int = 2**31 - 1
    """Rewrite files with so many delete files."""
    delete_ratio_threshold: float = 0.3
    """Rewrite files of whose rows this share is deleted by deletes of that file alone."""
    max_files_to_rewrite: int | None = None
    """Files in the whole plan at most."""
    rewrite_job_order: JobOrder = JobOrder.NONE
    """Which groups come first."""
    compression_factor: float = 1.0
    """Expected change of size by sorting and clustering."""
    partial_progress_enabled: bool = False
    """Commit groups as they are done, instead of all of them at the end."""
    partial_progress_max_commits: int = 10
    """Commits of partial progress at most."""
    partial_progress_max_failed_commits: int | None = None
    """Give up after more failed commits than this; as many as there may be commits when not given."""
    max_concurrent_file_group_rewrites: int = 5
    """Jobs that Spark is given at a time; a job holds one large group or several small ones."""
    task_memory_bytes: int | None = None
    """Memory that putting the rows of a group in order may take; a task's share of its machine when not given."""
    use_starting_sequence_number: bool = True
    """New files have the age of the snapshot the plan was made on, so that newer equality deletes still meet them."""
    remove_dangling_deletes: bool = True
    """Delete files that apply to nothing any more leave the table in the same commit."""

    def __post_init__(self) -> None:
        if self.target_spec_id is not None:
            if self.spec not in (KEEP, self.target_spec_id):
                raise InvalidOptionError(f"spec is {self.spec} but target-spec-id is {self.target_spec_id}")
            object.__setattr__(self, "spec", self.target_spec_id)
        object.__setattr__(self, "spec", _spec(self.spec))
        object.__setattr__(self, "rewrite_job_order", _job_order(self.rewrite_job_order))
        find_strategy(self.strategy).check(self.by)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidOptionError(f"'{_kebab(name)}' is set to {value} but must be > 0")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidOptionError(f"'{_kebab(name)}' is set to {value} but must be >= 0")
        if not 0 < self.delete_ratio_threshold <= 1:
            raise InvalidOptionError(
                f"'delete-ratio-threshold' is set to {self.delete_ratio_threshold} but must be > 0 and <= 1"
            )

    def with_options(self, options: Mapping[str, str]) -> RewriteOptions:
        """The same with options given as text under Iceberg's names."""
        changes: dict[str, Any] = {}
        for name, text in options.items():
            if name not in _FROM_TEXT:
                close = difflib.get_close_matches(name, _FROM_TEXT, n=2)
                hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(_FROM_TEXT))}"
                raise UnknownOptionError(f"no rewrite option {name!r}; {hint}", context={"option": name})
            field, parse = _FROM_TEXT[name]
            try:
                changes[field] = parse(text)
            except (ValueError, KeyError) as error:
                raise InvalidOptionError(f"'{name}' cannot be {text!r}", context={"option": name}) from error
        return replace(self, **changes)

    def output_spec_id(self, metadata: TableMetadata) -> int | None:
        """The spec all new files get, or ``None`` when each keeps that of its sources."""
        if self.spec == KEEP:
            return None
        wanted = metadata.default_spec_id if self.spec == CURRENT else int(self.spec)
        known = sorted(spec.spec_id for spec in metadata.partition_specs)
        if wanted not in known:
            raise UnknownSpecError(
                f"the table has no partition spec {wanted}; it has {', '.join(map(str, known))}",
                context={"spec-id": wanted},
            )
        return wanted


_POSITIVE = (
    "target_file_size_bytes",
    "min_input_files",
    "max_file_group_size_bytes",
    "max_file_group_input_files",
    "max_files_to_rewrite",
    "compression_factor",
    "partial_progress_max_commits",
    "max_concurrent_file_group_rewrites",
    "task_memory_bytes",
)
_NOT_NEGATIVE = ("min_file_size_bytes", "delete_file_threshold", "partial_progress_max_failed_commits")


def _kebab(name: str) -> str:
    return name.replace("_", "-").replace("partial-progress-", "partial-progress.")


def _spec(spec: str | int) -> str | int:
    if isinstance(spec, int) or spec in (KEEP, CURRENT):
        return spec
    try:
        return int(spec)
    except ValueError as error:
        raise InvalidOptionError(f"spec is {spec!r} but must be keep, current or a spec id") from error


def _job_order(order: str) -> JobOrder:
    try:
        return JobOrder(order)
    except ValueError as error:
        known = ", ".join(JobOrder)
        raise InvalidOptionError(f"'rewrite-job-order' is set to {order!r} but must be one of {known}") from error


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


_PARSERS: Mapping[str, Callable[[str], Any]] = {"bool": _flag, "float": float, "JobOrder": str}
_PLAIN = ("partition_filter", "where", "case_sensitive", "strict", "trust_lists", "strategy", "by", "spec")
_FROM_TEXT: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    _kebab(field.name): (field.name, _PARSERS.get(str(field.type), int))
    for field in fields(RewriteOptions)
    if field.name not in _PLAIN
} | {"output-spec-id": ("target_spec_id", int)}
