"""The TPC-H benchmark on evolved tables: its data by ``tpchgen-cli``, its 22 queries and its refresh functions."""
