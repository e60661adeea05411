"""Data lists: reading them, splitting them, measuring them, and what follows from it."""
