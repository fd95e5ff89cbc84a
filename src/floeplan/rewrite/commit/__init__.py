"""Committing a rewrite: REPLACE snapshots that stay correct regardless of concurrent commits.

Rule: new files keep the data sequence number of the planned snapshot, so newer equality deletes apply to them; newer
position deletes of replaced files are mapped to the new files. Fail-safe: a group for which that is not possible is not
committed.

- ``manager``: one commit of some groups, with retries; removal of dangling deletes;
- ``carry_deletes``: what others committed since the plan, and carrying their deletes over.

Imported by ``rewrite.execute``.
"""
