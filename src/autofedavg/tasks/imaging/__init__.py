"""From image files to batches, and from predictions to scores."""

from autofedavg.tasks.imaging.cache import name_the_user

name_the_user()  # before MONAI is imported, which asks for the name
