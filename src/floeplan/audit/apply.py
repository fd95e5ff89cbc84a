"""Doing what advice says: handing a candidate over to the command that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from floeplan.audit.advisor import Candidate
from floeplan.audit.candidates import MANIFESTS, SPEC, UPGRADE
from floeplan.maintain.rewrite_manifests import rewrite_manifests
from floeplan.partition.evolution import AddField, SpecChange, drop_all
from floeplan.rewrite.execute import rewrite_data_files
from floeplan.rewrite.options import CURRENT
from floeplan.rewrite.spec_upgrade import upgrade_spec
from floeplan.transaction.evolve_spec import evolve_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALL = {"rewrite-all": "true"}


def apply_candidate(table: Table, candidate: Candidate, spark: SparkSession | None = None) -> dict[str, Any]:
    """Apply a candidate; what the command that did it says."""
    if candidate.kind == MANIFESTS:
        return dict(rewrite_manifests(table).to_dict())
    if candidate.kind == UPGRADE:
        return dict(upgrade_spec(table, spark=spark).to_dict())
    if candidate.kind == SPEC:
        changes: tuple[SpecChange, ...] = (*drop_all(table.metadata), *(AddField(term) for term in candidate.terms))
        evolved = evolve_spec(table, changes)
        return dict(rewrite_data_files(evolved.table, spec=CURRENT, options=_ALL, spark=spark).to_dict())
    done = rewrite_data_files(table, strategy=candidate.kind, by=candidate.columns, options=_ALL, spark=spark)
    return dict(done.to_dict())
