"""The sizes that decide about files: when one is too small or too large, and how many files some bytes become.

The arithmetic is Iceberg's own, so that both tools agree about which files are good and how many there will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floeplan.errors import InvalidOptionError
from floeplan.rewrite.options import RewriteOptions

DEFAULT_TARGET_BYTES = 512 * 1024**2
_TARGET_PROPERTY = "write.target-file-size-bytes"
_MIN_RATIO, _MAX_RATIO = 0.75, 1.80
_OVERHEAD = 5 * 1024


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The three sizes that decide about files, and how many files a number of bytes becomes."""

    target: int
    smallest: int
    largest: int

    @classmethod
    def of(cls, options: RewriteOptions, properties: Mapping[str, str]) -> FileSizes:
        """The sizes asked for, or those that follow from the table's target size."""
        target = options.target_file_size_bytes or int(properties.get(_TARGET_PROPERTY, DEFAULT_TARGET_BYTES))
        smallest, largest = options.min_file_size_bytes, options.max_file_size_bytes
        sizes = cls(
            target,
            int(target * _MIN_RATIO) if smallest is None else smallest,
            int(target * _MAX_RATIO) if largest is None else largest,
        )
        sizes._check()
        return sizes

    def _check(self) -> None:
        if self.target <= self.smallest:
            raise InvalidOptionError(
                f"'target-file-size-bytes' ({self.target}) must be > 'min-file-size-bytes' ({self.smallest}): "
                "all new files would be too small"
            )
        if self.target >= self.largest:
            raise InvalidOptionError(
                f"'target-file-size-bytes' ({self.target}) must be < 'max-file-size-bytes' ({self.largest}): "
                "all new files would be too large"
            )

    @property
    def write_max(self) -> int:
        """Where a file is closed while it is written: half way between the target and the largest size."""
        return int(self.target + (self.largest - self.target) * 0.5)

    def expected_outputs(self, input_bytes: int) -> int:
        """How many files so many bytes become: a remainder is a file of its own only if it would be a good one."""
        if input_bytes < self.target:
            return 1
        fewer, rest = divmod(input_bytes, self.target)
        if rest > self.smallest:
            return fewer + 1
        if input_bytes // fewer < min(1.1 * self.target, self.write_max):
            return fewer
        return -(-input_bytes // self.target)

    def split_size(self, input_bytes: int) -> int:
        """The size that cuts so many bytes into the expected number of files, with 5 KiB to spare for each."""
        estimate = input_bytes // self.expected_outputs(input_bytes) + _OVERHEAD
        return self.target if estimate < self.target else min(estimate, self.write_max)
