"""Public data sets: sources, committed splits, checks."""
