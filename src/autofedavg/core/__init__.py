"""Numbers and settings: no files, no engine."""
