"""What a rewrite strategy is: ``Strategy``, and ``RowOrder``, the order it gives to the rows of a group.

A group that fits into memory is sorted by one permutation of its rows. A larger one spills to disk in *ranges*
(``rewrite.run.sorting``): ``RowOrder.ranges`` chooses them from a sample; rows are assigned to them, each is sorted.
On a cluster several tasks sort a group, a range each (``rewrite.run.ranges``): ``Cuts`` divides it.

Rule: on disk, rows with equal keys are in the same range, so ranges one after the other are sorted. A key that very
many rows share gets a range of its own with an odd number: its rows need no sorting and are streamed. ``Cuts`` divides
such rows by their number, so that tasks share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import UnknownType

from floeplan.errors import InvalidOptionError
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import columns_of, decoded
from floeplan.schemas import fields_by_id
from floeplan.vectors import Floats, Ints
from floeplan.write.partitioning import RowNumbers, leading_words, sort_row_numbers, sort_rows

AD_HOC_ORDER_ID = -1
"""The id of a sort order that the table does not have: files sorted by it must not state a ``sort_order_id``."""

_POSITION = "floeplan.position"


class ByColumns(Enum):
    """Whether a strategy takes columns (``--by``)."""

    NOT_ALLOWED = "not allowed"
    OPTIONAL = "optional"
    REQUIRED = "required"


class RowRanges(Protocol):
    """Consecutive ranges of an order, each small enough to sort in memory."""

    def assign(self, rows: pa.Table) -> tuple[pa.Table, Ints]:
        """Return the rows, with any helper columns, and the range number of each; keys of odd ranges are all equal."""

    def sorted(self, rows: pa.Table) -> pa.Table:
        """Sort the rows of one range and drop the helper columns."""

    def plain(self, rows: pa.Table) -> pa.Table:
        """Drop the helper columns."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Orders rows by an Iceberg sort order; a subclass may order them by something else, such as a curve."""

    schema: Schema
    order: SortOrder

    @property
    def key_schema(self) -> Schema:
        """The top-level columns that the order reads."""
        sources = {field.source_id for field in self.order.fields}
        return Schema(*(top for top in self.schema.fields if not sources.isdisjoint(fields_by_id(Schema(top)))))

    def keys(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """The values of each key column."""
        column = columns_of(rows, self.schema)
        return [decoded(column(field.source_id)) for field in self.order.fields]

    def permutation(self, rows: pa.Table) -> RowNumbers:
        """The row numbers in sorted order; ``rows`` needs the columns of ``key_schema`` only."""
        return sort_row_numbers(rows, self.schema, self.order)

    def fitted(self, sample: pa.Table, total_rows: int) -> RowOrder:
        """The same order for rows that are compared in several tasks; ``sample`` has some keys of ``total_rows``."""
        return self

    def exact_permutation(self, rows: pa.Table) -> npt.NDArray[np.integer[Any]]:
        """As ``permutation``, stable, and the same for two rows in whichever tables they are compared."""
        return self.permutation(rows)

    def leading_words(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        """An integer for each row: of two that differ, ``exact_permutation`` puts the smaller first."""
        return leading_words(rows, self.schema, self.order)

    def ranges(self, sample: pa.Table, count: int, total_rows: int) -> RowRanges:
        """Choose about ``count`` ranges of equal size from a sample of the key columns of ``total_rows`` rows."""
        ordered = sort_rows(sample, self.schema, self.order)
        cuts = np.linspace(0, ordered.num_rows, count, endpoint=False).astype(np.int64)[1:]
        return _SortedRanges(self, ordered.take(pa.array(np.unique(cuts))).combine_chunks())


@dataclass(frozen=True, slots=True)
class _SortedRanges:
    """Ranges between sampled rows; ``firsts`` holds the first row of every range but the first."""

    order: RowOrder
    firsts: pa.Table

    def assign(self, rows: pa.Table) -> tuple[pa.Table, Ints]:
        # Sort the rows together with two copies of the range starts. The sort is stable, so for rows equal to a start
        # one copy sorts before them and the other after them: where the two counts differ, the key is the start itself.
        firsts = self.firsts.num_rows
        keys = rows.select(self.firsts.schema.names).cast(self.firsts.schema)
        all_keys = pa.concat_tables([self.firsts, keys, self.firsts])
        all_keys = all_keys.append_column(_POSITION, pa.array(np.arange(all_keys.num_rows)))
        position = np.asarray(sort_rows(all_keys, self.order.schema, self.order.order).column(_POSITION))
        range_of = np.empty(len(position), dtype=np.int64)
        range_of[position] = range_numbers(np.cumsum(position >= firsts + rows.num_rows), np.cumsum(position < firsts))
        return rows, range_of[firsts : firsts + rows.num_rows]

    def sorted(self, rows: pa.Table) -> pa.Table:
        return sort_rows(rows, self.order.schema, self.order.order)

    def plain(self, rows: pa.Table) -> pa.Table:
        return rows


@dataclass(frozen=True, slots=True)
class Cuts:
    """Divides the rows of a group into consecutive ranges, one for each task.

    Rows are ordered by their keys and, where those are equal, by their number, so no two rows are equal and a key that
    many rows share is divided like any other.

    Attributes:
        order: The order, fitted to a sample of the group.
        firsts: The key columns of the first row of every range but the first, in order.
        numbers: The numbers of these rows.
    """

    order: RowOrder
    firsts: pa.Table
    numbers: Ints

    @classmethod
    def of(
        cls, order: RowOrder, keys: pa.Table, numbers: Ints, shares: Sequence[float], weights: Floats | None = None
    ) -> Cuts:
        """Choose ranges that have these shares of the weight of all rows, which is equal for all by default.

        ``keys``, ``numbers`` and ``weights`` are those of sampled rows, with ascending numbers.
        """
        ordered = order.exact_permutation(keys)
        before = np.cumsum(np.ones(len(ordered)) if weights is None else weights[ordered])
        total = before[-1] if len(before) else 0.0
        at = np.searchsorted(before, np.cumsum(shares)[:-1] / np.sum(shares) * total, side="right")
        chosen = ordered[np.unique(at[(at > 0) & (at < len(ordered))])].astype(np.int64)
        return cls(order, keys.take(pa.array(chosen)).combine_chunks(), numbers[chosen])

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self.numbers) + 1

    def assign(self, keys: pa.Table, numbers: Ints) -> Ints:
        """The range of each row, from its key columns; row numbers ascend."""
        cuts = len(self.numbers)
        plain = keys.select(self.firsts.schema.names).cast(self.firsts.schema)
        if not cuts:
            return np.zeros(plain.num_rows, dtype=np.int64)
        words = self.order.leading_words(pa.concat_tables([self.firsts, plain]))
        starts, own = words[:cuts], words[cuts:]
        found = np.searchsorted(starts, own).astype(np.int64)
        # The few rows that lead like the first row of a range are compared by all keys and their number.
        alike = np.flatnonzero(starts[np.minimum(found, cuts - 1)] == own)
        found[alike] = self._compared(plain.take(pa.array(alike)), numbers[alike])
        return found

    def _compared(self, keys: pa.Table, numbers: Ints) -> Ints:
        # Sort the rows together with the first rows of ranges. The sort is stable: of equal keys, the lower number is
        # first, and a range's first row, which has the same number here and there, is preceded by its copy.
        cuts = len(self.numbers)
        by_number = np.argsort(np.concatenate([self.numbers, numbers]), kind="stable")
        together = pa.concat_tables([self.firsts, keys]).take(pa.array(by_number))
        at = by_number[self.order.exact_permutation(together)]
        found = np.empty(len(at), dtype=np.int64)
        found[at] = np.cumsum(at < cuts)
        return found[cuts:]


def range_numbers(starts_below: Ints, starts_up_to: Ints) -> Ints:
    """Number ranges by how many range starts are < and <= the key; odd numbers are keys equal to a start."""
    return np.asarray(2 * (starts_below + starts_up_to) + (starts_below != starts_up_to))


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to rewrite the rows of a group.

    Attributes:
        name: The name in ``--strategy``, in JSON and in ``RewriteOptions.strategy``.
        by: Whether it takes columns.
        copies_bytes: Rows keep their order, so row groups and pages may be copied without decoding them.
        copies_small_row_groups: Copies row groups of any size; otherwise small ones are merged into larger ones.
        partition_first: When rows of a group go to several partitions, they are sorted by partition first, so that the
            writer has one partition open at a time.
    """

    name: str
    by: ByColumns = ByColumns.NOT_ALLOWED
    copies_bytes: bool = False
    copies_small_row_groups: bool = False
    partition_first: bool = True

    def check(self, by: Sequence[str]) -> None:
        """Refuse columns that the strategy does not take, and missing ones.

        Raises:
            InvalidOptionError: One of both.
        """
        if by and self.by is ByColumns.NOT_ALLOWED:
            raise InvalidOptionError(f"strategy {self.name} takes no columns; use sort, zorder or hilbert")
        if not by and self.by is ByColumns.REQUIRED:
            raise InvalidOptionError(f"strategy {self.name} needs the columns to cluster by")

    def sort_order(self, by: Sequence[str], table: Table, *, case_sensitive: bool = True) -> SortOrder:
        """The sort order that the columns give to the rows of a group; unsorted when rows keep their order."""
        if not by:
            return UNSORTED_SORT_ORDER
        return parse_order(by, table.schema(), case_sensitive=case_sensitive)

    def row_order(self, schema: Schema, order: SortOrder) -> RowOrder:
        """How rows of ``schema`` are put into this order."""
        return RowOrder(schema, order)


def parse_order(terms: Sequence[str], schema: Schema, *, case_sensitive: bool = True) -> SortOrder:
    """Parse terms such as ``ts desc nulls last``; nulls are first unless descending, as in Spark."""
    names = Names(schema, case_sensitive)
    fields = []
    for term in terms:
        name, *words = term.split() or [""]
        lowered = [word.lower() for word in words]
        descending = lowered[:1] == ["desc"]
        rest = tuple(lowered[1:] if lowered[:1] in (["asc"], ["desc"]) else lowered)
        nulls_first = {(): not descending, ("nulls", "first"): True, ("nulls", "last"): False}
        if not name or rest not in nulls_first:
            raise InvalidOptionError(
                f"cannot sort by {term!r}; write it as column [asc|desc] [nulls first|nulls last]", context={"by": term}
            )
        direction = SortDirection.DESC if descending else SortDirection.ASC
        nulls = NullOrder.NULLS_FIRST if nulls_first[rest] else NullOrder.NULLS_LAST
        column = names.find_dotted(name)
        if isinstance(column.type, UnknownType):
            message = f"cannot sort by {name}: its type is unknown, so all its values are null"
            raise InvalidOptionError(message, context={"by": term})
        fields.append(SortField(column.field_id, IdentityTransform(), direction, nulls))
    return SortOrder(*fields, order_id=AD_HOC_ORDER_ID)
