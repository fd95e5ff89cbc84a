"""Things to try Floeplan on: tables that are large on paper and small on disk."""
