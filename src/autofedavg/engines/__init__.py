"""Engines carry the port's requests to clients; they decide nothing."""

from autofedavg.core.registry import Registry

ENGINES = Registry(
    "engine",
    {
        "simulator": "autofedavg.engines.simulator.simulator:Simulator",
        "flare": "autofedavg.engines.flare.loopback:Loopback",
        "flower": "autofedavg.engines.flower:Loopback",
    },
)
REMOTE = ("flare", "flower")  # a row is a job there, and sites are processes of their own
EXPORTS = Registry(
    "engine",
    {
        "flare": "autofedavg.engines.flare.export:export",
        "flower": "autofedavg.engines.flower.export:export",
    },
)
