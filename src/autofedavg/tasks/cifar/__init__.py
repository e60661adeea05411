"""CIFAR-10: reading its files, dealing them out, batches."""
