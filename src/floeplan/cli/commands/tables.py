"""``floeplan list``, ``snapshots``, ``rollback``, ``cherrypick``, ``branch``, ``tag``, ``properties``: no data is read.

``list`` shadows the builtin in this module: types that need it are declared above the commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common, completion
from floeplan.errors import InvalidOptionError
from floeplan.text import counted
from floeplan.times import age_text, epoch_ms, is_age, parse_age, time_before

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.refs import SnapshotRef

    from floeplan.dml.cherry_pick import CherryPickResult

SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Properties to set; none shows them all.")
]
UnsetOption = Annotated[
    list[str] | None, typer.Option("--unset", metavar="KEY", help="A property to remove; repeatable.")
]
_ALL = "Without a name, all are listed."
BranchNameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help=_ALL, autocompletion=completion.branches)
]
TagNameArgument = Annotated[str | None, typer.Argument(metavar="NAME", help=_ALL, autocompletion=completion.tags)]
AtOption = Annotated[
    int | None, typer.Option("--at", metavar="ID", help="The snapshot; by default the current one of main.")
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Move an existing one to the snapshot.")]
DropOption = Annotated[bool, typer.Option("--drop", help="Drop it; its snapshots stay until they expire.")]
RetainOption = Annotated[
    str | None, typer.Option("--retain", metavar="AGE", help="Expire it when its snapshot is older, e.g. 30d.")
]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a command found or changed; its fields are the keys of the JSON document."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class Tables(Listing):
    """The tables of a catalog, or of one of its namespaces."""

    catalog: str
    tables: Sequence[str]


@dataclass(frozen=True, slots=True)
class Snapshots(Listing):
    """Snapshots, newest first."""

    table: str
    snapshots: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Moved(Listing):
    """A branch that was moved back."""

    table: str
    branch: str
    from_snapshot_id: int
    to_snapshot_id: int
    snapshots_undone: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Refs(Listing):
    """The branches or tags of a table, the one that was changed, and how."""

    table: str
    type: str
    refs: Sequence[Mapping[str, Any]]
    changed: str | None = None
    dry_run: bool = False
    action: str | None = None


@dataclass(frozen=True, slots=True)
class Properties(Listing):
    """The properties of a table, and those that were changed."""

    table: str
    properties: Mapping[str, str]
    set: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[str] = ()
    dry_run: bool = False


def snapshots(
    table: common.TableArgument,
    branch: common.BranchOption = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Show at most N.")] = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Show the snapshots of a table with their branches and tags, newest first.

    floeplan snapshots db.events --limit 10
    """
    from pyiceberg.table.snapshots import ancestors_of

    from floeplan.catalog import load_table
    from floeplan.snapshot.reader import resolve_target

    loaded = load_table(table, catalog)
    metadata = loaded.metadata
    found = metadata.snapshots
    if branch is not None:
        found = [*ancestors_of(resolve_target(loaded, ref=branch).snapshot, metadata)]
    names: dict[int, Any] = {}
    for name, ref in metadata.refs.items():
        names.setdefault(ref.snapshot_id, []).append(name)
    rows = [
        {
            "snapshot_id": one.snapshot_id,
            "parent_id": one.parent_snapshot_id,
            "committed_at": _time(one.timestamp_ms).isoformat(),
            "operation": None if one.summary is None else one.summary.operation.value,
            "refs": sorted(names.get(one.snapshot_id, ())),
            "current": one.snapshot_id == metadata.current_snapshot_id,
            "summary": {} if one.summary is None else dict(one.summary.additional_properties),
        }
        for one in sorted(found, key=lambda one: (one.timestamp_ms, one.sequence_number or 0), reverse=True)
    ]
    common.show(Snapshots(_name(loaded), rows[:limit]), draw_snapshots, as_json=json)


def draw_snapshots(result: Snapshots) -> RenderableType:
    """Render one line per snapshot."""
    if not result.snapshots:
        return Text(f"{result.table} has no snapshots")
    drawn = common.header_table("snapshot", "committed (UTC)", "operation", "changes")
    for one in result.snapshots:
        label = Text(f"{one['snapshot_id']}{' *' if one['current'] else ''}")
        label.append("".join(f" {name}" for name in one["refs"]), style="green")
        committed = datetime.fromisoformat(one["committed_at"]).strftime("%Y-%m-%d %H:%M:%S")
        changes = common.summary_changes(one["summary"])
        drawn.add_row(label, committed, one["operation"] or "–", ", ".join(changes))
    return drawn


def rollback(
    table: common.ChangedTableArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ID|TIME|REF",
            help="A snapshot id, a time, an age such as 2h, or a branch or tag.",
            autocompletion=completion.refs,
        ),
    ],
    branch: common.BranchOption = None,
    dry_run: common.DryRunOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Move a branch back to one of its earlier snapshots; nothing is deleted.

    floeplan rollback db.events --to 2024-03-01T12:00:00 --dry-run
    """
    from pyiceberg.table.snapshots import ancestors_of

    from floeplan.snapshot.reader import branch_head
    from floeplan.transaction.refs import rollback_to

    loaded = common.writable_table(table, catalog)
    name = branch or "main"
    target, head = _snapshot(loaded, to), branch_head(loaded.metadata, name)
    rollback_to(loaded, target, branch=name, dry_run=dry_run)
    assert head is not None, "rollback_to refuses a branch without snapshots"
    lineage = [one.snapshot_id for one in ancestors_of(loaded.metadata.snapshot_by_id(head), loaded.metadata)]
    moved = Moved(_name(loaded), name, head, target, lineage.index(target), dry_run)
    common.show(moved, draw_rollback, as_json=json)


def draw_rollback(result: Moved) -> RenderableType:
    """Render the move."""
    done = "would move" if result.dry_run else "moved"
    undone = counted(result.snapshots_undone, "snapshot")
    return Text(
        f"{result.branch} {done} from snapshot {result.from_snapshot_id} to {result.to_snapshot_id}, back by {undone}"
    )


def cherrypick(
    table: common.ChangedTableArgument,
    snapshot_id: Annotated[int, typer.Option("--snapshot-id", metavar="ID", help="The snapshot to commit again.")],
    branch: common.BranchOption = None,
    dry_run: common.DryRunOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Commit what a snapshot appended or replaced to a branch that does not have it.

    floeplan cherrypick db.events --snapshot-id 4811123372063478012 --dry-run
    """
    from floeplan.dml.cherry_pick import cherry_pick

    loaded = common.writable_table(table, catalog)
    result = cherry_pick(loaded, snapshot_id, branch=branch, dry_run=dry_run)
    common.show(result, draw_cherrypick, as_json=json)


def draw_cherrypick(result: CherryPickResult) -> RenderableType:
    """Render what the branch has now."""
    would = "would " if result.dry_run else ""
    files = f"{counted(result.data_files_added, 'data file')}, {counted(result.rows_inserted, 'row')}"
    if result.fast_forward:
        moves = "move" if result.dry_run else "moved"
        return Text(f"{result.branch} {would}{moves} forward to snapshot {result.source_snapshot_id}: {files}")
    added = f"{would}get" if result.dry_run else f"got, in snapshot {result.snapshot_id},"
    replaced = result.data_files_removed
    instead = f" instead of {counted(replaced, 'data file')}" if replaced else ""
    did = "replaced" if replaced else "appended"
    return Text(f"{result.branch} {added} what snapshot {result.source_snapshot_id} {did}: {files}{instead}")


def _snapshot(table: Table, text: str) -> int:
    """The snapshot of ``--to``: an id, a branch or tag, or the newest one at a time."""
    from floeplan.snapshot.reader import resolve_target

    if text.isdecimal():
        return int(text)
    if text in table.metadata.refs:
        return table.metadata.refs[text].snapshot_id
    if is_age(text):
        time = time_before(datetime.now(UTC), text, "--to")
    else:
        time = common.parse_time(text, f"--to {text!r} is not a snapshot id, time, age, branch or tag of the table")
    found = resolve_target(table, timestamp_ms=epoch_ms(time)).snapshot
    assert found is not None, "a snapshot of the log"
    return found.snapshot_id


def branch(
    table: common.TableArgument,
    name: BranchNameArgument = None,
    at: AtOption = None,
    replace: ReplaceOption = False,
    drop: DropOption = False,
    fast_forward: Annotated[
        str | None,
        typer.Option(
            "--fast-forward",
            metavar="REF",
            help="Move it forward to a descendant.",
            autocompletion=completion.refs,
        ),
    ] = None,
    retain: RetainOption = None,
    snapshot_age: Annotated[
        str | None, typer.Option("--snapshot-age", metavar="AGE", help="Keep its snapshots this long.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Keep at least N of its snapshots.")
    ] = None,
    dry_run: common.DryRunOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """List, create, move or drop branches.

    floeplan branch db.events audit --at 4348509437391221 --retain 30d
    """
    from floeplan.transaction import refs

    retention = refs.Retention(_age_ms(retain, "--retain"), _age_ms(snapshot_age, "--snapshot-age"), keep)
    is_new = at is not None or replace or retention != refs.Retention()
    if name is None:
        _list_refs(table, catalog, "branch", is_new or drop or fast_forward is not None, json)
        return
    if drop + is_new + (fast_forward is not None) > 1:
        raise InvalidOptionError("--drop, --fast-forward and the options of a new branch exclude each other")
    loaded = common.writable_table(table, catalog)
    action = "moved" if name in loaded.metadata.refs else "created"
    if drop:
        action, changed = "dropped", refs.drop_branch(loaded, name, dry_run=dry_run)
    elif fast_forward is not None:
        changed = refs.fast_forward(loaded, name, fast_forward, dry_run=dry_run)
    else:
        changed = refs.create_branch(loaded, name, at, replace=replace, retention=retention, dry_run=dry_run)
    common.show(_refs(changed, "branch", name, dry_run, action), draw_refs, as_json=json)


def tag(
    table: common.TableArgument,
    name: TagNameArgument = None,
    at: AtOption = None,
    replace: ReplaceOption = False,
    drop: DropOption = False,
    retain: RetainOption = None,
    dry_run: common.DryRunOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """List, create, move or drop tags.

    floeplan tag db.events end-of-march --retain 365d
    """
    from floeplan.transaction import refs

    retention = refs.Retention(_age_ms(retain, "--retain"))
    is_new = at is not None or replace or retain is not None
    if name is None:
        _list_refs(table, catalog, "tag", is_new or drop, json)
        return
    if drop and is_new:
        raise InvalidOptionError("--drop and the options of a new tag exclude each other")
    loaded = common.writable_table(table, catalog)
    action = "moved" if name in loaded.metadata.refs else "created"
    if drop:
        action, changed = "dropped", refs.drop_tag(loaded, name, dry_run=dry_run)
    else:
        changed = refs.create_tag(loaded, name, at, replace=replace, retention=retention, dry_run=dry_run)
    common.show(_refs(changed, "tag", name, dry_run, action), draw_refs, as_json=json)


def _list_refs(table: str, catalog: str | None, kind: str, changes: bool, json: bool) -> None:
    from floeplan.catalog import load_table

    if changes:
        raise InvalidOptionError(f"name the {kind} to change; without a name, all are listed")
    common.show(_refs(load_table(table, catalog), kind), draw_refs, as_json=json)


def _refs(
    table: Table, kind: str, changed: str | None = None, dry_run: bool = False, action: str | None = None
) -> Refs:
    """The refs of a kind."""

    def row(name: str, ref: SnapshotRef) -> dict[str, Any]:
        return {
            "name": name,
            "type": ref.snapshot_ref_type.value,
            "snapshot_id": ref.snapshot_id,
            "max_ref_age_ms": ref.max_ref_age_ms,
            "max_snapshot_age_ms": ref.max_snapshot_age_ms,
            "min_snapshots_to_keep": ref.min_snapshots_to_keep,
        }

    found = sorted(table.metadata.refs.items())
    rows = [row(name, ref) for name, ref in found if ref.snapshot_ref_type.value == kind]
    return Refs(_name(table), kind, rows, changed, dry_run, action)


def draw_refs(result: Refs) -> RenderableType:
    """Render the change, and one line per branch or tag."""
    parts: Any = []
    if result.changed is not None:
        done = f"dry run: not {result.action}" if result.dry_run else str(result.action)
        parts.append(Text(f"{result.type} {result.changed}: {done}", style="bold"))
    if not result.refs:
        return Group(*parts, Text(f"{result.table} has no {'branches' if result.type == 'branch' else 'tags'}"))
    drawn = common.header_table(result.type, "snapshot", "retention")
    for one in result.refs:
        ages = {"ref": one["max_ref_age_ms"], "snapshots": one["max_snapshot_age_ms"]}
        kept = [f"{what} {age_text(timedelta(milliseconds=age))}" for what, age in ages.items() if age is not None]
        if one["min_snapshots_to_keep"] is not None:
            kept.append(f"at least {counted(one['min_snapshots_to_keep'], 'snapshot')}")
        drawn.add_row(one["name"], str(one["snapshot_id"]), ", ".join(kept) or "–")
    return Group(*parts, drawn)


def _age_ms(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    age = int(parse_age(text, option).total_seconds() * 1000)
    if age < 1:
        raise InvalidOptionError(f"{option} is {text!r} but must be more than 0", context={"option": option})
    return age


def properties(
    table: common.TableArgument,
    settings: SettingsArgument = None,
    unset: UnsetOption = None,
    dry_run: common.DryRunOption = False,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """Show, set or remove table properties.

    floeplan properties db.events write.delete.mode=merge-on-read --unset commit.retry.num-retries
    """
    from floeplan.catalog import load_table
    from floeplan.transaction.properties import check_properties, set_properties

    given: dict[str, str] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidOptionError(f"{text!r} has no value; write name=value", context={"property": text})
        given[name.strip()] = value.strip()
    removed = tuple(unset or ())
    if not given and not removed:
        loaded = load_table(table, catalog)
        common.show(Properties(_name(loaded), loaded.properties), draw_properties, as_json=json)
        return
    loaded = common.writable_table(table, catalog)
    check_properties(given, removed)
    removed = tuple(name for name in removed if name in loaded.properties)
    changed = loaded if dry_run or not (given or removed) else set_properties(loaded, given, removed)
    shown = Properties(_name(loaded), changed.properties, given, removed, dry_run)
    common.show(shown, draw_properties if given or removed else _draw_unchanged, as_json=json)


def draw_properties(result: Properties) -> RenderableType:
    """Render what was changed, or all properties; secrets are masked as in every output."""
    drawn = common.key_value_table()
    if result.set or result.removed:
        for name, value in result.set.items():
            drawn.add_row(name, value)
        for name in result.removed:
            drawn.add_row(name, Text("removed", style="dim"))
        done = "dry run: nothing was changed" if result.dry_run else "changed"
        return Group(Text(f"{result.table}: {done}", style="bold"), drawn)
    for name, value in sorted(result.properties.items()):
        drawn.add_row(name, Text(value, overflow="fold"))
    return drawn if result.properties else Text(f"{result.table} has no properties")


def _draw_unchanged(result: Properties) -> RenderableType:
    return Text(f"{result.table}: nothing to remove")


def _name(table: Table) -> str:
    return ".".join(table.name())


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def list(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE",
            help="Only tables of this namespace and of those within it.",
            autocompletion=completion.namespaces,
        ),
    ] = None,
    catalog: common.CatalogOption = None,
    json: common.JsonOption = False,
) -> None:
    """List the tables of a catalog.

    floeplan list db
    """
    from floeplan.catalog import list_tables

    common.show(Tables(*list_tables(catalog, namespace)), draw_tables, as_json=json)


def draw_tables(result: Tables) -> RenderableType:
    """Render one name per line, for other commands."""
    if not result.tables:
        return Text(f"no tables in catalog {result.catalog!r}")
    return Text("\n".join(result.tables))
