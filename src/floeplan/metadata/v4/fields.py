"""Every field id, number and name of the metadata tree, as Iceberg 1.12.0 has them: the profile ``v4-draft-1.12.0``.

The tree is a draft, and ids still move. A change of the draft is a change of this module and of ``PROFILE``.
"""

from __future__ import annotations

from enum import IntEnum

PROFILE = "v4-draft-1.12.0"
FORMAT_VERSION = 4
OLDER_FORMAT = 0
"""The ``format_version`` of a reference to a manifest of format 1 to 3."""

PROFILE_KEY, TABLE_KEY, SNAPSHOT_KEY = "floeplan.v4-profile", "floeplan.table-uuid", "floeplan.snapshot-id"
"""Keys in the footer of a root: the profile, and the table and snapshot it belongs to. Other readers ignore them."""


class EntryStatus(IntEnum):
    """The status of a tracked file; DELETED and REPLACED rows are not live."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2
    REPLACED = 3
    MODIFIED = 4


class ContentType(IntEnum):
    """What a tracked file is."""

    DATA = 0
    EQUALITY_DELETES = 2
    DATA_MANIFEST = 3
    DELETE_MANIFEST = 4


# Columns of a tracked file.
TRACKING = 147
CONTENT_TYPE = 134
FILE_FORMAT_VERSION = 157
LOCATION = 100
FILE_FORMAT = 101
RECORD_COUNT = 103
FILE_SIZE = 104
SPEC_ID = 141
PARTITION = 102
CONTENT_STATS = 146
SORT_ORDER_ID = 140
DELETION_VECTOR = 148
MANIFEST_INFO = 150
KEY_METADATA = 131
SPLIT_OFFSETS, SPLIT_OFFSET = 132, 133
EQUALITY_IDS, EQUALITY_ID = 135, 136
COLUMN_FILES = 158
"""In the draft, but not in 1.12.0: columns that newer files replace. A row that has it cannot be read."""

# tracking
STATUS = 0
SNAPSHOT_ID = 1
SEQUENCE_NUMBER = 3
FILE_SEQUENCE_NUMBER = 4
DV_SNAPSHOT_ID = 5
FIRST_ROW_ID = 142
DELETED_POSITIONS = 6
REPLACED_POSITIONS = 7

# deletion_vector
DV_LOCATION = 155
DV_OFFSET = 144
DV_SIZE = 145
DV_CARDINALITY = 156
DV_KEY_METADATA = 149

# manifest_info
FILE_COUNTS = {"added": 504, "existing": 505, "deleted": 506, "replaced": 520}
ROW_COUNTS = {"added": 512, "existing": 513, "deleted": 514, "replaced": 521}
MIN_SEQUENCE_NUMBER = 516
MANIFEST_DV = 522

# content_stats: a struct per column, whose metrics have the id of the struct plus an offset.
LOWER, UPPER, TIGHT, VALUES, NULLS, NANS, AVERAGE_SIZE = range(1, 8)
GEO_LOWER, GEO_UPPER = 10, 14
"""The first of the four coordinates (x, y, z, m) of geospatial bounds."""

_FIRST_STATS, _STATS_STEP, _MOST_FIELD_ID = 10_000, 200, 999_950
_ROW_LINEAGE = {2_147_483_539: 9_000, 2_147_483_540: 9_200}
"""``_last_updated_sequence_number`` and ``_row_id``."""


def stats_id(field_id: int) -> int | None:
    """The id of the statistics of a column; ``None`` if a column of this id can have none."""
    if 0 <= field_id < _MOST_FIELD_ID:
        return _FIRST_STATS + _STATS_STEP * field_id
    return _ROW_LINEAGE.get(field_id)
