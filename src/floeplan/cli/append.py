"""`floeplan append`: the rows of Parquet files become rows of a table, or the files become files of it."""

from __future__ import annotations

from typing import Annotated

import typer

from floeplan.cli.changes import (
    BranchOption,
    ChangedTableArgument,
    SparkOption,
    draw_result,
    sign_of_life,
    spark_for,
    writable_table,
)
from floeplan.cli.common import CatalogOption, JsonOption, show
from floeplan.dml.append import append as append_rows

FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE…", help="Parquet files, or folders of them.")]
AddFilesOption = Annotated[
    bool, typer.Option("--add-files", help="Register the files where they are instead of writing their rows again.")
]
SpecOption = Annotated[
    int | None, typer.Option("--spec", metavar="ID", help="The spec of the new files; the default spec if not given.")
]


def append(
    table: ChangedTableArgument,
    files: FilesArgument,
    add_files: AddFilesOption = False,
    spec: SpecOption = None,
    branch: BranchOption = None,
    spark: SparkOption = None,
    catalog: CatalogOption = None,
    json: JsonOption = False,
) -> None:
    """Append Parquet files.

    floeplan append db.events new/*.parquet
    """
    target = writable_table(table, catalog)
    with sign_of_life("appending"):
        session = spark_for(spark).session
        result = append_rows(target, files, spark=session, branch=branch, add_files=add_files, spec_id=spec)
    show(result, draw_result, as_json=json)
