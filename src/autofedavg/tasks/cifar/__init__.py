"""CIFAR-10: files, partition, batches, network."""
