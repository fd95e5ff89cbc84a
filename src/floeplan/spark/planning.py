"""Distributed planning: Spark tasks decode and evaluate manifests.

Above a number of manifests the manifest list is split into slices. A task reads the manifests of its slice, evaluates
their entries and returns the kept ones as columns. Results are sorted by slice number, so the plan is the same, in the
same order, as one made on the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO

from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable
from floeplan.metadata.manifests.reader import read_entries
from floeplan.snapshot.effects import Predicate
from floeplan.snapshot.passes import EvaluatedFiles, concat_evaluated, evaluate_files
from floeplan.tasks.shipping import ensure_package
from floeplan.tasks.worker import report_errors, reraise_task_errors, reusable
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFESTS_PER_TASK = 250
"""A Python task costs about as much as decoding this many manifests; smaller tasks do not pay off."""

_RESULT = "slice long, files binary"


@dataclass(frozen=True, slots=True)
class SparkPlanning:
    """Evaluates manifests with Spark tasks; set it as ``ScanOptions.planning``.

    Attributes:
        spark: A session, classic or Connect.
        threshold: The number of manifests from which on Spark evaluates them.
        manifests_per_task: The number of manifests that a task decodes.
    """

    spark: SparkSession
    threshold: int = 2000
    manifests_per_task: int = MANIFESTS_PER_TASK

    def evaluate(
        self, predicate: Predicate, manifests: ManifestListTable, rows: Ints, columns: EntryColumns, io: FileIO
    ) -> EvaluatedFiles:
        """Evaluate the entries of the given manifests."""
        slices = np.array_split(rows, max(1, -(-len(rows) // self.manifests_per_task)))
        parts = [(manifests.take(part), part) for part in slices]

        def evaluate_part(number: int) -> bytes:
            listed, numbers = parts[number]
            entries = read_entries(listed, predicate.union, columns, io=io)
            # Entries count the manifests of the whole list, not those of the slice.
            position = entries.table.schema.get_field_index("manifest")
            counted = pa.array(numbers[entries.ints("manifest")]).cast(entries.table.schema.field(position).type)
            table = entries.table.set_column(position, "manifest", counted)
            return pickle.dumps(evaluate_files(predicate, EntriesTable(table, entries.partition_types)))

        @reusable
        @report_errors
        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                numbers = batch.column(0).to_pylist()
                answers = [evaluate_part(number) for number in numbers]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(numbers, pa.int64()), pa.array(answers, pa.binary())], names=["slice", "files"]
                )

        ensure_package(self.spark)
        frame = self.spark.range(0, len(slices), 1, len(slices)).mapInArrow(run, _RESULT)
        with reraise_task_errors():
            answers = frame.toArrow().sort_by("slice").column("files")
        return concat_evaluated([pickle.loads(answer.as_buffer()) for answer in answers])
