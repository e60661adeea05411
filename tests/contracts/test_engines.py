"""Every registered engine carries the same bits as clients that are asked directly."""

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.bank import Model
from autofedavg.core.errors import AutoFedAvgError
from autofedavg.core.seeds import Seeds
from autofedavg.engines import ENGINES, REMOTE
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.methods import METHODS
from method_changes import FEWER_STEPS
from toy import CPU, METRIC, TRAINING, DirectFleet, mlp, norm_net, toy_problem


def history(transport, method, problem) -> list[tuple]:
    """All that a run's outcome is made of, as bytes."""
    proxy = Proxy.of(problem, TRAINING, Seeds(7), CPU)
    federation = Federation(transport, metric=METRIC, proxy=proxy)
    w, layout = problem.initial(Seeds(7))
    kept = []
    for state in method.rounds(federation, layout, 4, method.begin(federation, Round(0, w))):
        local = federation.validate_local(state.t, state.w_k, METRIC)
        predicts = state.together or isinstance(state.w, Model)
        scores = federation.evaluate(state.w, "validation") if predicts else None
        numbers = [state.w.values, state.w.counters, state.alpha, state.beta]
        as_bytes = tuple(None if n is None else n.numpy().tobytes() for n in numbers)
        kept.append((as_bytes, local, scores, state.losses))
    return kept


NETWORKS = {"fedma": mlp}
HERE = [name for name in ENGINES if name not in REMOTE]  # the others: integration/test_engines.py


def fleet_problem(method=""):
    return toy_problem(3, NETWORKS.get(method, norm_net))


CHOSEN = [(method, FEWER_STEPS.get(method, {})) for method in METHODS]
CHOSEN += [("auto-fedavg", {"steps_per_message": 6}), ("auto-fedavg", {"learning": "server"})]
CHOSEN += [("auto-fedavg", {"t0": "auto", "when_idle": "sizes", "learning": way})
           for way in ("clients", "server")]  # fmt: skip


@pytest.mark.parametrize(("method", "settings"), CHOSEN, ids=str)
@pytest.mark.parametrize("engine", HERE)
@pytest.mark.parametrize("workers", [1, 2])
def test_same_bits_as_without_an_engine(engine, method, settings, workers) -> None:
    chosen, problem = METHODS[method](**settings), fleet_problem(method)
    with ENGINES[engine](problem, TRAINING, Seeds(7), workers=workers) as transport:
        direct = DirectFleet(fleet_problem(method))
        assert history(transport, chosen, problem) == history(direct, chosen, problem)


@pytest.mark.parametrize("learning", ["clients", "server"])
@pytest.mark.parametrize("engine", HERE)
def test_traffic_is_the_same_whatever_carries_it(engine, learning) -> None:
    chosen = METHODS["auto-fedavg"](learning=learning)

    def cost(transport) -> dict[str, tuple[int, int, int]]:
        federation = Federation(transport)
        w, layout = fleet_problem().initial(Seeds(7))
        for _ in chosen.rounds(federation, layout, 2, Round(0, w)):
            pass
        account = federation.take_account()
        return {call: (spent.calls, spent.down, spent.up) for call, spent in account.items()}

    with ENGINES[engine](fleet_problem(), TRAINING, Seeds(7)) as transport:
        assert cost(transport) == cost(DirectFleet(fleet_problem()))


@pytest.mark.parametrize("engine", HERE)
def test_a_client_s_error_arrives_with_its_name(engine) -> None:
    w, _ = fleet_problem().initial(Seeds(7))
    spoiled = Model(torch.full_like(w.values, float("nan")), w.counters)
    with (
        ENGINES[engine](fleet_problem(), TRAINING, Seeds(7)) as transport,
        pytest.raises(AutoFedAvgError, match="client A, local_train, round 1, step 1: the loss"),
    ):
        Federation(transport).local_train(1, spoiled, T=1)
