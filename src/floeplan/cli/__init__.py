"""The command line.

- ``main``: the entry point: finds the command, runs it, reports errors and sets the exit code.
- ``common``: options, table loading and output that commands share.
- ``interrupts``: Ctrl-C and SIGTERM.
- ``completion``: what the shell offers for tables, columns and values.
- ``commands``: one module per group of commands.
- ``dry_run``: the dry run of ``delete``, ``update`` and ``merge``.
- ``row_formats``: rows as CSV, JSON lines, Arrow or Parquet.
- ``demo_command``: ``floeplan demo``. ``demo``: its chapters. ``demo_archive``: its table, and the same table as
  written by a tool that ignores partition specs.

A command is a function with the name of the command. It calls one function of the library and shows the result as JSON
(`to_dict`) or as text:

    # floeplan/cli/commands/inspect.py
    def inspect(
        table: common.TableArgument, catalog: common.CatalogOption = None, json: common.JsonOption = False
    ) -> None:
        '''Show the specs, schemas and snapshots of a table.'''
        from floeplan.catalog import load_table
        from floeplan.maintenance.inspect import inspect_table

        common.show(inspect_table(load_table(table, catalog)), render, as_json=json)

    def render(result: InspectResult) -> RenderableType:
        return f"{len(result.specs)} specs"

Add it to `COMMANDS` in `main`, with its summary (a dash there is an underscore in Python). Its module imports the
library inside functions, so that help does not wait for it. A command raises `FloeplanError` and never prints an error
or exits by itself, except `typer.Exit(1)` when the result is a failure.

No other package imports this one.
"""
