"""Triton kernels that work on several clients' networks at once, each with its own weights.

Activations are (slots, batch, rows, columns, channels) in bfloat16. Slot i works for client now[i],
whose parameters are row now[i] of a (clients, stride) matrix; an empty slot, now[i] < 0, does
nothing. Sums are taken in float32 and in a fixed order, so that the same numbers come out whatever
else is on the GPU and whichever slot a client is given.

A kernel that sums a tile it also multiplies in the same loop gave wrong numbers under Triton 3.6
(the tile was overwritten while the products still read it), so no kernel here does.
"""

from autofedavg.engines.simulator.stacked.kernels.batches import (
    advance,
    begin,
    cross_entropy,
    pictures,
)
from autofedavg.engines.simulator.stacked.kernels.convolution import (
    convolve,
    convolve_back,
    convolve_bias,
    convolve_weights,
    convolve_weights_few,
    gather,
)
from autofedavg.engines.simulator.stacked.kernels.linear import (
    descend,
    linear,
    linear_back,
    linear_weights,
)
from autofedavg.engines.simulator.stacked.kernels.mixing import mix, slopes
from autofedavg.engines.simulator.stacked.kernels.pooling import pool, pool_back

__all__ = [
    "advance", "begin", "convolve", "convolve_back", "convolve_bias", "convolve_weights",
    "convolve_weights_few", "cross_entropy", "descend", "gather", "linear", "linear_back",
    "linear_weights", "mix", "pictures", "pool", "pool_back", "slopes",
]  # fmt: skip
