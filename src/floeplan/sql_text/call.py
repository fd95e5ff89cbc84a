"""``CALL [catalog.]system.procedure(…)``: Iceberg's procedures by their names, arguments and result columns.

The catalog ``floeplan`` is the catalog of the statement; any other is a configured one. Arguments are named
(``table => 'db.t'``) or in Iceberg's order, and are literals: strings, numbers, booleans, timestamps, ``map(…)`` and
``array(…)``.

Rule: a procedure does what its command does, with Iceberg's defaults; ``expire_snapshots`` and ``remove_orphan_files``
delete files unless ``dry_run`` says otherwise, as in Iceberg.

Fail-safe: an argument that a procedure does not know, or whose effect Floeplan does not have, is refused before
anything is read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ancestors_of
from sqlglot import TokenType

from floeplan.catalog import open_catalog
from floeplan.display import Displayed, table_html
from floeplan.errors import BadInputError
from floeplan.snapshot.reader import branch_head, resolve_target
from floeplan.sql_text.relations import open_table
from floeplan.sql_text.tokens import Cursor, Piece, is_word
from floeplan.text import excerpt
from floeplan.times import epoch_ms
from floeplan.transaction import refs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

OWN_CATALOG = "floeplan"
SYSTEM = "system"
Arguments: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, repr=False)
class ProcedureResult(Displayed):
    """The rows that a procedure returns, in Iceberg's columns."""

    procedure: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __repr__(self) -> str:
        first = ", ".join(map("{}={!r}".format, self.columns, self.rows[0] if self.rows else ()))
        more = f", and {len(self.rows) - 1:,} more" if len(self.rows) > 1 else ""
        return f"<{self.procedure}: {excerpt(first, 200) or 'no rows'}{more}>"

    def _repr_html_(self) -> str:
        """The HTML that Jupyter shows."""
        return table_html(self.procedure, self.columns, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"procedure": self.procedure, "columns": list(self.columns), "rows": rows}

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return pa.table({name: [row[index] for row in self.rows] for index, name in enumerate(self.columns)})


@dataclass(frozen=True, slots=True)
class _Procedure:
    """A procedure: its arguments in order, those that change nothing here, its columns, and what it does."""

    arguments: tuple[str, ...]
    ignored: tuple[str, ...]
    columns: tuple[str, ...]
    run: Callable[[Table, Arguments, SparkSession | None], Rows]


def run_call(statement: Cursor, spark: SparkSession | None, catalog: str | Catalog | None) -> ProcedureResult:
    """Run a ``CALL``; sqlglot's tokenizer returns what follows the word as one string."""
    if len(statement.tokens) < 2:
        raise statement.error("a procedure is expected", 1)
    cursor = Cursor(str(statement.tokens[1].text))
    name = cursor.name()
    if len(name) not in (2, 3) or name[-2].lower() != SYSTEM:
        raise BadInputError(
            f"CALL {'.'.join(name)}: write CALL {OWN_CATALOG}.{SYSTEM}.procedure(…)", context={"name": ".".join(name)}
        )
    procedure = name[-1].lower()
    if procedure not in PROCEDURES:
        close = difflib.get_close_matches(procedure, PROCEDURES)
        known = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(PROCEDURES)}"
        raise BadInputError(f"unknown procedure {procedure}; {known}", context={"procedure": procedure})
    if len(name) == 3 and name[0] != OWN_CATALOG:
        catalog = open_catalog(name[0])
    found = PROCEDURES[procedure]
    given = _arguments(cursor.items(), procedure, found)
    if not cursor.done:
        raise cursor.error("the end of the statement is expected")
    table = given.pop("table", None)
    if not isinstance(table, str):
        raise BadInputError(f"{procedure} needs table => 'namespace.name'", context={"procedure": procedure})
    opened = open_table([part.strip("`") for part in table.split(".")], catalog)
    rows = found.run(opened, given, spark)
    return ProcedureResult(procedure, found.columns, tuple(map(tuple, rows)))


def _arguments(pieces: Sequence[Piece], procedure: str, found: _Procedure) -> dict[str, Any]:
    """The arguments by name; NULL is as if an argument was not given."""
    known = ("table", *found.arguments)
    given: dict[str, Any] = {}
    named = False
    for position, piece in enumerate(pieces):
        cursor = Cursor(piece.text)
        if len(cursor.tokens) > 2 and cursor.tokens[1].token_type is TokenType.FARROW:
            named, name = True, cursor.word().lower()
            cursor.at += 1
        elif named:
            raise BadInputError(f"{procedure}: arguments after a named one must be named, too: {piece.text}")
        elif position < len(known):
            name = known[position]
        else:
            raise BadInputError(f"{procedure} takes at most {len(known)} arguments")
        if name in given:
            raise BadInputError(f"{procedure}: {name} is given twice", context={"argument": name})
        if name not in known and name not in found.ignored:
            close = difflib.get_close_matches(name, known)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}"
            raise BadInputError(f"{procedure} has no argument {name}; {hint}", context={"argument": name})
        value = _literal(cursor, f"{procedure}: {name}")
        if value is not None and name in known:
            given[name] = value
    return given


def _literal(cursor: Cursor, what: str) -> Any:
    """The value of a literal, to the end of the text."""
    token = cursor.tokens[cursor.at]
    rest = cursor.tokens[cursor.at + 1 :]
    text = str(token.text)
    if is_word(token, "MAP", "ARRAY") and rest:
        cursor.at += 1
        values = [_literal(Cursor(piece.text), what) for piece in cursor.items()]
        if cursor.done and is_word(token, "ARRAY"):
            return values
        if cursor.done and len(values) % 2 == 0:
            return {str(key): _option(value) for key, value in zip(values[::2], values[1::2], strict=True)}
        if cursor.done:
            shown = cursor.text.split("=>")[-1].strip()
            raise BadInputError(f"{what}: {shown} has a key without a value", context={"text": cursor.text})
    elif is_word(token, "TIMESTAMP", "DATE") and len(rest) == 1 and rest[0].token_type is TokenType.STRING:
        return _time(str(rest[0].text), what)
    elif token.token_type is TokenType.DASH and len(rest) == 1 and rest[0].token_type is TokenType.NUMBER:
        if rest[0].text.isdecimal():
            return -int(rest[0].text)
    elif not rest and token.token_type is TokenType.STRING:
        return text
    elif token.token_type is TokenType.NUMBER and text.isdecimal() and (not rest or is_word(rest[-1], "L")):
        return int(text)  # the tokenizer writes 5L as a cast
    elif not rest and is_word(token, "TRUE", "FALSE"):
        return text.upper() == "TRUE"
    elif not rest and is_word(token, "NULL"):
        return None
    raise BadInputError(f"{what} must be a literal, not {cursor.text.strip()}", context={"text": cursor.text})


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(value: Any, what: str) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        raise BadInputError(f"{what} is {value!r}, which is not a time", context={"value": str(value)}) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _of_type(arguments: Arguments, name: str, kind: type) -> Any:
    """An argument that must have a type, if it is given."""
    value = arguments.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        what = {int: "a number", bool: "true or false", dict: "a map", list: "an array", str: "a string"}[kind]
        raise BadInputError(f"{name} is {value!r} but must be {what}", context={"argument": name})
    return value


def _required(arguments: Arguments, name: str, kind: type) -> Any:
    value = _of_type(arguments, name, kind)
    if value is None:
        raise BadInputError(f"the argument {name} is missing", context={"argument": name})
    return value


def _flag(options: dict[str, str], name: str) -> bool:
    """Take an option that is true or false, false if it is not given."""
    text = options.pop(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise BadInputError(f"option {name} is {text!r} but must be true or false", context={"option": name})
    return text == "true"


# The procedures.


def _rewrite_data_files(table: Table, arguments: Arguments, spark: SparkSession | None) -> Rows:
    from floeplan.rewrite.execute import rewrite_data_files

    sort_order = _of_type(arguments, "sort_order", str)
    strategy = (_of_type(arguments, "strategy", str) or ("sort" if sort_order else "binpack")).lower()
    by: list[str] = []
    if sort_order is not None:
        curve = re.fullmatch(r"\s*zorder\s*\((.*)\)\s*", sort_order, re.IGNORECASE | re.DOTALL)
        if curve is not None and strategy == "sort":
            strategy = "zorder"
        by = [term.strip() for term in (sort_order if curve is None else curve[1]).split(",")]
    options: dict[str, str] = dict(_of_type(arguments, "options", dict) or {})
    result = rewrite_data_files(
        table,
        where=_of_type(arguments, "where", str),
        strategy=strategy,
        by=by,
        case_sensitive=False,
        trust_lists=_flag(options, "trust-lists"),
        allow_late_equality_deletes=_flag(options, "allow-late-equality-deletes"),
        options=options,
        branch=_of_type(arguments, "branch", str),
        spark=spark,
    )
    failed = {failure.group_id for failure in result.failures}
    lost = sum(len(group.rows) for group in result.planning.plan.groups if group.group_id in failed)
    counts = (result.files_rewritten, result.files_added, result.bytes_rewritten, lost, result.delete_files_removed)
    return [counts]


def _rewrite_position_delete_files(table: Table, arguments: Arguments, spark: SparkSession | None) -> Rows:
    from floeplan.maintenance.rewrite_deletes import MIN_INPUT_FILES, rewrite_position_delete_files

    options: dict[str, str] = dict(_of_type(arguments, "options", dict) or {})
    rewrite_all = _flag(options, "rewrite-all")
    least = options.pop("min-input-files", str(MIN_INPUT_FILES))
    if options or not least.isdecimal():
        wrong = next(iter(options), "min-input-files")
        raise BadInputError(
            f"rewrite_position_delete_files: {wrong} is not an option, or has an invalid value; "
            "the options are rewrite-all and min-input-files",
            context={"option": wrong},
        )
    where = _of_type(arguments, "where", str)
    done = rewrite_position_delete_files(
        table, where=where, rewrite_all=rewrite_all, min_input_files=int(least), spark=spark
    )
    rewritten = done.rewritten_delete_files + done.dangling_delete_files
    return [(rewritten, done.added_delete_files, done.rewritten_bytes, done.added_bytes)]


def _rewrite_manifests(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    from floeplan.maintenance.rewrite_manifests import rewrite_manifests

    spec_id = _of_type(arguments, "spec_id", int)
    result = rewrite_manifests(table, spec_ids=None if spec_id is None else [spec_id])
    before, after = (sum(getattr(one, f"manifests_{when}") for one in result.specs) for when in ("before", "after"))
    return [(before, after)]


def _expire_snapshots(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    from floeplan.maintenance.expire import expire_snapshots

    older_than = arguments.get("older_than")
    result = expire_snapshots(
        table,
        older_than=None if older_than is None else _time(older_than, "older_than"),
        retain_last=_of_type(arguments, "retain_last", int),
        dry_run=False,
    )
    deletes = result.position_delete_files, result.equality_delete_files
    data_files = result.data_files - sum(deletes)
    return [(data_files, *deletes, result.manifests, result.manifest_lists, result.statistics_files)]


def _remove_orphan_files(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    from floeplan.maintenance.orphans import AGE_GUARD, remove_orphans

    older_than = arguments.get("older_than")
    result = remove_orphans(
        table,
        older_than=AGE_GUARD if older_than is None else _time(older_than, "older_than"),
        dry_run=bool(_of_type(arguments, "dry_run", bool)),
    )
    return [(path,) for path in result.orphans]


def _moved(table: Table, move: Callable[[], Table]) -> Rows:
    """The current snapshot before and after."""
    return [(table.metadata.current_snapshot_id, move().metadata.current_snapshot_id)]


def _rollback_to_snapshot(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    target = _required(arguments, "snapshot_id", int)
    return _moved(table, lambda: refs.rollback_to(table, target))


def _rollback_to_timestamp(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    if "timestamp" not in arguments:
        raise BadInputError("the argument timestamp is missing", context={"argument": "timestamp"})
    time = _time(arguments["timestamp"], "timestamp")
    # As in Iceberg, the newest ancestor that is older: of the branch, not of the log of what was current.
    lineage = ancestors_of(table.current_snapshot(), table.metadata)
    older = next((one for one in lineage if one.timestamp_ms < epoch_ms(time)), None)
    if older is None:
        raise BadInputError(f"no ancestor of the current snapshot is older than {time.isoformat()}")
    return _moved(table, lambda: refs.rollback_to(table, older.snapshot_id))


def _set_current_snapshot(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    target, ref = _of_type(arguments, "snapshot_id", int), _of_type(arguments, "ref", str)
    if (target is None) == (ref is None):
        raise BadInputError("set_current_snapshot takes either snapshot_id or ref")
    if ref is not None:
        found = resolve_target(table, ref=ref).snapshot
        target = None if found is None else found.snapshot_id
    return _moved(table, lambda: refs.set_current(table, target))


def _cherrypick_snapshot(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    from floeplan.dml.cherry_pick import cherry_pick

    picked = cherry_pick(table, _required(arguments, "snapshot_id", int))
    return [(picked.source_snapshot_id, picked.snapshot_id)]


def _fast_forward(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    branch, to = _required(arguments, "branch", str), _required(arguments, "to", str)
    before = branch_head(table.metadata, branch)
    moved = refs.fast_forward(table, branch, to)
    return [(branch, before, branch_head(moved.metadata, branch))]


def _ancestors_of(table: Table, arguments: Arguments, _: SparkSession | None) -> Rows:
    snapshot_id = _of_type(arguments, "snapshot_id", int)
    newest = resolve_target(table, snapshot_id=snapshot_id, ref=None if snapshot_id else MAIN_BRANCH).snapshot
    return [(one.snapshot_id, one.timestamp_ms) for one in ancestors_of(newest, table.metadata)]


_SPAN = ("start-snapshot-id", "end-snapshot-id", "start-timestamp", "end-timestamp")


def _create_changelog_view(table: Table, arguments: Arguments, spark: SparkSession | None) -> Rows:
    if spark is None:
        raise BadInputError("create_changelog_view creates a view in a Spark session: pass one, as in fp.sql(spark, …)")
    from floeplan.spark.changelog import Span, create_changelog_view

    options: dict[str, str] = _of_type(arguments, "options", dict) or {}
    for name, text in options.items():
        if name not in _SPAN or not text.isdecimal():
            raise BadInputError(
                f"create_changelog_view: option {name} is {text!r}; the options are {', '.join(_SPAN)} (milliseconds)",
                context={"option": name},
            )
    given = _of_type(arguments, "identifier_columns", list)
    updates = _of_type(arguments, "compute_updates", bool)
    view = _of_type(arguments, "changelog_view", str) or f"`{table.name()[-1]}_changes`"
    create_changelog_view(
        spark,
        table,
        view,
        Span(*(int(options[name]) if name in options else None for name in _SPAN)),
        updates=bool(given) if updates is None else updates,
        identifiers=sorted(table.schema().identifier_field_names()) if given is None else given,
        net_changes=bool(_of_type(arguments, "net_changes", bool)),
    )
    return [(view,)]


_SNAPSHOTS = ("previous_snapshot_id", "current_snapshot_id")
PROCEDURES = {
    "rewrite_data_files": _Procedure(
        ("strategy", "sort_order", "options", "where", "branch"),
        (),
        (
            *("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count"),
            *("failed_data_files_count", "removed_delete_files_count"),
        ),
        _rewrite_data_files,
    ),
    "rewrite_position_delete_files": _Procedure(
        ("options", "where"),
        (),
        (
            *("rewritten_delete_files_count", "added_delete_files_count"),
            *("rewritten_bytes_count", "added_bytes_count"),
        ),
        _rewrite_position_delete_files,
    ),
    "rewrite_manifests": _Procedure(
        ("use_caching", "spec_id"), (), ("rewritten_manifests_count", "added_manifests_count"), _rewrite_manifests
    ),
    "expire_snapshots": _Procedure(
        ("older_than", "retain_last", "max_concurrent_deletes", "stream_results"),
        (),
        (
            *("deleted_data_files_count", "deleted_position_delete_files_count"),
            *("deleted_equality_delete_files_count", "deleted_manifest_files_count"),
            *("deleted_manifest_lists_count", "deleted_statistics_files_count"),
        ),
        _expire_snapshots,
    ),
    "remove_orphan_files": _Procedure(
        ("older_than", "dry_run"),
        ("max_concurrent_deletes", "stream_results"),
        ("orphan_file_location",),
        _remove_orphan_files,
    ),
    "rollback_to_snapshot": _Procedure(("snapshot_id",), (), _SNAPSHOTS, _rollback_to_snapshot),
    "rollback_to_timestamp": _Procedure(("timestamp",), (), _SNAPSHOTS, _rollback_to_timestamp),
    "set_current_snapshot": _Procedure(("snapshot_id", "ref"), (), _SNAPSHOTS, _set_current_snapshot),
    "cherrypick_snapshot": _Procedure(
        ("snapshot_id",), (), ("source_snapshot_id", "current_snapshot_id"), _cherrypick_snapshot
    ),
    "fast_forward": _Procedure(("branch", "to"), (), ("branch_updated", "previous_ref", "updated_ref"), _fast_forward),
    "create_changelog_view": _Procedure(
        ("changelog_view", "options", "compute_updates", "identifier_columns", "net_changes"),
        (),
        ("changelog_view",),
        _create_changelog_view,
    ),
    "ancestors_of": _Procedure(("snapshot_id",), (), ("snapshot_id", "timestamp"), _ancestors_of),
}
"""The procedures; arguments that only tune how Iceberg runs, such as ``use_caching``, are accepted without effect."""
