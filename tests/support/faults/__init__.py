"""Faults: proxies that drop or change traffic, full filesystems, killed processes."""
