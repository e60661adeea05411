"""FLARE's FedAvg with learned weights, without processes: real components, one engine between."""

import copy
import json
import threading
from statistics import fmean

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.job_config.api import FedJob

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.engines.dropin.learner import WeightLearner
from autofedavg.engines.dropin.responder import Responder
from autofedavg.engines.flare.dropin import (
    TOPIC,
    AuxChannel,
    LearnedFedAvg,
    LearnedWeights,
    _answers,
    answer_with,
)
from autofedavg.federation.messages import Message, NoReply
from lookalike_cells import AUX, Cell
from others_job import batch, loss_of, network

SITES = ("A", "B", "C")


class Engine:
    """Carries aux messages to every site's component; all sites share this process."""

    def __init__(self, spoil=lambda site, reply: reply):
        self.handlers, self.spoil, self.turn = {}, spoil, threading.Lock()
        self.cell = Cell("A.job")

    def get_cell(self):
        return self.cell

    def register_aux_message_handler(self, topic, handler):
        self.handlers[topic] = handler

    def send_aux_request(self, *, targets, topic, request, timeout, fl_ctx, optional):
        replies = {site: self.deliver(site, topic, request) for site in targets}
        return {site: reply for site, reply in replies.items() if reply is not None}

    def deliver(self, site, topic, request):
        if topic not in self.handlers:
            return make_reply(ReturnCode.TOPIC_UNKNOWN)
        with self.turn:  # sites have a process each, and with it PyTorch's global generator
            reply = self.handlers[topic](topic, request, context(self, site))
        return self.spoil(site, reply)

    def get_clients(self):
        return list(SITES)


class Context(FLContext):
    def __init__(self, engine, site):
        super().__init__()
        self.engine, self.site = engine, site

    def get_engine(self, *args, **kwargs):
        return self.engine

    def get_identity_name(self, *args, **kwargs):
        return self.site

    def get_job_id(self, *args, **kwargs):
        return "job"


def context(engine, site="server"):
    return Context(engine, site)


@pytest.fixture
def engine(monkeypatch):
    """An engine whose component is registered, with a responder for each site as it is asked."""
    engine = Engine()
    LearnedWeights().handle_event(EventType.START_RUN, context(engine))
    answer_with(network=network(), loss=loss_of, batches=batch)
    made = {site: Responder(site, network(), loss_of, batch) for site in SITES}
    monkeypatch.setattr(_answers, "responder", lambda site: made[site])
    return engine


class Controller(LearnedFedAvg):
    """With the parts of FLARE replaced that need a running server."""

    def __init__(self, engine, results, **how):
        super().__init__(num_clients=3, num_rounds=len(results), persistor_id="", **how)
        self.fl_ctx, self.abort_signal = context(engine), Signal()
        self.engine, self.waiting, self.saved, self.said = engine, list(results), [], []

    def sample_clients(self, num_clients):
        return list(SITES)

    def broadcast(self, task, **how):
        model = FLModelUtils.from_shareable(task.data)
        for site, result in self.waiting.pop(0)(model).items():
            result.meta = {"client_name": site, **(result.meta or {})}
            task.props[AppConstants.TASK_PROP_CALLBACK](result)

    def get_num_standing_tasks(self):
        return 0

    def save_model(self, model):
        self.saved.append(copy.deepcopy(model))

    def fire_event_with_data(self, *args):
        pass

    def event(self, *args):
        pass

    def info(self, message):
        self.said.append(message)

    warning = panic = exception = debug = info


def trained(t, kind=ParamsType.FULL, spoil=lambda site, params: None):
    def results(model):
        found = {}
        for k, site in enumerate(SITES):
            params = {
                n: a + np.asarray((k + t) / 9).astype(a.dtype) for n, a in model.params.items()
            }
            if kind == ParamsType.DIFF:
                params = {n: params[n] - a for n, a in model.params.items()}
            spoil(site, params)
            found[site] = FLModel(
                params=params,
                params_type=kind,
                metrics={"loss": 1.0 + k},
                meta={"NUM_STEPS_CURRENT_ROUND": 1 + k},
            )
        return found

    return results


def initial():
    return {name: tensor.numpy() for name, tensor in network().state_dict().items()}


def run(engine, results, **how):
    controller = Controller(engine, results, model=initial(), S=3, **how)
    controller.run()
    return controller


def expected(t, state, learner):
    class Direct:
        def ask(self, verb, messages, within):
            return {
                site: responders[site].answer(verb, message) for site, message in messages.items()
            }

    responders = {site: Responder(site, network(), loss_of, batch) for site in SITES}
    results = trained(t)(FLModel(params={k: v.numpy() for k, v in state.items()}))
    models = {
        s: {k: torch.from_numpy(np.array(a)) for k, a in r.params.items()}
        for s, r in results.items()
    }
    return learner.round(t, state, models, Direct())


def test_the_engine_changes_nothing(engine):
    controller = run(engine, [trained(1), trained(2)], seed=3)
    learner = WeightLearner("here", S=3, seed=3)
    state = {k: torch.from_numpy(v.copy()) for k, v in initial().items()}
    for t, saved in enumerate(controller.saved, 1):
        learned = expected(t, state, learner)
        state = learned.state
        learnt = {k: v for k, v in saved.metrics.items() if k != "loss"}
        assert learnt == learned.metrics()
        losses = learned.losses.values()
        assert learnt["learning_loss/first"] == pytest.approx(fmean(told[0] for told in losses))
        assert learnt["learning_loss/last"] == pytest.approx(fmean(told[-1] for told in losses))
        assert saved.metrics["loss"] == pytest.approx((1 + 4 + 9) / 6)  # by steps, as ever
    final = controller.saved[-1].params
    assert set(final) == set(state)
    assert all(isinstance(a, np.ndarray) for a in final.values())
    assert all(np.array_equal(final[k], state[k].numpy()) for k in state)
    assert sum("alpha of round" in line for line in controller.said) == 2


def test_clients_that_send_what_they_changed(engine):
    full = run(engine, [trained(1)]).saved[-1]
    diff = run(engine, [trained(1, ParamsType.DIFF)]).saved[-1]
    for name in full.params:
        np.testing.assert_allclose(full.params[name], diff.params[name], atol=1e-6)
    assert diff.metrics["alpha/A"] == pytest.approx(full.metrics["alpha/A"], abs=1e-5)


def test_clients_that_send_tensors_are_sent_tensors(engine):
    def as_tensors(model):
        numbers = FLModel(params={k: v.numpy() for k, v in model.params.items()})
        results = trained(1)(numbers)
        for result in results.values():
            result.params = {k: torch.from_numpy(np.array(v)) for k, v in result.params.items()}
        return results

    controller = Controller(engine, [as_tensors], model=dict(network().state_dict()), S=3)
    controller.run()
    arrays = run(engine, [trained(1)]).saved[-1]
    tensors = controller.saved[-1]
    assert tensors.metrics == arrays.metrics
    for name, value in tensors.params.items():
        assert torch.equal(value, torch.from_numpy(np.array(arrays.params[name])))


def test_layer_wise_weights(engine):
    metrics = run(engine, [trained(1)], weights="layer").saved[-1].metrics
    assert {f"alpha/B/{layer}" for layer in ("0", "1", "3")} <= set(metrics)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda p: p.pop("3.bias"), "has no tensor 3.bias"),
        (lambda p: p.update({"3.bias": np.zeros(5, np.float32)}), "3.bias as 5, the network as 2"),
        (lambda p: p.update({"3.bias": np.array([0, np.nan], np.float32)}), "not finite"),
        (lambda p: p.update({"3.bias": "no numbers"}), "has no tensor 3.bias"),
    ],
)
@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_a_model_that_cannot_be_used_names_its_site(engine, spoil, said, kind):
    wrong = trained(1, kind, lambda site, params: spoil(params) if site == "B" else None)
    with pytest.raises(AutoFedAvgError, match="client B") as refused:
        run(engine, [wrong])
    assert said in str(refused.value)


def test_a_job_without_the_component_is_told_how_to_add_it():
    with pytest.raises(ConfigError, match=r"client A: the job has no component LearnedWeights"):
        run(Engine(), [trained(1)])


def test_a_script_that_gave_nothing_is_told_what_to_add():
    engine = Engine()
    LearnedWeights().handle_event(EventType.START_RUN, context(engine))
    with pytest.raises(
        ConfigError, match=r"client A: its script has not called answer_with"
    ) as refused:
        run(engine, [trained(1)])
    assert "answer_with(network=..., loss=..., batches=...)" in str(refused.value)


def test_what_the_script_gives_is_what_answers():
    engine = Engine()
    LearnedWeights().handle_event(EventType.START_RUN, context(engine))
    answer_with(network=network(), loss=loss_of, batches=batch)
    [answer] = AuxChannel(context(engine), Signal()).ask("hello", {"A": Message()}, 5.0).values()
    assert answer.facts["site"] == "A"


def test_no_answer_and_garbage(engine):
    engine.spoil = lambda site, reply: {"A": None, "B": Shareable(), "C": reply}[site]
    answers = AuxChannel(context(engine), Signal()).ask(
        "hello", dict.fromkeys(SITES, Message()), 5.0
    )
    assert answers["A"] == NoReply("no answer within 5 s")
    assert isinstance(answers["B"], NoReply)
    assert isinstance(answers["C"], Message)


def test_a_stopped_job_stops(engine):
    stopped = Signal()
    stopped.trigger(True)
    with pytest.raises(RunError, match="stopped"):
        AuxChannel(context(engine), stopped).ask("hello", {"A": Message()}, 5.0)


def test_a_request_that_is_not_a_message_is_refused():
    engine = Engine()
    component = LearnedWeights()
    component.handle_event(EventType.START_RUN, context(engine))
    component.log_error = lambda *args: None
    [handler] = engine.handlers.values()
    reply = handler("topic", Shareable(), context(engine, "A"))
    assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"exclude_vars": "head"}, "exclude_vars cannot be combined"),
        ({"enable_tensor_disk_offload": True}, "enable_tensor_disk_offload"),
        ({"method": {"t_0": 1}}, "did you mean t0"),
        ({"S": 0}, "S"),
    ],
)
def test_wrong_arguments(settings, said):
    with pytest.raises(ConfigError, match=said):
        LearnedFedAvg(num_clients=3, **settings)


def test_a_job_holds_every_setting(tmp_path):
    job = FedJob("clinics", min_clients=3)
    job.set_app_packages(["autofedavg"])
    job.to_server(LearnedFedAvg(num_clients=3, num_rounds=4, persistor_id="", S=7, t0=2))
    job.to_clients(LearnedWeights(), id="learned_weights")
    job.export_job(str(tmp_path))
    [server] = tmp_path.rglob("config_fed_server.json")
    [flow] = json.loads(server.read_text())["workflows"]
    assert flow["path"] == "autofedavg.engines.flare.dropin.LearnedFedAvg"
    told = {"method": {"S": 7, "t0": 2}, "num_rounds": 4, "persistor_id": ""}
    assert flow["args"] == {**told, "aggregation_weights": {}}
    again = LearnedFedAvg(**flow["args"])
    assert (again.num_rounds, again._learner.method.S, again._learner.method.t0) == (4, 7, 2)
    [client] = tmp_path.rglob("config_fed_client.json")
    assert "autofedavg.engines.flare.dropin.LearnedWeights" in client.read_text()


def test_a_site_answers_the_servers_job_alone(engine):
    assert not engine.cell.refuses("server.job", AUX, TOPIC)
    for origin in ("server", "A", "B.job"):
        assert engine.cell.refuses(origin, AUX, TOPIC)


def test_the_last_round_is_known(engine, monkeypatch):
    """It bounds the calls of t0 = "auto"."""
    seen, plain = [], WeightLearner.round
    monkeypatch.setattr(
        WeightLearner, "round", lambda self, *given: seen.append(given[4]) or plain(self, *given)
    )
    run(engine, [trained(1), trained(2)])
    assert seen == [2, 2]
