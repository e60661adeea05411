"""Networks that MONAI does not have."""
