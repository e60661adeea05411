"""A study of three rows that runs in seconds."""

TINY = """
[study]
name = "tiny"
title = "Tiny hospitals"
baseline = "fedavg"

[base]
rounds = 3

[base.task]
name = "synthetic"
scale = 0.02
extent = [24.0, 24.0, 30.0]

[base.task.pipeline]
roi = [16, 16, 8]
channels = [4, 8]

[base.training]
iterations = 2
batch_size = 2
learning_rate = 3e-3

[[run]]
name = "local-only"
label = "Local only"
method = { name = "local-only" }

[[run]]
name = "fedavg"
label = "FedAvg"
method = { name = "fedavg" }

[[run]]
name = "n-dirichlet"
label = "Auto-FedAvg-N-Dirichlet"
method = { name = "auto-fedavg", S = 2 }
"""
