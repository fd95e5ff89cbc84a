"""The commands, one module per group of ``floeplan --help``. ``cli.main`` imports a module when its command is used.

Rule: a command parses options, calls one public function, and shows the result as text or, with ``--json``, as one
JSON document. Fail-safe: bad input is refused before anything is read or written.

- ``plan``: ``plan`` and ``scan``. ``prune``: ``prune``. ``inspect``: ``inspect`` and ``entries``.
- ``tables``: ``list``, ``snapshots``, ``rollback``, ``branch``, ``tag`` and ``properties``.
- ``dml``: ``append``, ``delete``, ``update``, ``merge`` and ``sql``.
- ``rewrite``: ``rewrite`` and ``upgrade-spec``.
- ``maintenance``: ``rewrite-manifests``, ``expire``, ``remove-orphans`` and ``doctor``.
- ``maintain``: ``maintain``.
- ``audit``: ``audit`` and ``advise``. ``explorer``: ``report`` and ``serve``.
- ``serve_catalog``: ``serve-catalog`` and ``explain-plan``.
"""
