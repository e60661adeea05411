"""What Auto-FedAvg costs over bare PyTorch, as ratios of one interleaved run."""
