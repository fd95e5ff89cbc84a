"""The command line: `main` runs it, `common` is what commands share, and each command has a module of its own.

A command is a function named like its module, whose result knows its JSON and whose text is drawn only when asked for:

    # floeplan/cli/inspect.py
    def inspect(table: TableArgument, catalog: CatalogOption = None, json: JsonOption = False) -> None:
        '''Show the specs, schemas and snapshots of a table.'''
        show(inspect_table(load_table(table, catalog)), render, as_json=json)

    def render(result: InspectResult) -> RenderableType:
        return f"{len(result.specs)} specs"

Its name goes into `COMMANDS` in `main` (dashes there are underscores in Python). A command raises `FloeplanError` and
never prints an error or exits by itself, except `typer.Exit(1)` for a result that is bad news.
"""
