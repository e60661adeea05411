"""Public data sets: what is downloaded, committed splits, checks."""
