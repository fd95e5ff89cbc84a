"""Faults: proxies that drop or change traffic, full filesystems, processes that are killed."""
