"""Copies of a run's numbers in TensorBoard and MLflow."""
