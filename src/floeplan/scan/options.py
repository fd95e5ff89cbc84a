"""How a scan is planned."""

from __future__ import annotations

from dataclasses import dataclass

from floeplan.errors import InvalidOptionError

DEFAULT_CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What planning may use. None of it changes which rows a scan returns."""

    footers: bool = True
    """Open the footers of files that are kept but not proven, and prune their row groups."""
    page_index: bool = False
    """Prune within row groups by page statistics; one more request per file."""
    bloom_filter: bool = False
    """Prune row groups by bloom filters; one more request per file."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Requests in flight against the store."""
    cache: bool = True
    """Keep decoded manifests on local disk; manifests never change."""
    recover: bool = False
    """Count the files of other specs whose partition under the default spec is provable from their bounds."""
    report: bool = True
    """Append a scan report to the report store."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidOptionError(f"concurrency is {self.concurrency} but must be at least 1")
