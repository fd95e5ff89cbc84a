"""Partition specs: transforms, lifting predicates onto partition values, the union tuple, recovery and keys."""
