"""Every error Floeplan raises, under one base.

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
    │   └── CorruptMetadataError   corrupt-metadata
    ├── UnsupportedError           unsupported            exit 1
    ├── EvaluationError            evaluation-failed      exit 1   a row has a value the expression cannot be asked of
    ├── StrictModeError            strict-mode            exit 4   undecided, and fail-open was not allowed
    └── CommitError                commit-failed          exit 1
        ├── CommitConflictError    commit-conflict        exit 3   retryable; the table is as the other writer left it
        └── CommitStateUnknownError commit-state-unknown  exit 1   the commit may have happened: clean nothing

The class gives the defaults, an instance may refine them. Two attributes tell a caller what may be done next:
`retryable` (running the same operation again can succeed) and `safe_to_clean` (the files the failed operation wrote are
referenced by nobody and may be deleted). Fail-safe: the base class is neither, so an error that nobody thought about
never causes a file to be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from floeplan.redact import redacted


class FloeplanError(Exception):
    """One line of text naming the thing that is wrong and the fix, with machine-readable facts beside it.

    Secrets are masked in the message and in the document.

    Args:
        message: One line: what is wrong, named, and what to do about it.
        kind: Kebab-case name of the error; defaults to the one of the class.
        context: Facts by name (the column, the id, the file).
        retryable: Whether the same operation can succeed when run again.
        safe_to_clean: Whether files written by the failed operation may be deleted.
        committed: Whether something was, or may have been, committed before the failure.
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
        """Return the JSON document of the error; context values JSON does not know become text."""
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
    """The request itself is wrong; nothing was read or written."""

    default_kind = "bad-input"
    default_safe_to_clean = True
    exit_code = 2


class UnknownCatalogError(BadInputError):
    """The named catalog is not configured, or its configuration cannot be used."""

    default_kind = "unknown-catalog"


class UnknownTableError(BadInputError):
    """There is no such table, or no such metadata file."""

    default_kind = "unknown-table"


class UnknownFileError(BadInputError):
    """There is no such file."""

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
    """An option or a command that does not exist."""

    default_kind = "unknown-option"


class InvalidOptionError(BadInputError):
    """An option that exists, with a value it cannot take or without one it needs."""

    default_kind = "invalid-option"


class TypeMismatchError(BadInputError):
    """A value or an expression does not fit the type of the column."""

    default_kind = "type-mismatch"


class PredicateSyntaxError(BadInputError):
    """The predicate text cannot be parsed."""

    default_kind = "predicate-syntax"


class CorruptError(FloeplanError):
    """Bytes that do not say what their format demands."""

    default_kind = "corrupt"
    default_safe_to_clean = True


class CorruptFileError(CorruptError):
    """A data or delete file cannot be trusted."""

    default_kind = "corrupt-file"


class CorruptMetadataError(CorruptError):
    """A metadata file, manifest list or manifest cannot be trusted."""

    default_kind = "corrupt-metadata"


class UnsupportedError(FloeplanError):
    """Well-formed input that Floeplan does not handle; refused before anything was committed."""

    default_kind = "unsupported"
    default_safe_to_clean = True


class EvaluationError(FloeplanError):
    """An expression that is right in itself fails on a value of a row: an overflow, a cast, a division by zero."""

    default_kind = "evaluation-failed"
    default_safe_to_clean = True


class StrictModeError(FloeplanError):
    """Something could not be decided and strict mode does not allow keeping it unasked."""

    default_kind = "strict-mode"
    default_safe_to_clean = True
    exit_code = 4


class CommitError(FloeplanError):
    """The catalog refused the commit; the table is as it was."""

    default_kind = "commit-failed"
    default_safe_to_clean = True


class CommitConflictError(CommitError):
    """Another writer won, and all retries were used up."""

    default_kind = "commit-conflict"
    default_retryable = True
    exit_code = 3


class CommitStateUnknownError(CommitError):
    """The answer to the commit was lost: it may have happened, so its files must stay."""

    default_kind = "commit-state-unknown"
    default_safe_to_clean = False
    default_committed = True
