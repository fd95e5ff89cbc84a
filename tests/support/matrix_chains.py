"""The histories of the peer matrix: what each table went through, told to a ``Builder``.

A chain says where its rows are changed (``change_rows``): once files of several specs are there. Where Iceberg 1.12
refuses a step, the chain goes round it and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.matrix_rows import COLUMNS

if TYPE_CHECKING:
    from tests.support.matrix import Builder


def evolving(table: Builder) -> None:
    """Unpartitioned → identity → day and bucket → month → month under another name; late data into an old spec."""
    table.create()
    table.write(0)
    table.alter("ADD PARTITION FIELD region")
    table.write(1)
    table.alter(
        "REPLACE PARTITION FIELD region WITH days(ts) AS ts_day", "ADD PARTITION FIELD bucket(8, id) AS id_bucket"
    )
    table.write(2)
    table.alter("REPLACE PARTITION FIELD ts_day WITH months(ts) AS ts_month", "DROP PARTITION FIELD id_bucket")
    table.write(3)
    table.alter("REPLACE PARTITION FIELD ts_month WITH months(ts) AS when_month")
    table.write(4)
    table.write(5, spec_id=1)
    table.change_rows()


def voids(table: Builder) -> None:
    """Fields come, go and come back: format 1 leaves voids, even a spec of nothing else, others return to spec 0."""
    table.create()
    table.write(0)
    table.alter("ADD PARTITION FIELD region")
    table.write(1)
    table.alter("ADD PARTITION FIELD bucket(4, id) AS id_bucket")
    table.write(2)
    table.alter("DROP PARTITION FIELD region")
    table.write(3)
    table.alter("DROP PARTITION FIELD id_bucket")
    table.write(4)
    table.alter("ADD PARTITION FIELD region")
    table.write(5)
    table.alter("DROP PARTITION FIELD region")
    table.change_rows()


def dropped_sources(table: Builder) -> None:
    """Source columns dropped, re-added under the same name with another id, renamed and promoted.

    Rows are deleted before the columns go: with the identity source of an old spec gone, Spark's merge-on-read commands
    fail ("Cannot find field 1000: region: optional unknown"). In format 1 a dropped field stays as a void on a column
    that is no more, and Iceberg 1.12 cannot write to such a spec ("Cannot build accessor for field"): there the later
    batches go to the unpartitioned spec 0.
    """
    late = 0 if table.version == 1 else None
    table.create(COLUMNS | {"id": "INT"})
    table.fill(id="try_cast(id AS INT)")
    table.write(0)
    table.alter("ADD PARTITION FIELD region", "ADD PARTITION FIELD truncate(2, s) AS s_prefix")
    table.write(1)
    table.alter(
        "DROP PARTITION FIELD region", "DROP PARTITION FIELD s_prefix", "ADD PARTITION FIELD bucket(4, id) AS id_bucket"
    )
    table.alter("ADD PARTITION FIELD n")
    table.fill(n="pmod(n, 3) - 1")
    table.write(2)
    table.change_rows()
    table.alter("DROP COLUMN region", "ADD COLUMN region STRING", "RENAME COLUMN ts TO happened")
    table.alter("ALTER COLUMN id TYPE BIGINT", "ALTER COLUMN n TYPE BIGINT", "ALTER COLUMN f TYPE DOUBLE")
    table.alter("ALTER COLUMN d TYPE DECIMAL(12,2)")
    table.fill(id="id", happened="ts")
    table.write(3, spec_id=late)
    table.alter("ADD PARTITION FIELD region AS new_region", "ADD PARTITION FIELD days(happened) AS happened_day")
    table.alter("DROP PARTITION FIELD id_bucket", "DROP PARTITION FIELD n")
    table.fill(n="n")
    table.write(4, spec_id=late)
    table.alter("RENAME COLUMN happened TO at", "DROP COLUMN s")
    table.alter("RENAME COLUMN nested.a TO c", "DROP COLUMN nested.b", "ADD COLUMN nested.b STRING")
    table.fill(at="ts", nested="CASE WHEN nested IS NOT NULL THEN named_struct('c', nested.a, 'b', nested.b) END")
    table.write(5, spec_id=late)


def truncations(table: Builder) -> None:
    """Truncate over every type, the calendar transforms, identity over floats, and two fields on one source."""
    table.create()
    table.alter("ADD PARTITION FIELD truncate(2, s) AS s_prefix")
    table.write(0)
    table.alter("REPLACE PARTITION FIELD s_prefix WITH truncate(10, n) AS n_tens")
    table.alter("ADD PARTITION FIELD truncate(500, d) AS d_fives")
    table.write(1)
    table.alter("REPLACE PARTITION FIELD n_tens WITH hours(ts) AS ts_hour", "DROP PARTITION FIELD d_fives")
    table.write(2)
    table.alter(
        "REPLACE PARTITION FIELD ts_hour WITH years(ts_ntz) AS local_year",
        "ADD PARTITION FIELD months(day) AS day_month",
    )
    table.write(3)
    table.alter(
        "REPLACE PARTITION FIELD local_year WITH v",
        "REPLACE PARTITION FIELD day_month WITH truncate(1, bin) AS bin_head",
    )
    table.write(4)
    table.alter("REPLACE PARTITION FIELD v WITH f", "REPLACE PARTITION FIELD bin_head WITH flag")
    table.write(5)
    table.alter(
        "REPLACE PARTITION FIELD f WITH truncate(10, id) AS id_tens",
        "REPLACE PARTITION FIELD flag WITH bucket(4, id) AS id_bucket",
    )
    table.write(6)
    table.change_rows()


def imported(table: Builder) -> None:
    """Files of a Hive-style folder taken in as they are: no field ids, INT96 times, no column for the partition."""
    table.create()
    table.alter("ADD PARTITION FIELD region")
    table.add_files(1, partitioned_by="region")
    table.alter("REPLACE PARTITION FIELD region WITH bucket(4, id) AS id_bucket")
    table.write(2)
    table.change_rows()
    table.alter("RENAME COLUMN region TO area", "DROP PARTITION FIELD id_bucket", "ADD PARTITION FIELD area")
    table.fill(area="region")
    table.write(3)


def defaults(table: Builder) -> None:
    """Columns added with an initial default, which old files do not hold; one of them becomes a partition source."""
    table.create()
    table.write(0)
    table.add_columns(extra=5, label="old")
    table.alter("ADD PARTITION FIELD extra")
    table.fill(extra="CAST(pk % 3 AS INT) + 4", label="IF(pk % 2 = 0, 'new', NULL)")
    table.write(1)
    table.alter("REPLACE PARTITION FIELD extra WITH truncate(1, label) AS label_head")
    table.write(2)
    table.change_rows()


def gaps(table: Builder) -> None:
    """Spec ids with gaps and not starting at 0: specs and schemas nothing refers to are cleaned from the metadata."""
    table.create()
    table.alter("ADD PARTITION FIELD region", "ADD PARTITION FIELD bucket(4, id) AS id_bucket")
    table.write(0)
    table.alter("ADD COLUMN extra INT", "DROP PARTITION FIELD region", "DROP COLUMN extra")
    table.alter("REPLACE PARTITION FIELD id_bucket WITH days(ts) AS ts_day")
    table.write(1)
    table.expire_and_clean()
