"""The explorer: a table to click through, as a static report or served on this machine.

::

    table ──► TableView ──► documents (JSON) ──┬─► site.py    files that open without a server
              columns,       pure functions    └─► server.py  127.0.0.1, plans as one types
              read once      of results              one front end in static/
"""
