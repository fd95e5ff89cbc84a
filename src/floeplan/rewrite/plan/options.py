"""Options of a rewrite: those of Iceberg's ``rewrite_data_files`` under their names, and Floeplan's own.

Defaults and checks are those of Iceberg 1.12. Options are fields of ``RewriteOptions`` or, from a command line, text
under Iceberg's kebab-case names (``RewriteOptions.with_options``); an unknown name is refused.
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
    """Which groups are rewritten first."""

    NONE = "none"
    BYTES_ASC = "bytes-asc"
    BYTES_DESC = "bytes-desc"
    FILES_ASC = "files-asc"
    FILES_DESC = "files-desc"


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Which files are rewritten, and into what."""

    partition_filter: PredicateSource | None = None
    """Rewrite partitions that may have a matching row."""
    where: PredicateSource | None = None
    """As ``partition_filter``, but only files whose bounds admit a matching row."""
    case_sensitive: bool = True
    """Match column names in filters case-sensitively."""
    strict: bool = False
    """Refuse the plan when a filter cannot be evaluated for a candidate file."""
    trust_lists: bool = False
    """Plan from a manifest list even when it has fewer files than the snapshot summary counts."""
    strategy: str = "binpack"
    """The strategy: ``binpack``, ``sort``, ``zorder``, ``hilbert`` or ``stitch``."""
    by: tuple[str, ...] = ()
    """Columns to sort or cluster by; ``sort`` defaults to the table's sort order."""
    spec: str | int = KEEP
    """Spec of the new files: ``keep`` (that of the old files), ``current`` (the table's default), or a spec id."""
    target_spec_id: int | None = None
    """As ``spec`` with an id."""
    target_file_size_bytes: int | None = None
    """Target file size; defaults to the table's ``write.target-file-size-bytes``."""
    min_file_size_bytes: int | None = None
    """Smaller files are rewritten; defaults to 75 % of the target."""
    max_file_size_bytes: int | None = None
    """Larger files are rewritten; defaults to 180 % of the target."""
    min_partition_age_seconds: int = 0
    """Skip time partitions to which files were added more recently than this: they are still being written."""
    min_input_files: int = 5
    """Rewrite groups with at least this many files, regardless of their size."""
    rewrite_all: bool = False
    """Rewrite every file that passes the filters."""
    max_file_group_size_bytes: int = 100 * 1024**3
    """Maximum bytes of a group; a larger file forms its own group."""
    max_file_group_input_files: int = 2**63 - 1
    """Maximum files of a group."""
    delete_file_threshold: int = 2**31 - 1
    """Rewrite files to which at least this many delete files apply."""
    delete_ratio_threshold: float = 0.3
    """Rewrite files of whose rows file-scoped deletes remove at least this fraction."""
    max_files_to_rewrite: int | None = None
    """Maximum files of the plan."""
    rewrite_job_order: JobOrder = JobOrder.NONE
    """Which groups are rewritten first."""
    compression_factor: float = 1.0
    """Expected ratio of new to old bytes when rows are sorted or clustered."""
    partial_progress_enabled: bool = False
    """Commit groups as they finish, instead of all at the end."""
    partial_progress_max_commits: int = 10
    """Maximum commits with partial progress."""
    partial_progress_max_failed_commits: int | None = None
    """Give up after more failed commits than this; defaults to the maximum of commits."""
    max_concurrent_file_group_rewrites: int = 5
    """Concurrent Spark jobs; a job is one large group or several small ones."""
    task_memory_bytes: int | None = None
    """Memory for sorting one group, beyond which it spills to disk; defaults to the task's share of its machine."""
    range_task_bytes: int | None = None
    """Bytes that one Spark task sorts; larger groups take several. Defaults to 1/8 of a core's memory on clusters."""
    use_starting_sequence_number: bool = True
    """Give new files the sequence number of the planned snapshot, so that newer equality deletes apply to them."""
    remove_dangling_deletes: bool = True
    """Remove delete files that no longer apply to any file in the same commit."""
    allow_late_equality_deletes: bool = False
    """Move rows out of a spec even when a writer may go on adding equality deletes under it."""

    def __post_init__(self) -> None:
        if self.target_spec_id is not None:
            if self.spec not in (KEEP, self.target_spec_id):
                raise InvalidOptionError(f"spec is {self.spec} but target-spec-id is {self.target_spec_id}")
            object.__setattr__(self, "spec", self.target_spec_id)
        try:
            spec = self.spec if self.spec in (KEEP, CURRENT) else int(self.spec)
        except ValueError as error:
            raise InvalidOptionError(f"spec is {self.spec!r} but must be keep, current or a spec id") from error
        object.__setattr__(self, "spec", spec)
        try:
            object.__setattr__(self, "rewrite_job_order", JobOrder(self.rewrite_job_order))
        except ValueError as error:
            text, known = repr(str(self.rewrite_job_order)), ", ".join(JobOrder)
            raise InvalidOptionError(f"'rewrite-job-order' is set to {text} but must be one of {known}") from error
        find_strategy(self.strategy).check(self.by)
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
        """Replace options given as text under Iceberg's names."""
        changes: dict[str, Any] = {}
        for name, text in options.items():
            if name not in _FROM_TEXT:
                close = difflib.get_close_matches(name, _FROM_TEXT, n=2)
                hint = (
                    f"did you mean {' or '.join(close)}?"
                    if close
                    else f"known options are {', '.join(sorted(_FROM_TEXT))}"
                )
                raise UnknownOptionError(f"unknown rewrite option {name!r}; {hint}", context={"option": name})
            field, parse = _FROM_TEXT[name]
            try:
                changes[field] = parse(text)
            except (ValueError, KeyError) as error:
                raise InvalidOptionError(f"'{name}' cannot be {text!r}", context={"option": name}) from error
        return replace(self, **changes)

    def output_spec_id(self, metadata: TableMetadata) -> int | None:
        """The spec of all new files; ``None`` when groups keep the spec of their files."""
        if self.spec == KEEP:
            return None
        spec_id = metadata.default_spec_id if self.spec == CURRENT else int(self.spec)
        known = sorted(spec.spec_id for spec in metadata.partition_specs)
        if spec_id not in known:
            raise UnknownSpecError(
                f"the table has no partition spec {spec_id}; it has {', '.join(map(str, known))}",
                context={"spec-id": spec_id},
            )
        return spec_id


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
    "range_task_bytes",
)
_NOT_NEGATIVE = (
    "min_file_size_bytes",
    "min_partition_age_seconds",
    "delete_file_threshold",
    "partial_progress_max_failed_commits",
)


def _kebab(name: str) -> str:
    return name.replace("_", "-").replace("partial-progress-", "partial-progress.")


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


_PARSERS: Mapping[str, Callable[[str], Any]] = {"bool": _flag, "float": float, "JobOrder": str}
_PLAIN = (
    "partition_filter",
    "where",
    "case_sensitive",
    "strict",
    "trust_lists",
    "allow_late_equality_deletes",
    "strategy",
    "by",
    "spec",
)
_FROM_TEXT: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    _kebab(field.name): (field.name, _PARSERS.get(str(field.type), int))
    for field in fields(RewriteOptions)
    if field.name not in _PLAIN
} | {"output-spec-id": ("target_spec_id", int)}
