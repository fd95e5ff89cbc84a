"""What scan reports say about queries and tables: the audit job and the advisor."""
