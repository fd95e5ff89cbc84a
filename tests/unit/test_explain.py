"""What a plan says of itself: the pyramid, the part of each conjunct, and one line of advice per way pruning fails."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from floeplan.scan.explain import advice
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import ScanPlan, plan_scan
from tests.support.tables.archive import FileEntry, MetadataWriter

pytestmark = pytest.mark.unit

SCHEMA = Schema(
    NestedField(1, "mission", StringType()),
    NestedField(2, "payload", LongType()),
    NestedField(3, "voltage", DoubleType()),
    NestedField(4, "note", StringType()),
    schema_id=0,
)
SPECS = (
    PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "mission"), spec_id=0),
    PartitionSpec(PartitionField(2, 1001, BucketTransform(16), "payload_bucket"), spec_id=1),
)
MISSIONS = 20


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> StaticTable:
    """Twenty missions of one file each, half of them filed by mission and half by bucket; `note` has no statistics."""
    root = tmp_path_factory.mktemp("explain") / "telemetry"
    writer = MetadataWriter(root, SCHEMA, SPECS)
    for number in range(MISSIONS):
        mission = f"m{number:02d}"
        spec_id = number * 2 // MISSIONS
        entry = FileEntry(
            path=f"{mission}.parquet",
            partition=(mission,) if spec_id == 0 else (number % 16,),
            record_count=1000,
            file_size=1_000_000,
            bounds={
                1: (mission.encode(), mission.encode()),
                2: (struct.pack("<q", number), struct.pack("<q", 10_000 + number)),
                3: (struct.pack("<d", 20.0), struct.pack("<d", 32.0)),
            },
        )
        writer.add_manifest(spec_id, [entry])
    return StaticTable.from_metadata(str(writer.finish()))


def plan(table: StaticTable, where: str | None = None) -> ScanPlan:
    return plan_scan(table, where, options=ScanOptions(footers=False, report=False))


GOLDEN = """\
where mission = 'm03' AND voltage > 25.0

 manifests      20  ██████████████████████░░░░░░░░░░░░░░░░░░         11  55 %
 files          20  ██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░          1   5 %
 rows       20,000  ██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░      1,000   5 %
 bytes                                                        976.6 KiB


 spec   partitioned by        manifests   files       bytes   predicate on partition fields
 ──────────────────────────────────────────────────────────────────────────────────────────────
    0   mission                    1/10    1/10   976.6 KiB   mission = 'm03': exact on mission
    1   bucket[16](payload)       10/10    0/10         0 B



 dropped by each conjunct alone   of 20 manifests   of 11 files   why no more are dropped
 ─────────────────────────────────────────────────────────────────────────────────────────────────
 mission = 'm03'                                9            10
 voltage > 25.0                                 –             –   values are spread over all files

→ voltage > 25.0: values are spread over all files; cluster the files by this column: rewrite with sort or zorder
"""


def test_small_table_is_explained_word_for_word(table: StaticTable) -> None:
    title, _, text = plan(table, "mission = 'm03' AND voltage > 25").explain().partition("\n")
    assert title == f"{table.metadata_location}  snapshot 1000020"
    assert text == GOLDEN


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("payload > 500", "range over bucket"),
        ("note = 'x'", "no statistics"),
        ("mission <> 'm03'", "!= excludes almost nothing"),
        ("mission NOT IN ('m03')", "!= excludes almost nothing"),
        ("mission = 'm03' OR voltage > 30", "one side of OR matches everywhere"),
        ("mission = 'm03' OR upper(note) = 'X'", "one side of OR matches everywhere"),
        ("upper(mission) = 'M03'", "only rows can answer it"),
        ("voltage > 30", "values are spread over all files"),
    ],
)
def test_every_way_pruning_fails_has_its_line(table: StaticTable, where: str, why: str) -> None:
    planned = plan(table, f"{where} AND mission < 'z'")
    (line, *others) = [line for line in advice(planned) if not line.startswith(("mission < ", "no manifest"))]
    assert not others
    assert f": {why}; " in line
    assert f"\n→ {line}\n" in planned.explain()


@pytest.mark.parametrize("where", ["mission = 'm03'", "mission = 'm03' OR mission = 'm04'", "payload < 0", None])
def test_scan_that_prunes_well_gets_no_advice(table: StaticTable, where: str | None) -> None:
    assert advice(plan(table, where)) == ()


def test_equality_over_a_bucket_is_not_blamed_on_it(table: StaticTable) -> None:
    assert all("range over bucket" not in line for line in advice(plan(table, "payload = 500")))


def test_manifests_that_never_prune_are_advised_on(tmp_path: Path) -> None:
    writer = MetadataWriter(tmp_path / "mixed", SCHEMA, SPECS[:1])
    for number in range(10):
        entries = [FileEntry(f"{number}-{m}.parquet", (m,), 10, 100, {1: (m.encode(), m.encode())}) for m in "abcdef"]
        writer.add_manifest(0, entries)
    planned = plan(StaticTable.from_metadata(str(writer.finish())), "mission = 'c'")
    assert planned.summary.manifests_kept == planned.summary.manifests_total == 10
    (line,) = advice(planned)
    assert "rewrite-manifests" in line


def test_notes_say_how_each_spec_took_the_predicate(table: StaticTable) -> None:
    specs = {spec.spec_id: spec.notes for spec in plan(table, "mission = 'm03' AND payload > 3").specs}
    assert [(note.predicate, note.field, note.how) for note in specs[0]] == [
        ("mission = 'm03'", "mission", "exact"),
        ("payload > 3", None, "cannot"),
    ]
    assert [(note.field, note.how) for note in specs[1]] == [(None, "cannot"), ("payload_bucket", "cannot")]
    text = plan(table, "mission = 'm03' AND payload > 3").explain()
    assert "mission = 'm03': exact on mission" in text
    assert "payload > 3: not evaluable on payload_bucket" in text


def test_text_has_no_escape_codes_and_no_trailing_blanks(table: StaticTable) -> None:
    text = plan(table, "mission = 'm03'").explain()
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
