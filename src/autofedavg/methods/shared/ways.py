"""What each way of learning the weights adds to FedAvg's traffic, in a row's own encodings."""

from __future__ import annotations

from autofedavg.core.bank import Layout
from autofedavg.federation.encoding import bytes_of
from autofedavg.federation.settings import Exchange


def ways(
    layout: Layout,
    T: int,
    sites: int,
    exchange: Exchange,
    calls: int,
    S: int,
    blindly: int,
    sketched: int,
) -> dict[str, float]:
    """Bytes of learning over those of FedAvg's models, both ways.

    Args:
        layout: of the network.
        T: rounds.
        sites: all sites.
        exchange: how models travel.
        calls: of LearnAggWeight, at most.
        S: steps of a call at the server.
        blindly: calls of blind learning, at most.
        sketched: bytes per client of the sums of gradients in them.
    """
    whole, down, up = layout.nbytes, bytes_of(layout, exchange.down), bytes_of(layout, exchange.up)
    fedavg = T * (down + up)
    # Sums come up as they are. Rounded, a model is sent to take gradients at and again to train.
    again = down if exchange.down == "bfloat16" else 0
    blind = sketched + blindly * again + T * (whole - up)
    return {
        "clients": calls * (sites - 1) * down / fedavg,
        f"server (S = {S})": calls * S * (down + whole) / fedavg,
        "blind": blind / fedavg,
    }
