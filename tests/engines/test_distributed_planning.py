"""Plans made by Spark tasks are the plans made on the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table import StaticTable

from floeplan.errors import CorruptMetadataError
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.spark.planning import SparkPlanning
from tests.support.fuzz.mutation import block_ends
from tests.support.tables.archive import write_evolved_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> StaticTable:
    return StaticTable.from_metadata(str(write_evolved_archive(tmp_path_factory.mktemp("archive"), 30, 40, 300)))


@pytest.mark.parametrize(
    "where",
    [
        None,
        "region = 'eu' AND ts >= '2021-03-01' AND ts < '2021-03-02'",
        "amount BETWEEN 500 AND 501",
        "amount != 3 AND upper(region) = 'EU'",
        "id < 0",
    ],
)
def test_same_plan_in_the_same_order(spark: SparkSession, archive: StaticTable, where: str | None) -> None:
    here = plan_scan(archive, where, options=ScanOptions(footers=False, cache=False, report=False))
    planning = SparkPlanning(spark, threshold=1, manifests_per_task=7)
    there = plan_scan(archive, where, options=ScanOptions(footers=False, cache=False, report=False, planning=planning))
    assert there.files.entries.table.equals(here.files.entries.table)
    assert [file.to_dict() for file in there.files] == [file.to_dict() for file in here.files]
    assert [(p.kept, p.total, p.proven, p.effects) for p in there.passes] == [
        (p.kept, p.total, p.proven, p.effects) for p in here.passes
    ]


def test_few_manifests_are_planned_on_the_driver(spark: SparkSession, archive: StaticTable) -> None:
    class Refusing(SparkPlanning):
        def evaluate(self, *_: object) -> None:  # type: ignore[override]
            raise AssertionError("a small plan went to Spark")

    planning = Refusing(spark, threshold=31)
    assert len(plan_scan(archive, options=ScanOptions(footers=False, report=False, planning=planning)).files) > 0


def test_a_damaged_manifest_is_the_same_error_as_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    archive = StaticTable.from_metadata(str(write_evolved_archive(tmp_path, 3, 40, 300)))
    snapshot = archive.current_snapshot()
    assert snapshot is not None
    manifest = Path(snapshot.manifests(archive.io)[1].manifest_path.removeprefix("file://"))
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: block_ends(whole)[0]])
    planning = SparkPlanning(spark, threshold=1, manifests_per_task=1)
    with pytest.raises(CorruptMetadataError, match=f"{manifest.name} is damaged at byte .*: the file ends here"):
        plan_scan(archive, options=ScanOptions(footers=False, cache=False, report=False, planning=planning))
