"""Which tables are planned by the server: a mode per table, sent in LoadTable and in ``/v1/config``.

Rule: ``client`` for every table, unless a pattern of the command line or a table property selects ``server``.

1. The switch (``--plan-nothing``, or the file of ``--switch-file``) sends ``client`` for all tables.
2. The table property ``floeplan.scan-planning-mode`` decides for its table: ``client`` for tables that are read by
   Spark streaming, which cannot use server-side planning, ``server`` to switch one table on.
3. Otherwise the patterns decide.
4. Format 3 also needs ``--plan-format-3``: clients write row lineage wrong from server-side plans (iceberg#17319),
   because a plan carries no sequence numbers. Formats that this version does not know are never planned here.
5. A table with identity partitions of a float or double needs the table property: NaN and infinity have no form in
   JSON that Iceberg's Java client parses, and it reads the column from the partition value.

Fail-safe: the mode is advice for clients that load the table now. A client that loaded it earlier still gets its plans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

CLIENT, SERVER = "client", "server"
MODE_KEY = "scan-planning-mode"
TABLE_PROPERTY = "floeplan.scan-planning-mode"
LINEAGE_REASON = "row lineage is written wrong by clients of server-side planning (iceberg#17319)"


@dataclass(frozen=True, slots=True)
class PlanningPolicy:
    """Patterns of table names (``namespace.table`` with ``*``) and the switch.

    Attributes:
        plan: Tables of formats 1 and 2 to plan on the server.
        plan_format_3: Tables of format 3 to plan on the server.
        nothing: Send ``client`` for all tables.
        switch_file: While this file exists, send ``client`` for all tables.
    """

    plan: tuple[str, ...] = ()
    plan_format_3: tuple[str, ...] = ()
    nothing: bool = False
    switch_file: Path | None = None

    @property
    def is_off(self) -> bool:
        """Whether the switch sends ``client`` for all tables."""
        return self.nothing or (self.switch_file is not None and self.switch_file.exists())

    @property
    def catalog_mode(self) -> str:
        """The mode of the catalog, for clients that read no mode per table (PyIceberg 0.12)."""
        return SERVER if (self.plan or self.plan_format_3) and not self.is_off else CLIENT

    def table_mode(
        self, name: str, format_version: int, properties: Mapping[str, str], *, float_partitions: bool = False
    ) -> str:
        """The mode of one table."""
        chosen = str(properties.get(TABLE_PROPERTY, "")).lower()
        if self.is_off or chosen == CLIENT:
            return CLIENT
        if format_version == 3:
            sendable = chosen == SERVER or not float_partitions
            return SERVER if sendable and _matches(name, self.plan_format_3) else CLIENT
        if format_version not in (1, 2) or (float_partitions and chosen != SERVER):
            return CLIENT
        return SERVER if chosen == SERVER or _matches(name, self.plan) else CLIENT

    def fingerprint(self) -> str:
        """Changes whenever the mode of an unchanged table may change; part of ETags."""
        state = repr((self.plan, self.plan_format_3, self.is_off))
        return hashlib.sha256(state.encode()).hexdigest()[:8]


def has_float_partitions(metadata: Mapping[str, Any]) -> bool:
    """Whether a partition spec of a metadata document has the identity of a float or double column."""
    # Format 1 may have a single schema and a single spec, which is a list of fields.
    specs = metadata.get("partition-specs") or [{"fields": metadata.get("partition-spec") or ()}]
    fields = [field for spec in specs for field in spec.get("fields") or ()]
    sources = {field.get("source-id") for field in fields if field.get("transform") == "identity"}
    types = [metadata.get("schemas") or metadata.get("schema")] if sources else []
    while types:
        match types.pop():
            case list(several):
                types += several
            case {"id": int(field_id), "type": "float" | "double"} if field_id in sources:
                return True
            case {"type": dict(nested)}:
                types.append(nested)
            case {"fields": list(nested)}:
                types += nested
    return False


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
