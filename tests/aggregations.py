"""A round at the server, made by hand: what known-answer tests of aggregations start from."""

from types import SimpleNamespace

import torch
from torch import nn

from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Site
from autofedavg.federation.local_training import Trained
from autofedavg.methods.averaging import Aggregation

EMPTY = torch.empty(0, dtype=torch.int64)


def aggregation(deltas, w=None, p=None, *, t=1, T=10, sites=None, **told) -> Aggregation:
    """A round whose clients have moved from w by these rows.

    Args:
        deltas: (K, D) numbers.
        w: (D,) numbers; zeros by default.
        p: FedAvg's weights of all clients; even by default.
        t: the round.
        T: the last round.
        sites: the names of all clients, where some of them did not reply: the rows are the first.
        **told: further fields of `Trained`, lists in the order of the rows.
    """
    moved = torch.tensor(deltas, dtype=torch.float64)
    start = torch.zeros(moved.shape[1]) if w is None else torch.tensor(w)
    start = start.to(torch.float64)
    names = tuple(sites or "ABCDEFGHIJKLMNOP"[: len(moved)])
    present = names[: len(moved)]
    weights = torch.tensor(p or [1 / len(names)] * len(names), dtype=torch.float64)
    bank = Bank(present, start + moved, torch.empty(len(moved), 0, dtype=torch.int64))
    losses = dict.fromkeys(present, 1.0)
    given = {key: dict(zip(present, values, strict=True)) for key, values in told.items()}
    federation = SimpleNamespace(
        K=len(names),
        names=names,
        sites=tuple(Site(name, {"train": 10}) for name in names),
        seeds=Seeds(0),
        metric="accuracy",
        rows=lambda wanted: [names.index(name) for name in wanted],
        as_sent=lambda w: w,
    )
    trained = Trained(bank, **({"losses": losses} | given))
    layout = Layout.of(nn.Linear(moved.shape[1], 1, bias=False).double())
    model = Model(start, EMPTY)
    return Aggregation(federation, layout, t, T, model, trained, weights, {}, weights)


def next_round(method, at: Aggregation, deltas, **told) -> Aggregation:
    """The round after this one, from the method's own model and with its memory."""
    after = method.aggregate(at)
    p = at.fixed.tolist()
    following = aggregation(deltas, after.values.tolist(), p, t=at.t + 1, T=at.T, **told)
    following.memory = dict(at.memory)
    return following
