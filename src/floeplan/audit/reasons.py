"""Why a query reads more than it should, and the one line that says what to do about it.

The first reasons are those a plan gives its conjuncts; the others come from the numbers of a report.
"""

from __future__ import annotations

from floeplan.scan.advice import CURES

OLD_SPEC = "old-spec files"
DELETES = "delete files"
MANIFESTS = "many small manifests"
NO_FILTER = "no filter"
NO_PARTITION = "no partition column is asked"

ADVICE = CURES | {
    OLD_SPEC: "most bytes are in files of older specs: upgrade-spec, or rewrite with --spec current",
    DELETES: "delete files are merged at every read: rewrite the files they belong to",
    MANIFESTS: "planning opens many manifests for few files: rewrite-manifests",
    NO_FILTER: "the whole table is read: ask for a range of a partition column",
    NO_PARTITION: "ask for a partition column too, or see what advise says about partitioning by this one",
}
"""Advice by reason; when a query has several that are equally frequent, the first here is named."""

REASONS = tuple(ADVICE)
