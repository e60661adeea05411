"""From image files to batches, and from predictions to scores."""
