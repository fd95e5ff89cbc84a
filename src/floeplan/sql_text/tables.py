"""The tables that names in a statement mean.

Rule: of three or more parts the first may be a catalog: the one that was asked for, a configured one, or the embedded
default. Everything else is ``namespace.name`` in the catalog that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from floeplan.catalog import EMBEDDED, load_table
from floeplan.errors import BadInputError


def open_table(parts: Sequence[str], catalog: str | Catalog | None = None) -> Table:
    """The table of a name.

    Raises:
        UnknownTableError: There is no such table.
    """
    for part in parts:
        if "." in part:
            raise BadInputError(f"the name {part!r} has a dot in it, which no catalog here can look up")
    asked = catalog.name if isinstance(catalog, Catalog) else catalog
    if len(parts) > 2 and parts[0] == asked:
        return load_table(".".join(parts[1:]), catalog)
    if len(parts) > 2 and parts[0] in {EMBEDDED, *Config().get_known_catalogs()}:
        return load_table(".".join(parts[1:]), parts[0])
    return load_table(".".join(parts), catalog)
