"""Clients on one GPU that take their training steps together, each with its own weights.

For pictures with classes and networks of 3 x 3 convolutions and linear layers: the CIFAR-10 study.
All others train with `LocalTrainer`, one client after another.
"""
