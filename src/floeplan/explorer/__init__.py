"""The explorer: a browser UI for a table, as static files or served on 127.0.0.1.

::

    table ──► TableView ──► documents (JSON) ──┬─► site.py    files that open without a server
              columns,       pure functions    └─► server.py  127.0.0.1, plans as you type
              read once      of results              one front end in static/

Rule: documents contain results of the library only, never properties of a catalog or a table. Fail-safe: the server is
read-only unless writes are enabled, and checks the origin of every request (``server``).

Modules in reading order:

- ``view``: the files of a snapshot, and their map: partitions over time.
- ``documents``: overview, plan, rewrite and doctor. ``file_document``: one file.
- ``site``: the static report. ``server``: requests to documents, over HTTP.

Only ``cli`` imports this package.
"""
