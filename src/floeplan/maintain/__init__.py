"""Keeping tables well: manifests clustered, old snapshots and lost files removed, faults found and mended."""
