"""Flower's FedAvg with learned weights, over real ClientApps in this process."""

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from autofedavg.core.errors import AutoFedAvgError, ConfigError, FederationError
from autofedavg.engines.dropin.learner import WeightLearner
from autofedavg.engines.flower.codec import from_records
from autofedavg.engines.flower.dropin import LearnedFedAvg, learn_weights
from grids import LocalGrid
from others_job import batch, loss_of, network

NAMES = {7: "north", 8: "south", 9: "harbour"}


def app_of(*, weights=True, named=True):
    """An app with a training loop of its own."""
    app = ClientApp()

    @app.train()
    def fit(message, context):
        net = network()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        site = str(context.node_config["site"])
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(len(site) / 50)
        net[1].num_batches_tracked += len(site)
        metrics = MetricRecord({"loss": float(len(site)), "num-examples": 10 * len(site)})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    if weights:

        @app.query("autofedavg")
        def answer(message, context):
            site = str(context.node_config["site"]) if named else None
            return learn_weights(
                message, context, network=network(), loss=loss_of, batches=batch, site=site
            )

    return app


def grid_of(app=None, **how):
    app = app or app_of()
    return LocalGrid(dict.fromkeys(NAMES, app), {n: {"site": s} for n, s in NAMES.items()}, **how)


def arrays_in(message):
    return from_records(message.content)[0].arrays


def strategy_of(**how):
    nodes = {"min_train_nodes": 3, "min_available_nodes": 3, "fraction_evaluate": 0.0}
    return LearnedFedAvg(**{"S": 4, **nodes, **how})


def start(grid, rounds=2, **how):
    initial = ArrayRecord(network().state_dict())
    return strategy_of(**how).start(grid=grid, initial_arrays=initial, num_rounds=rounds)


def test_all_steps_go_in_one_message_with_the_models():
    grid = grid_of()
    result = start(grid)
    assert len(grid.queries()) == 3 * (1 + 2)  # one hello, then one message a round
    for metrics in result.train_metrics_clientapp.values():
        alpha = [metrics[f"alpha/{site}"] for site in NAMES.values()]
        assert sum(alpha) == pytest.approx(1.0)
        assert len(set(alpha)) == 3
        assert "learning_loss/first" not in metrics  # one message has no first and last steps
        assert metrics["loss"] == pytest.approx((25 + 25 + 49) / 17)  # by num-examples, as ever
    assert [*result.arrays] == [*network().state_dict()]
    assert result.arrays["1.num_batches_tracked"].numpy() == 14  # 7 a round: the maximum
    assert all(not context.state for context in grid.contexts.values())


def test_the_paper_s_own_algorithm_keeps_the_models_in_the_context():
    held = []

    def look(message, reply):
        held.append(len(grid.contexts[message.metadata.dst_node_id].state))
        return reply

    grid = grid_of(spoil=look)
    result = start(grid, rounds=1, steps_per_message=1)
    assert len(grid.queries()) == 3 * (1 + 4)
    assert max(held) == 1
    assert all(not context.state for context in grid.contexts.values())
    heavy = [m for m in grid.queries() if len(arrays_in(m)) > 1]
    assert len(heavy) == 3  # models travel once
    other = start(grid_of(), rounds=1)
    assert result.train_metrics_clientapp[1] != other.train_metrics_clientapp[1]


def test_a_node_that_has_lost_its_state_is_sent_the_models_again():
    plain = start(grid_of(), rounds=1, steps_per_message=1)
    lost = []

    def lose(message, reply):
        if grid.contexts[8].state and not lost:
            lost.append(grid.contexts[8].state.clear())
        return reply

    grid = grid_of(spoil=lose)
    again = start(grid, rounds=1, steps_per_message=1)
    assert lost
    assert dict(again.train_metrics_clientapp[1]) == dict(plain.train_metrics_clientapp[1])
    assert len(grid.queries()) == 3 * (1 + 4) + 1


def test_layer_wise_weights_have_a_metric_each():
    metrics = start(grid_of(), rounds=1, weights="layer").train_metrics_clientapp[1]
    layers = {name.rpartition("/")[2] for name in metrics if name.startswith("alpha/north/")}
    assert layers == {"0", "1", "3"}
    for layer in layers:
        assert sum(metrics[f"alpha/{s}/{layer}"] for s in NAMES.values()) == pytest.approx(1.0)


def test_rounds_between_learning_keep_the_weights():
    grid = grid_of()
    result = start(grid, rounds=3, t0=2)
    first, second, third = (dict(m) for m in result.train_metrics_clientapp.values())
    assert first["alpha/north"] == pytest.approx(1 / 3)
    assert second["alpha/north"] != first["alpha/north"]
    assert third["alpha/north"] == second["alpha/north"]
    assert len(grid.queries()) == 3 * 2


def test_learning_at_the_server_sends_no_site_anothers_model():
    grid = grid_of()
    start(grid, rounds=1, learning="server")
    names = {key for m in grid.queries() for key in arrays_in(m)}
    assert names == {"values", "counters"}


def test_without_a_name_a_site_is_its_node():
    metrics = start(grid_of(app_of(named=False)), rounds=1).train_metrics_clientapp[1]
    assert {k for k in metrics if k.startswith("alpha")} == {f"alpha/node-{n}" for n in NAMES}


def test_an_app_without_the_function_is_told_the_lines_to_add():
    grid = grid_of()
    grid.apps[8] = app_of(weights=False)
    with pytest.raises(ConfigError, match="node 8") as refused:
        start(grid)
    assert "has no query function 'autofedavg'" in str(refused.value)
    assert '@app.query("autofedavg")' in str(refused.value)
    assert "learn_weights(message, context, network=..." in str(refused.value)


def spoil_training(node, change):
    def spoil(message, reply):
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == node:
            state = reply.content["arrays"].to_torch_state_dict()
            change(state)
            reply.content["arrays"] = ArrayRecord(state)
        return reply

    return spoil


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.update({"3.bias": torch.full((2,), torch.nan)}), "not finite"),
        (lambda s: s.update({"3.bias": torch.zeros(3)}), "3.bias as 3, the network as 2"),
        (lambda s: s.pop("0.weight"), "has no tensor 0.weight"),
    ],
)
def test_a_model_that_cannot_be_used_names_its_site(change, said):
    with pytest.raises(AutoFedAvgError, match="client south") as refused:
        start(grid_of(spoil=spoil_training(8, change)))
    assert said in str(refused.value)


def test_a_reply_without_numbers_names_its_site():
    def garble(message, reply):
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 8:
            record = reply.content["arrays"]
            record["0.bias"] = Array("float32", (4,), "numpy.ndarray", b"no array at all")
        return reply

    with pytest.raises(ConfigError, match=r"client south.*has no tensor 0\.bias"):
        start(grid_of(spoil=garble))


def test_a_node_lost_between_training_and_learning():
    def lost(message):
        asked = message.metadata.message_type == "query.autofedavg"
        return asked and message.metadata.dst_node_id == 9 and len(grid.queries()) > 3

    grid = grid_of(lost=lost)
    with pytest.raises(FederationError, match=r"client harbour.*no answer within"):
        start(grid, deadline=5.0)
    grid = grid_of(lost=lost)
    result = start(grid, rounds=1, deadline=5.0, quorum=2)
    assert "alpha/harbour" in result.train_metrics_clientapp[1]


def test_a_node_that_fails_to_train_sits_out():
    def lost(message):
        return message.metadata.message_type == "train" and message.metadata.dst_node_id == 9

    result = start(grid_of(lost=lost), rounds=1)
    alpha = {k for k in result.train_metrics_clientapp[1] if k.startswith("alpha")}
    assert alpha == {"alpha/north", "alpha/south"}


def test_garbage_for_an_answer_is_no_answer():
    def garble(message, reply):
        if message.metadata.message_type == "query.autofedavg":
            return Message(RecordDict({"x": MetricRecord({"y": 1.0})}), reply_to=message)
        return reply

    with pytest.raises(FederationError, match="its answer cannot be used"):
        start(grid_of(spoil=garble))


def test_flowers_own_arguments_and_wrong_ones():
    strategy = LearnedFedAvg(0.5, 0.25, weighted_by_key="n", S=7, t0=3)
    assert (strategy.fraction_train, strategy.fraction_evaluate) == (0.5, 0.25)
    assert strategy.weighted_by_key == "n"
    method = strategy.learner.method
    assert (method.S, method.t0, method.steps_per_message) == (7, 3, 7)
    assert LearnedFedAvg(learning="server").learner.method.steps_per_message == 1
    with pytest.raises(ConfigError, match="constraint"):
        LearnedFedAvg(constraint="hard")
    with pytest.raises(TypeError, match="fraction_trained"):
        LearnedFedAvg(fraction_trained=1.0)


def test_the_engine_changes_nothing():
    """What Flower's grid carries is what the engine-free part makes of the same models."""
    from autofedavg.engines.dropin.responder import Responder

    class Direct:
        def ask(self, verb, messages, within):
            return {a: responders[a].answer(verb, note) for a, note in messages.items()}

    responders = {str(n): Responder(s, network(), loss_of, batch) for n, s in NAMES.items()}
    learner = WeightLearner("here", S=4, steps_per_message=1, seed=3)
    state = {k: v.clone() for k, v in network().state_dict().items()}
    grid = grid_of()
    result = start(grid, rounds=2, steps_per_message=1, seed=3)
    for t in (1, 2):
        models = {}
        for node, site in NAMES.items():
            net = network()
            net.load_state_dict(state)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.add_(len(site) / 50)
            net[1].num_batches_tracked += len(site)
            models[str(node)] = {k: v.clone() for k, v in net.state_dict().items()}
        learned = learner.round(t, state, models, Direct())
        told = result.train_metrics_clientapp[t]
        learnt = {k: v for k, v in told.items() if k.startswith(("alpha/", "learning_loss/"))}
        assert learnt == learned.metrics()
        assert {"learning_loss/first", "learning_loss/last"} < learnt.keys()
        state = learned.state
    final = result.arrays.to_torch_state_dict()
    assert all(torch.equal(final[k], state[k]) for k in final)


def test_the_last_round_is_known(monkeypatch):
    """It bounds the calls of t0 = "auto"."""
    seen, plain = [], WeightLearner.round
    monkeypatch.setattr(
        WeightLearner, "round", lambda self, *given: seen.append(given[4]) or plain(self, *given)
    )
    start(grid_of(), rounds=2)
    initial = ArrayRecord(network().state_dict())
    strategy_of().start(grid_of(), initial)  # three rounds, unless one says otherwise
    assert seen == [2, 2, 3, 3, 3]
