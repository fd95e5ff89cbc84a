"""The entry point: runs a command and reports a failure as one line or one JSON document, with an exit code.

    0  done      1  failed      2  bad input      3  commit conflict      4  strict mode refused      130  interrupted

The module of a command is imported when the command is run, so that no command pays for the imports of another.
"""

from __future__ import annotations

import difflib
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from floeplan.cli.common import print_json
from floeplan.errors import BadInputError, FloeplanError, InvalidOptionError, UnknownOptionError
from floeplan.text import one_line, reason, redacted

COMMANDS: dict[str, str] = {
    "plan": "commands.plan",
    "scan": "commands.plan",
    "entries": "commands.inspect",
    "inspect": "commands.inspect",
    "prune": "commands.prune",
    "append": "commands.dml",
    "delete": "commands.dml",
    "update": "commands.dml",
    "merge": "commands.dml",
    "sql": "commands.dml",
    "rewrite": "commands.rewrite",
    "audit": "commands.audit",
    "advise": "commands.audit",
    "upgrade-spec": "commands.rewrite",
    "rewrite-manifests": "commands.maintenance",
    "expire": "commands.maintenance",
    "remove-orphans": "commands.maintenance",
    "doctor": "commands.maintenance",
    "report": "commands.explorer",
    "serve": "commands.explorer",
    "demo": "demo",
}
"""Commands in the order of `--help`, each with its module in `floeplan.cli`; `a-b` is the function `a_b`."""


class _Redacting(logging.Formatter):
    """Masks secrets in log lines, including those of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class LazyCommands(TyperGroup):
    """Imports the module of a command when the command is looked up."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:  # shell completion
                return None
            close = difflib.get_close_matches(cmd_name, COMMANDS)
            hint = f"did you mean {' or '.join(close)}?" if close else "see 'floeplan --help'"
            raise UnknownOptionError(f"unknown command {cmd_name!r}; {hint}", context={"command": cmd_name})
        python_name = cmd_name.replace("-", "_")
        function = getattr(import_module(f"floeplan.cli.{COMMANDS[cmd_name]}"), python_name)
        command = typer.Typer(add_completion=False)
        command.command(cmd_name)(function)
        return typer.main.get_command(command)


app = typer.Typer(
    cls=LazyCommands,
    add_completion=True,
    invoke_without_command=True,
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
    parts = {"floeplan": "floeplan", "PyIceberg": "pyiceberg", "pyarrow": "pyarrow", "Spark": "pyspark"}
    lines = []
    for label, package in parts.items():
        try:
            lines.append(f"{label} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{label} not installed")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    before_command: dict[str, bool] = {}
    try:
        code = app(list(arguments), prog_name="floeplan", standalone_mode=False, obj=before_command)
        return code if isinstance(code, int) else 0
    except Exception as error:
        if before_command.get("verbose"):
            sys.stderr.write(redacted(traceback.format_exc()))
        failure = _failure(error)
        if "--json" in arguments:
            print_json(failure.to_dict())
        else:
            print(f"floeplan: {one_line(failure.message)}", file=sys.stderr)  # noqa: T201
        return failure.exit_code


def _failure(error: Exception) -> FloeplanError:
    if isinstance(error, FloeplanError):
        return error
    if isinstance(error, typer.TyperException):
        message = error.format_message().rstrip(".")
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "floeplan"
        usage: type[BadInputError] = UnknownOptionError if message.startswith("No such") else InvalidOptionError
        return usage(f"{message[:1].lower()}{message[1:]}; see '{path} --help'", context={"command": path})
    # Unexpected: the base class is not safe_to_clean, so no file is deleted because of it.
    name = type(error).__name__
    return FloeplanError(f"{reason(error)} (-v shows the traceback)", kind="unexpected", context={"exception": name})


def run() -> None:
    """Run the `floeplan` program."""
    sys.exit(main(sys.argv[1:]))
