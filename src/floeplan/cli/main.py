"""The entry point: runs a command and reports a failure as one line or one JSON document, with an exit code.

    0  done      1  failed      2  bad input      3  commit conflict      4  strict mode refused      130  interrupted

The list of commands needs none of their modules: `--help` and completion show the summaries of `COMMANDS`. The module
of a command is imported for its own help, its completion or its run, and the libraries it uses when it runs.
"""

from __future__ import annotations

import difflib
import gc
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from floeplan.errors import (
    BadInputError,
    FloeplanError,
    InvalidOptionError,
    OperationInterruptedError,
    UnknownOptionError,
)
from floeplan.text import counted, one_line, reason, redacted

COMMANDS = {
    "plan": ("commands.plan", "Plan a scan and show what it would read."),
    "why": ("commands.plan", "Show which pass, condition and statistic keep or drop a data file."),
    "scan": ("commands.plan", "Read matching rows."),
    "prune": ("commands.prune", "Show the row groups and pages of a Parquet file that may match a predicate."),
    "list": ("commands.tables", "List the tables of a catalog."),
    "inspect": ("commands.inspect", "Show partition specs, schemas, snapshots, files by spec, delete files and sizes."),
    "snapshots": ("commands.tables", "Show the snapshots of a table with their branches and tags, newest first."),
    "rollback": ("commands.tables", "Move a branch back to one of its earlier snapshots; nothing is deleted."),
    "cherrypick": ("commands.tables", "Commit what a snapshot appended or replaced to a branch that does not have it."),
    "branch": ("commands.tables", "List, create, move or drop branches."),
    "tag": ("commands.tables", "List, create, move or drop tags."),
    "properties": ("commands.tables", "Show, set or remove table properties."),
    "entries": ("commands.inspect", "Write the manifest entries of a snapshot as Parquet files."),
    "append": ("commands.dml", "Append the rows of Parquet files."),
    "delete": ("commands.dml", "Delete matching rows."),
    "update": ("commands.dml", "Update matching rows."),
    "merge": ("commands.dml", "Merge Parquet files or another table into a table."),
    "sql": ("commands.dml", "Run one SQL statement in Spark's dialect: a query or a change."),
    "rewrite": ("commands.rewrite", "Rewrite data files of the wrong size, with deletes, or of an old partition spec."),
    "audit": ("commands.audit", "Find queries that read much more than they need, from scan reports."),
    "advise": ("commands.audit", "Estimate what other partition specs and sort orders would save, from scan reports."),
    "upgrade-spec": ("commands.rewrite", "Move files to another partition spec, by metadata alone where possible."),
    "upgrade-format": (
        "commands.maintenance",
        "Raise the format version of a table; snapshots and files stay as they are.",
    ),
    "rewrite-manifests": ("commands.maintenance", "Cluster manifests by partition, so that planning can skip some."),
    "rewrite-deletes": (
        "commands.maintenance",
        "Merge small position delete files; from format 3 on, replace them by deletion vectors.",
    ),
    "expire": ("commands.maintenance", "Expire old snapshots and delete unreferenced files (dry run unless --yes)."),
    "remove-orphans": ("commands.maintenance", "Delete unreferenced files (dry run unless --yes)."),
    "doctor": ("commands.maintenance", "Check a table for problems and suggest fixes."),
    "maintain": (
        "commands.maintain",
        "Maintain all tables of a catalog: the most valuable work first, within a budget.",
    ),
    "report": ("commands.explorer", "Write a static site with the map, history, plans and health of a table."),
    "serve": ("commands.explorer", "Serve the explorer on 127.0.0.1 until interrupted."),
    "serve-catalog": (
        "commands.serve_catalog",
        "Serve a REST catalog that plans scans for Spark, PyIceberg and others, until interrupted.",
    ),
    "explain-plan": ("commands.serve_catalog", "Explain why a query that the server planned read what it read."),
    "demo": ("demo_command", "Run the main commands on a small table of three partition specs, with explanations."),
}
"""Commands in the order of `--help`, each with its module in `floeplan.cli` and its summary.

`a-b` is the function `a_b`, whose docstring begins with the summary.
"""

GROUPS = {
    "commands.plan": "Query",
    "commands.prune": "Query",
    "commands.tables": "Tables",
    "commands.inspect": "Tables",
    "commands.dml": "Change rows",
    "commands.rewrite": "Layout",
    "commands.audit": "Layout",
    "commands.maintenance": "Maintenance",
    "commands.maintain": "Maintenance",
    "commands.explorer": "Explorer and servers",
    "commands.serve_catalog": "Explorer and servers",
}
"""The group of a command in `--help`, by its module; groups come in the order of their first command."""

_GC_ALLOCATIONS = 100_000
"""Python's default looks for garbage more often, among imported modules too, which takes a tenth of the start-up."""


class _Redacting(logging.Formatter):
    """Masks secrets in log lines, including those of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class LazyCommands(TyperGroup):
    """Lists the commands by their summaries, and imports the module of a command when the command is resolved."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command, all flags; Typer imports pydantic to convert a flag that is None."""
        options = super().get_params(ctx)
        for option in options:
            option.default = option.default or False
        return _without_types(options)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand:
        """A command as help and completion list it: without parameters."""
        module, summary = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=summary, rich_help_panel=GROUPS.get(module, "Other"))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in COMMANDS:
            return name, load_command(name), args[1:]
        if ctx.resilient_parsing:  # shell completion
            return None, None, args[1:]
        close = difflib.get_close_matches(name, COMMANDS)
        hint = f"did you mean {' or '.join(close)}?" if close else "see 'floeplan --help'"
        raise UnknownOptionError(f"unknown command {name!r}; {hint}", context={"command": name})


def _without_types(parameters: list[Any]) -> list[Any]:
    """Show a flag without `<bool>`: it takes no value. Show an argument without `<str>`: it has a name."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.param_type_name == "argument":
            parameter.display_type_rich = _no_type
    return parameters


def _no_type(ctx: Any) -> None:
    """The type of an argument in its help."""


class ProgramCommand(TyperCommand):
    """A command that prepares the process before it runs, if the process is the `floeplan` program."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a condition that is given twice: the last one alone would count, and match other rows than both."""
        for option in self.get_params(ctx):
            if option.metavar != "EXPR" or option.multiple or ctx.resilient_parsing:
                continue
            name = option.opts[0]
            times = sum(one == name or one.startswith(f"{name}=") for one in args)
            if times > 1:
                message = f"{name} is given {times} times; join the conditions by AND"
                raise InvalidOptionError(message, context={"option": name})
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help with whole option names: Typer's table, which has no setting for it, cuts long ones."""
        from rich.table import Table  # imports rich, which commands without text output do not need
        from typer import rich_utils

        class WholeNames(Table):
            def add_row(self, *cells: Any, **settings: Any) -> None:
                super().add_row(*cells, **settings)
                for column in self.columns[:-1]:  # the last one is the help, which wraps
                    column.no_wrap = True

        rich_utils.Table = WholeNames  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        if ctx.find_root().obj.get("program"):
            _hide_pandas()
        done = _commits()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise interrupted(_commits() - done) from interrupt


def _commits() -> int:
    """Commits of this process; a command that imports nothing to commit with has none."""
    module = sys.modules.get("floeplan.transaction.catalog_commit")
    return 0 if module is None else int(module.CatalogCommit.completed)


def interrupted(commits: int | None = None) -> OperationInterruptedError:
    """The error of a program that was stopped, after some commits; by default those of this process."""
    commits = _commits() if commits is None else commits
    what = (
        f"{counted(commits, 'commit')} stay"
        if commits > 1
        else "1 commit stays"
        if commits
        else "nothing was committed"
    )
    return OperationInterruptedError(f"interrupted: {what}", committed=bool(commits))


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def _hide_pandas() -> None:
    """Let pyarrow look for pandas once, and find none.

    pyarrow imports pandas with the first array it makes, to recognise pandas objects. That takes longer than most
    commands, and no command has such objects. Others, such as Spark, can still import pandas.
    """
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        import pyarrow as pa

        pa.array([])
    finally:
        sys.meta_path.remove(hidden)


def load_command(name: str) -> Any:
    """Import a command with its parameters."""
    function = getattr(import_module(f"floeplan.cli.{COMMANDS[name][0]}"), name.replace("-", "_"))
    command = typer.Typer(add_completion=False)
    command.command(name, cls=ProgramCommand)(function)
    return typer.main.get_command(command)


app = typer.Typer(
    cls=LazyCommands,
    add_completion=True,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Plan, prune, change and rewrite Iceberg tables whose partition spec has evolved.",
)


@app.callback()
def options(
    ctx: typer.Context,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log at INFO level and show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the versions of Floeplan, PyIceberg, pyarrow and Spark.")
    ] = False,
) -> None:
    """Handle the options before the command."""
    ctx.ensure_object(dict)["verbose"] = verbose
    level = logging.INFO if verbose else logging.WARNING
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("sqlglot").setLevel(logging.NOTSET if verbose else logging.CRITICAL)  # our errors report bad SQL
    if version:
        typer.echo(versions())
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def versions() -> str:
    """The versions of Floeplan and its main dependencies, from package metadata."""
    from importlib import metadata  # imports email and zipfile, which nothing else needs

    parts = {"floeplan": "floeplan", "PyIceberg": "pyiceberg", "pyarrow": "pyarrow", "Spark": "pyspark"}
    lines = []
    for label, package in parts.items():
        try:
            lines.append(f"{label} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{label} not installed")
    return "\n".join(lines)


def main(arguments: Sequence[str], *, program: bool = False) -> int:
    """Run the command line and return the exit code; ``program`` if this process runs nothing else."""
    before_command = {"program": program}
    try:
        code = app(list(arguments), prog_name="floeplan", standalone_mode=False, obj=before_command)
        if code == OperationInterruptedError.exit_code:  # while options were parsed or modules imported
            raise interrupted()
        return code if isinstance(code, int) else 0
    except Exception as error:
        if before_command.get("verbose"):
            sys.stderr.write(redacted(traceback.format_exc()))
        return report(_failure(error), arguments)


def report(failure: FloeplanError, arguments: Sequence[str]) -> int:
    """Print a failure as one line or one JSON document; returns its exit code."""
    if "--json" in arguments:
        from floeplan.cli.common import print_json  # imports rich, which completion does not need

        print_json(failure.to_dict())
    else:
        print(f"floeplan: {one_line(failure.message)}", file=sys.stderr)  # noqa: T201
    return failure.exit_code


def _failure(error: Exception) -> FloeplanError:
    if isinstance(error, FloeplanError):
        return error
    if isinstance(error, typer.TyperException):
        message = _invalid_value(error) or error.format_message().rstrip(".")
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "floeplan"
        usage: type[BadInputError] = UnknownOptionError if message.startswith("No such") else InvalidOptionError
        return usage(f"{message[:1].lower()}{message[1:]}; see '{path} --help'", context={"command": path})
    # Unexpected: the base class is not safe_to_clean, so no file is deleted because of it.
    name = type(error).__name__
    return FloeplanError(f"{reason(error)} (-v shows the traceback)", kind="unexpected", context={"exception": name})


def _invalid_value(error: typer.TyperException) -> str | None:
    """The option, its value and what it must be, where a number was expected."""
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    parameter = getattr(error, "param", None)
    if not found or parameter is None:
        return None
    option = max(parameter.opts, key=len)
    if found[0]["type"] == "value_error":  # 'x' is not one of some names
        return f"{option}: {str(found[0]['ctx']['error']).rstrip('.')}"
    limits = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
    words, limit = limits.get(found[0]["type"], ("a whole number" if "int" in found[0]["type"] else "a number", ""))
    expected = f"{words} {found[0]['ctx'][limit]}" if limit else words
    return f"{option} is {found[0]['input']!r} but must be {expected}"


def run() -> None:
    """Run the `floeplan` program, whose entry point is ``__main__``."""
    gc.set_threshold(_GC_ALLOCATIONS, *gc.get_threshold()[1:])
    code = main(sys.argv[1:], program=True)
    gc.freeze()  # the interpreter would look for garbage once more among all that ends with the process
    sys.exit(code)
