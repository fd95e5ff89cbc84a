"""A REST catalog server that plans scans for the engines that load tables through it.

The server stands in front of another REST catalog (proxy mode) or of any catalog that PyIceberg opens (catalog mode).
Java from 1.11 and PyIceberg from 0.12 let a catalog plan their scans: they send a filter and get files, deletes and
residuals. The server makes such plans with ``floeplan.scan`` and records each of them for ``audit``.

Rule of plans: the client reads exactly the files it is sent and may skip evaluating what a residual does not name. So a
plan has every file in which a row may match by *any* client's semantics, and a residual is left out only where no
client could need it. Rule of access: the catalog authorises, the server plans. Every plan and every page of one first
loads the table with the headers of the caller. No state is kept: a page is a token that any instance can serve.

Fail-safe: tables are planned by their clients unless they are switched on. An error is returned rather than a plan that
may be wrong; no client falls back to its own planning, so transient errors have the form that clients retry.

Plans, which know JSON and callers but no HTTP, in reading order:

- ``requests``: the body of a plan request, parsed and validated, and what it refers to.
- ``expressions``: its filter as IR, with the dialects and semantics of clients; residuals as pieces of the filter.
- ``literals``: the values in it, in the units and texts of clients.
- ``pages``: planned files as JSON, from columns.
- ``tokens``: plan tasks as encrypted tokens, so that any instance serves any page.
- ``planner``: ``ScanPlanner``, which joins these, and the cache of plans.

The server:

- ``wire``: paths, names, callers, errors and encodings of HTTP requests and responses.
- ``policy``: which tables are planned by the server.
- ``limits``: bodies, plans at once, deadlines, and the stores that may be read.
- ``records``: audit records, metrics and logs.
- ``forwarding``: headers and edited bodies of messages that pass through.
- ``proxy``: proxy mode.
- ``catalog_endpoints``: catalog mode.
- ``app``: routes requests to the planner and to the backend.
- ``server``: options, sockets, TLS, starting and stopping.

Needs the extra ``floeplan[server]``. Imported by ``cli``.
"""
