"""Engines carry the port's requests to clients; they decide nothing."""

from autofedavg.registry import Registry

ENGINES = Registry("engine", {"simulator": "autofedavg.engines.simulator:Simulator"})
