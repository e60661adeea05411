"""Trained models of run folders: read, applied, exported."""
