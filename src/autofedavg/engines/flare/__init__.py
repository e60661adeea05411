"""Auto-FedAvg on NVIDIA FLARE: models travel as tasks, small requests as aux messages.

The Controller carries the server's requests and the Executor passes them to the site's service;
neither decides anything. Modules import FLARE and PyTorch only where they need them: a site's main
process imports `access` alone.
"""
