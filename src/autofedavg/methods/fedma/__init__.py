"""Federated matched averaging, and what only it needs."""
