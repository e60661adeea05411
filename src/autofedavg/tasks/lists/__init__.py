"""Data lists: reading, splits, fingerprint, and settings derived from it."""
