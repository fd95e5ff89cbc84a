"""The audit's part of the explorer; Spark is started only when it is asked for."""

from __future__ import annotations

from typing import Any

from floeplan.audit.places import are_files
from floeplan.catalog import load_table

LOCAL_SPARK = "local[*]"


def check_reports(reports: str, catalog: str | None) -> None:
    """Whether there are reports, without starting Spark.

    Raises:
        BadInputError: There are none at that place.
    """
    if not are_files(reports):
        load_table(reports, catalog)


def audit_reports(reports: str, spark_url: str | None, catalog: str | None) -> dict[str, Any]:
    """The document of an audit of scan reports."""
    from floeplan.audit.job import audit
    from floeplan.spark.session import open_session

    check_reports(reports, catalog)
    return audit(open_session(spark_url or LOCAL_SPARK), reports, catalog=catalog).to_dict()
