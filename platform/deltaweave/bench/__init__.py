"""The merge benchmark: deltaweave's engine beside Delta's own MERGE, on the same rows."""
