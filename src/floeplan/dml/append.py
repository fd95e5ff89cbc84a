"""APPEND: write new rows as files of the default spec.

Columns are matched by name; rows are checked, partitioned and, where the table has a sort order, sorted within each
file. Parquet files are read and rewritten as files of the table; ``add_files`` registers them as they are instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from floeplan.dml.commit import ChangeBuilder, DmlResult, commit_changes, discard_on_failure
from floeplan.dml.sources import arrow_batches, is_data_frame, parquet_paths, parquet_tables
from floeplan.dml.target import Command, DmlTarget, resolve
from floeplan.errors import BadInputError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.parquet.source import open_source
from floeplan.tasks.runner import new_attempt, run_tasks
from floeplan.transaction.catalog_commit import CommitOptions
from floeplan.write.data_files import DataFileWriter, write_data_files
from floeplan.write.existing_files import existing_file_entries
from floeplan.write.metrics import remove_written_files
from floeplan.write.target import WriteTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append(
    table: Table | str | os.PathLike[str],
    data: object,
    *,
    spark: SparkSession | None = None,
    branch: str | None = None,
    add_files: bool = False,
    hive_partitions: bool = False,
    spec_id: int | None = None,
    fast: bool = False,
    summary: Mapping[str, str] | None = None,
    options: CommitOptions | None = None,
    catalog: str | Catalog | None = None,
) -> DmlResult:
    """Append rows.

    Args:
        table: A PyIceberg table or ``namespace.name``.
        data: Arrow data, a Spark DataFrame, or paths of Parquet files.
        spark: A session that reads Parquet files and writes; a DataFrame brings its own.
        branch: The branch to append to instead of ``main``.
        add_files: Register Parquet files in place instead of rewriting them.
        hive_partitions: With ``add_files``, trust ``name=value`` folders where statistics do not prove the partition.
        spec_id: The spec of the new files; the table's default when not given.
        fast: Do not merge small manifests.
        summary: Further properties of the snapshot.
        options: How the commit is retried.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.
    """
    target = resolve(table, Command.APPEND, branch=branch, catalog=catalog)
    changes = ChangeBuilder(merge_manifests=not fast)
    if add_files:
        paths = parquet_paths(data)
        if paths is None:
            raise BadInputError("only Parquet files can be added as they are; give their paths")
        changes.register(existing_file_entries(target.table, paths, spec_id=spec_id, hive_partitions=hive_partitions))
        return commit_changes(target, changes, summary=summary, options=options, owns_files=False)
    with discard_on_failure(changes, target):
        write_rows(target, data, changes, spark, spec_id)
        return commit_changes(target, changes, summary=summary, options=options)


def write_rows(
    target: DmlTarget, data: object, changes: ChangeBuilder, spark: SparkSession | None, spec_id: int | None = None
) -> None:
    """Write rows as files of the table, and add them to the changes."""
    writer = WriteTarget.of(target.table, spec_id=spec_id)
    if is_data_frame(data):
        from floeplan.spark.write import write_frame

        write_frame(data, writer, changes.insert)
        return
    paths = parquet_paths(data)
    if paths is None:
        with DataFileWriter(writer, file_name_token=new_attempt(), sort=True) as files:
            for rows in arrow_batches(data):
                files.write(rows)
            changes.insert(files.finish())
        return
    sizes = [open_source(path, writer.io).size for path in paths]
    discard = partial(remove_written_files, files=writer.files)
    task = partial(_write_parquet_rows, writer)
    run_tasks(task, paths, spark, weights=sizes, description="floeplan append", discard=discard, keep=changes.insert)


def _write_parquet_rows(target: WriteTarget, paths: Sequence[str], attempt: str) -> EntriesTable:
    """Write the rows of some Parquet files."""
    rows = (table for path in paths for table in parquet_tables(path, target.io))
    return write_data_files(target, rows, file_name_token=attempt, sort=True)
