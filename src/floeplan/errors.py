"""The exceptions of Floeplan, in one tree.

    FloeplanError                  failed                 exit 1
    ├── BadInputError              bad-input              exit 2   nothing was read or written
    │   ├── UnknownCatalogError    unknown-catalog
    │   ├── UnknownTableError      unknown-table
    │   ├── UnknownFileError       unknown-file
    │   ├── UnknownColumnError     unknown-column
    │   ├── UnknownSpecError       unknown-spec
    │   ├── UnknownSnapshotError   unknown-snapshot
    │   ├── UnknownOptionError     unknown-option
    │   ├── InvalidOptionError     invalid-option
    │   ├── TypeMismatchError      type-mismatch
    │   └── PredicateSyntaxError   predicate-syntax
    ├── CorruptError               corrupt                exit 1
    │   ├── CorruptFileError       corrupt-file
    │   ├── MissingFileError       missing-file
    │   └── CorruptMetadataError   corrupt-metadata
    ├── UnsupportedError           unsupported            exit 1
    ├── EvaluationError            evaluation-failed      exit 1   the expression fails on a value of a row
    ├── StrictModeError            strict-mode            exit 4   a filter cannot be evaluated and fail-open is off
    ├── OperationInterruptedError  interrupted            exit 130 retryable; what was committed stays
    └── CommitError                commit-failed          exit 1
        ├── CommitConflictError    commit-conflict        exit 3   retryable; the table is as the other writer left it
        └── CommitStateUnknownError commit-state-unknown  exit 1   it may be committed: delete no files

A class defines defaults that an instance may override. Two attributes define what a caller may do next: `retryable`
(the same operation can succeed if it is run again) and `safe_to_clean` (no metadata references the files that the
failed operation wrote, so they may be deleted). Fail-safe: both are false in the base class, so that an unexpected
error never causes a file to be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from floeplan.text import redacted

RESTORE = "restore it, or roll back to a snapshot that does not need it"
"""What to do about a file of a table that is gone."""


class FloeplanError(Exception):
    """An error with a one-line message, which names the problem and the fix, and machine-readable context.

    Secrets are masked in the message and in the JSON document.

    Args:
        message: One line: what is wrong and how to fix it.
        kind: Kebab-case name of the error; by default that of the class.
        context: Values by name, e.g. the column, the id, the file.
        retryable: Whether the same operation can succeed if it is run again.
        safe_to_clean: Whether files written by the failed operation may be deleted.
        committed: Whether anything was, or may have been, committed.
    """

    default_kind: ClassVar[str] = "failed"
    default_retryable: ClassVar[bool] = False
    default_safe_to_clean: ClassVar[bool] = False
    default_committed: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        context: Mapping[str, object] | None = None,
        retryable: bool | None = None,
        safe_to_clean: bool | None = None,
        committed: bool | None = None,
    ) -> None:
        self.message = redacted(message)
        super().__init__(self.message)
        self.kind = self.default_kind if kind is None else kind
        self.context: dict[str, object] = dict(context or {})
        self.retryable = self.default_retryable if retryable is None else retryable
        self.safe_to_clean = self.default_safe_to_clean if safe_to_clean is None else safe_to_clean
        self.committed = self.default_committed if committed is None else committed

    def to_dict(self) -> dict[str, dict[str, object]]:
        """The JSON document; context values of types that JSON does not have become text."""
        return {
            "error": {
                "kind": self.kind,
                "message": self.message,
                "context": {name: _json_value(value) for name, value in self.context.items()},
                "retryable": self.retryable,
                "committed": self.committed,
            }
        }


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(redacted(str(item)) for item in value)
    return redacted(str(value))


class BadInputError(FloeplanError):
    """The request is invalid; nothing was read or written."""

    default_kind = "bad-input"
    default_safe_to_clean = True
    exit_code = 2


class UnknownCatalogError(BadInputError):
    """The catalog is not configured, or its configuration is invalid."""

    default_kind = "unknown-catalog"


class UnknownTableError(BadInputError):
    """The table or metadata file does not exist."""

    default_kind = "unknown-table"


class UnknownFileError(BadInputError):
    """The file does not exist."""

    default_kind = "unknown-file"


class UnknownColumnError(BadInputError):
    """The schema has no column of this name."""

    default_kind = "unknown-column"


class UnknownSpecError(BadInputError):
    """The table has no partition spec with this id."""

    default_kind = "unknown-spec"


class UnknownSnapshotError(BadInputError):
    """The table has no snapshot with this id, or no branch or tag with this name."""

    default_kind = "unknown-snapshot"


class UnknownOptionError(BadInputError):
    """The option or command does not exist."""

    default_kind = "unknown-option"


class InvalidOptionError(BadInputError):
    """The value of an option is invalid or missing."""

    default_kind = "invalid-option"


class TypeMismatchError(BadInputError):
    """A value or an expression does not fit the type of the column."""

    default_kind = "type-mismatch"


class PredicateSyntaxError(BadInputError):
    """The predicate text cannot be parsed."""

    default_kind = "predicate-syntax"


class CorruptError(FloeplanError):
    """A file violates its format."""

    default_kind = "corrupt"
    default_safe_to_clean = True


class CorruptFileError(CorruptError):
    """A data or delete file is corrupt."""

    default_kind = "corrupt-file"


class MissingFileError(CorruptError):
    """A data or delete file does not exist although the table refers to it."""

    default_kind = "missing-file"


class CorruptMetadataError(CorruptError):
    """A metadata file, manifest list or manifest is corrupt."""

    default_kind = "corrupt-metadata"


class UnsupportedError(FloeplanError):
    """Valid input that Floeplan does not support; nothing was committed."""

    default_kind = "unsupported"
    default_safe_to_clean = True


class EvaluationError(FloeplanError):
    """A valid expression fails on a value of a row: an overflow, a cast, a division by zero."""

    default_kind = "evaluation-failed"
    default_safe_to_clean = True


class StrictModeError(FloeplanError):
    """A filter cannot be evaluated, and strict mode does not allow keeping what it cannot decide."""

    default_kind = "strict-mode"
    default_safe_to_clean = True
    exit_code = 4


class OperationInterruptedError(FloeplanError):
    """Ctrl-C or SIGTERM: what was committed stays, everything else is unchanged."""

    default_kind = "interrupted"
    default_safe_to_clean = True
    default_retryable = True
    exit_code = 130


class CommitError(FloeplanError):
    """The commit failed; the table is unchanged."""

    default_kind = "commit-failed"
    default_safe_to_clean = True


class CommitConflictError(CommitError):
    """Conflicting commits of other writers, after all retries."""

    default_kind = "commit-conflict"
    default_retryable = True
    exit_code = 3


class CommitStateUnknownError(CommitError):
    """The response to the commit was lost: it may have succeeded, so its files must not be deleted."""

    default_kind = "commit-state-unknown"
    default_safe_to_clean = False
    default_committed = True
