"""All clients on one machine: the same numbers however many workers, and no process left behind."""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess

import pytest
import torch
from torch import nn

from autofedavg.core.errors import AutoFedAvgError, ConfigError, DataError, FederationError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Site
from autofedavg.core.trainer import Training
from autofedavg.engines import ENGINES
from autofedavg.engines.simulator import simulator
from autofedavg.engines.simulator.simulator import (
    Simulator,
    WorkerPlan,
    checked_device,
    is_heavy,
    plan_workers,
    share_out,
)
from autofedavg.federation import waiting as patience
from autofedavg.federation.messages import Message, NoReply, arrays_of
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedprox import FedProx
from autofedavg.methods.local_only import LocalOnly
from autofedavg.studies.machine import Machine, about_run
from toy import (
    METRIC,
    TRAINING,
    DirectFleet,
    ToySite,
    cross_entropy,
    mlp,
    norm_net,
    rounds_of,
    same_round,
    toy_problem,
)

FORK = multiprocessing.get_context("fork")


def simulate(problem, workers, **how):
    return Simulator(problem, TRAINING, Seeds(7), workers=workers, threads=1, **how)


def with_site(problem, name, kind, *arguments):
    """The problem with one site's data replaced by a troubled kind."""
    troubled = kind(name, problem.sites[name].splits)
    troubled.arguments = arguments
    sites = {**problem.sites, name: troubled}
    return Problem(problem.network, problem.loss, sites, problem.metric)


# --- how many hands -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("K", "device", "cores", "heavy", "expected"),
    [
        (16, "cpu", 2, False, (2, 1)),
        (3, "cpu", 2, False, (3, 1)),
        (3, "cpu", 2, True, (3, 1)),
        (2, "cpu", 2, True, (2, 1)),
        (3, "cpu", 16, False, (3, 1)),
        (3, "cpu", 16, True, (1, 16)),
        (16, "cpu", 16, True, (16, 1)),
        (3, "cpu", 1, True, (1, 1)),
        (1, "cpu", 8, False, (1, 1)),
        (3, "cuda", 16, False, (1, 16)),
    ],
)
def test_workers_and_threads_by_clients_cores_and_work(K, device, cores, heavy, expected):
    assert plan_workers(K, device, cores, heavy=lambda: heavy) == WorkerPlan(*expected)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"workers": 1}, (1, 1)),
        ({"workers": 2}, (2, 1)),
        ({"threads": 1}, (3, 1)),
        ({"threads": 4}, (1, 4)),
        ({"workers": 1, "threads": 4}, (1, 4)),
        ({"workers": 3, "threads": 1}, (3, 1)),
    ],
)
def test_a_user_s_choice_is_kept(choice, expected):
    assert plan_workers(3, "cpu", 8, **choice) == WorkerPlan(*expected)


def test_threads_do_not_depend_on_workers():
    """Threads change the last bits of a convolution: workers must not."""
    for K in (2, 3, 8):
        for cores in (1, 2, 16):
            chosen = {plan_workers(K, "cpu", cores, w).threads for w in (None, 1, 2)}
            assert len(chosen) == 1


def test_the_work_is_not_measured_where_it_cannot_matter():
    def never():
        pytest.fail("the step was measured")

    assert plan_workers(16, "cpu", 16, heavy=never) == (16, 1)
    assert plan_workers(3, "cpu", 16, threads=2, heavy=never) == (1, 2)
    assert plan_workers(3, "cuda", 16, heavy=never) == (1, 16)


def test_workers_that_cannot_be_had_are_refused():
    wrong = r"^workers: 2 workers cannot be used with 2 threads on cpu; use 1 worker"
    with pytest.raises(ConfigError, match=wrong):
        plan_workers(3, "cpu", 4, workers=2, threads=2)


def test_workers_of_a_gpu_are_sites_side_by_side():
    assert plan_workers(3, "cuda", 4, workers=2) == (2, 4)
    assert plan_workers(3, "cuda", 4, workers=2, threads=2) == (2, 2)


def test_without_fork_one_process_does_everything(monkeypatch):
    monkeypatch.setattr(simulator, "can_fork", lambda: False)
    assert plan_workers(3, "cpu", 4) == (1, 4)
    with pytest.raises(ConfigError, match="2 workers cannot be used"):
        plan_workers(3, "cpu", 4, workers=2)


def test_a_step_is_heavy_by_its_arithmetic(problem):
    class Images(ToySite):
        def train_batches(self, seeds, t, training):
            yield torch.zeros(1, 8, 64, 64)

    site = {"A": Images("A", problem.sites["A"].splits)}
    images = Problem(lambda: nn.Conv2d(8, 64, 5), lambda network, x: network(x).mean(), site)
    before = torch.get_rng_state()
    assert not is_heavy(problem, TRAINING, Seeds(0))
    # 2 x 8 x 25 x 64 x 60 x 60 operations forward, three times that with backward: 276 million
    assert not is_heavy(images, TRAINING, Seeds(0))
    twice = Problem(lambda: nn.Conv2d(8, 128, 5), images.loss, site)
    assert is_heavy(twice, TRAINING, Seeds(0))
    assert torch.equal(torch.get_rng_state(), before)


def sites(**train):
    return [Site(name, {"train": n, "validation": 3}) for name, n in train.items()]


BY_EPOCHS = Training(epochs=1)


@pytest.mark.parametrize(
    ("train", "workers", "expected"),
    [
        ({"A": 10, "B": 10, "C": 10}, 1, [["A", "B", "C"]]),
        ({"A": 10, "B": 10, "C": 10}, 2, [["A", "C"], ["B"]]),
        ({"A": 10, "B": 20, "C": 90}, 2, [["C"], ["A", "B"]]),
        ({"A": 50, "B": 40, "C": 30, "D": 20}, 2, [["A", "D"], ["B", "C"]]),
        ({"A": 10, "B": 20}, 5, [["B"], ["A"]]),
    ],
)
def test_long_jobs_are_dealt_first(train, workers, expected):
    assert share_out(sites(**train), workers, BY_EPOCHS) == expected


def test_by_iterations_every_client_trains_as_long():
    """Only validation tells them apart."""
    uneven = [Site("A", {"train": 9, "validation": 0}), Site("B", {"train": 1, "validation": 90})]
    assert share_out(uneven, 2, Training(iterations=5)) == [["B"], ["A"]]


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "banana"])
def test_a_device_that_cannot_be_had_is_named(device):
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match=rf"^device: '{device}' cannot be used: .+; use --device"):
        checked_device(device)


def test_the_device_is_checked_before_anything_is_built(problem):
    with pytest.raises(ConfigError, match="'banana' cannot be used"):
        simulate(problem, None, device="banana")
    assert checked_device("cpu") == torch.device("cpu")


def test_a_problem_without_sites_is_refused(problem):
    with pytest.raises(ConfigError, match=r"^sites: there is no site to train on$"):
        simulate(Problem(problem.network, problem.loss, {}), None)


# --- the same numbers -----------------------------------------------------------------------------

METHODS = [
    AutoFedAvg(t0=2, S=3),
    AutoFedAvg(S=2, weights="layer", constraint="softmax", mode="train"),
    AutoFedAvg(S=5, steps_per_message=2),
    AutoFedAvg(S=3, learning="server", weights="layer", mode="train"),
    FedAvg(),
    FedProx(mu=0.1),
    LocalOnly(),
]
NAMES = ["auto-fedavg", "layer-wise", "two steps", "server", "fedavg", "fedprox", "local-only"]


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_one_worker_two_workers_and_no_engine_give_the_same_bits(method):
    problem = toy_problem(3, norm_net)
    plain = rounds_of(method, DirectFleet(problem), 3)
    for workers in (1, 2):
        with simulate(problem, workers) as transport:
            found = rounds_of(method, transport, 3, problem=problem)
        assert all(map(same_round, plain, found)), workers


def everything_asked(problem, workers):
    """Scores and costs, beside the rounds."""
    w0, _ = problem.initial(Seeds(7))
    with simulate(problem, workers) as transport:
        federation = Federation(transport)
        federation.training_over = True
        bank = federation.local_train(1, w0, T=1).w_k
        scores = federation.evaluate(w0, "test")
        local = federation.validate_local(1, bank, METRIC)
        account = federation.take_account()
        costs = {call: (cost.calls, cost.down, cost.up) for call, cost in account.items()}
    return scores, local, costs


def test_scores_and_bytes_do_not_depend_on_workers_either():
    problem = toy_problem(3, norm_net)
    assert everything_asked(problem, 1) == everything_asked(problem, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_going_on_in_another_simulator(workers):
    """A client that comes back without memory: shelves are empty, w and beta are known."""
    problem, method = toy_problem(3), AutoFedAvg(S=2)
    whole = rounds_of(method, DirectFleet(problem), 3)
    with simulate(problem, workers) as transport:
        rest = rounds_of(method, transport, 3, whole[0], problem=problem)
    assert all(map(same_round, whole[1:], rest))


class Swallowing:
    """A fleet whose first models never arrive."""

    def __init__(self, transport):
        self.transport, self.swallowed, self.roster = transport, False, transport.roster

    def ask(self, verb, messages, within):
        if verb == "share_models" and not self.swallowed:
            self.swallowed = True
            return {name: Message() for name in messages}
        return self.transport.ask(verb, messages, within)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_lost_shelf_in_the_simulator_is_filled_again(workers):
    """A step is asked of clients that never saw the models, and said they had them."""
    problem = toy_problem(3)
    w0, layout = problem.initial(Seeds(7))
    plan = AutoFedAvg().plan(layout, 1)
    beta = plan.gamma.initial(3)

    def stepped(transport, forget):
        federation = Federation(Swallowing(transport) if forget else transport)
        bank = federation.local_train(1, w0, T=1).w_k
        federation.share_models(1, bank)
        return federation.update_beta(1, 1, beta, **plan.message(1))

    with simulate(problem, workers) as transport, simulate(problem, workers) as other:
        expected, found = stepped(transport, forget=False), stepped(other, forget=True)
    assert all(torch.equal(expected[name], found[name]) for name in "ABC")


def test_gathering_the_bank_copies_nothing(problem):
    w0, _ = problem.initial(Seeds(7))
    with simulate(problem, 1) as transport:
        federation = Federation(transport)
        first = federation.local_train(1, w0, T=2).w_k
        again = federation.local_train(2, w0, T=2).w_k
        assert first.values.data_ptr() == again.values.data_ptr()


def test_gradients_lie_in_memory_that_workers_share(problem):
    w0, layout = problem.initial(Seeds(7))
    with simulate(problem, 2) as transport:
        how = {"length": layout.trainable, "data": "train", "mode": "eval"}
        first = Federation(transport).differentiate(1, 1, w0, "ABC", **how)
        before = {name: gradient.clone() for name, gradient in first.items()}
        again = Federation(transport).differentiate(1, 2, w0, "ABC", **how)
        for name in "ABC":
            assert first[name].data_ptr() == again[name].data_ptr()
            assert not torch.equal(before[name], again[name])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_simulation_leaves_global_randomness_alone(problem, workers):
    before = torch.get_rng_state()
    with simulate(problem, workers) as transport:
        rounds_of(AutoFedAvg(S=1), transport, 1, problem=problem)
    assert torch.equal(torch.get_rng_state(), before)


# --- workers that fail ----------------------------------------------------------------------------


class Dying(ToySite):
    """Its process is killed in round 2."""

    def train_batches(self, seeds, t, training):
        if t == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_batches(seeds, t, training)


def test_a_killed_worker_is_named(problem):
    children = multiprocessing.active_children()
    with simulate(with_site(problem, "B", Dying), 3) as transport:
        wrong = (
            r"^client B, local_train, round 2: did not answer \(its worker process ended with code "
            r"-9\); 2 of 3 answered, 3 needed; mend the client and resume the run$"
        )
        with pytest.raises(FederationError, match=wrong):
            rounds_of(FedAvg(), transport, 3, problem=problem)
    assert multiprocessing.active_children() == children


def test_with_a_quorum_the_others_go_on_without_a_killed_worker(problem):
    with simulate(with_site(problem, "B", Dying), 3) as transport:
        rounds = rounds_of(AutoFedAvg(S=2), transport, 4, quorum=2, problem=problem)
    assert [r.w_k.sites for r in rounds] == [("A", "B", "C")] + [("A", "C")] * 3
    assert rounds[3].beta[1] == rounds[0].beta[1]


class Refusing(ToySite):
    def train_batches(self, seeds, t, training):
        raise DataError("the scan is empty", where="site B, case 7", remedy="leave it out")


class Broken(ToySite):
    def train_batches(self, seeds, t, training):
        raise ZeroDivisionError("a bug in a data set")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_client_arrives_whole(problem, workers):
    w0, _ = problem.initial(Seeds(7))
    with simulate(with_site(problem, "B", Refusing), workers) as transport:
        federation = Federation(transport)
        wrong = "^site B, case 7: the scan is empty; leave it out$"
        with pytest.raises(DataError, match=wrong) as caught:
            federation.local_train(1, w0, T=1)
        assert caught.value.remedy == "leave it out"


def test_an_unforeseen_error_in_a_worker_arrives_with_its_traceback(problem):
    w0, _ = problem.initial(Seeds(7))
    with simulate(with_site(problem, "B", Broken), 2) as transport:
        federation = Federation(transport)
        with pytest.raises(AutoFedAvgError, match="a worker failed") as caught:
            federation.local_train(1, w0, T=1)
        assert "ZeroDivisionError: a bug in a data set" in str(caught.value)
        assert "in train_batches" in str(caught.value)


@pytest.mark.parametrize("kind", [Refusing, Broken])
def test_a_worker_goes_on_serving_after_an_error(problem, kind):
    w0, _ = problem.initial(Seeds(7))
    with simulate(with_site(problem, "B", kind), 2) as transport:
        federation = Federation(transport)
        with pytest.raises(AutoFedAvgError, match=r"empty|a worker failed"):
            federation.local_train(1, w0, T=1)
        assert len(federation.evaluate(w0, "validation").rows) == 18


class Waiting(ToySite):
    """Trains only after a gate has been opened."""

    def train_batches(self, seeds, t, training):
        (gate,) = self.arguments
        gate.wait(60)
        return super().train_batches(seeds, t, training)


def ask(transport, verb, w, within, **facts):
    message = Message(arrays_of(w), facts)
    return transport.ask(verb, dict.fromkeys("AB", message), within)


def test_a_client_that_takes_too_long_is_lost_for_this_call_only():
    problem = toy_problem(2)
    gate = FORK.Event()
    w0, _ = problem.initial(Seeds(7))
    with simulate(with_site(problem, "B", Waiting, gate), 2) as transport:
        late = ask(transport, "local_train", w0, 0.05, t=1, T=1)
        assert late["B"] == NoReply("no answer within 0.05 s")
        gate.set()
        after = ask(transport, "evaluate", w0, 60, split="validation")
    assert {name: list(answer.facts) for name, answer in after.items()} == {
        "A": ["scores"],
        "B": ["scores"],
    }


def test_closing_ends_a_worker_that_is_stuck(monkeypatch):
    problem = toy_problem(2)
    w0, _ = problem.initial(Seeds(7))
    join = BaseProcess.join
    monkeypatch.setattr(BaseProcess, "join", lambda self, wait=None: join(self, wait and 0.05))
    children = multiprocessing.active_children()
    with simulate(with_site(problem, "B", Waiting, FORK.Event()), 2) as transport:
        ask(transport, "local_train", w0, 0.05, t=1, T=1)
    assert multiprocessing.active_children() == children


def test_after_an_error_a_busy_worker_is_not_waited_for(monkeypatch):
    problem = toy_problem(2)
    w0, _ = problem.initial(Seeds(7))
    waits, join = [], BaseProcess.join
    monkeypatch.setattr(
        BaseProcess, "join", lambda self, wait=None: waits.append(wait) or join(self, wait)
    )
    children = multiprocessing.active_children()
    with (
        pytest.raises(FederationError, match=r"no answer within 0.05 s"),
        simulate(with_site(problem, "B", Waiting, FORK.Event()), 2) as transport,
    ):
        Federation(transport, exchange=Exchange(deadline=0.05)).local_train(1, w0, T=1)
    assert set(waits) == {None}
    assert multiprocessing.active_children() == children


# --- coming and going -----------------------------------------------------------------------------


def test_no_process_is_left_after_closing(problem):
    children = multiprocessing.active_children()
    transport = simulate(problem, 3)
    assert len(multiprocessing.active_children()) == len(children) + 3
    transport.close()
    assert multiprocessing.active_children() == children
    transport.close()


def test_no_process_is_left_after_an_error_either(problem):
    children = multiprocessing.active_children()
    w0, _ = problem.initial(Seeds(7))
    with (
        pytest.raises(DataError, match="the scan is empty"),
        simulate(with_site(problem, "B", Refusing), 2) as transport,
    ):
        Federation(transport).local_train(1, w0, T=1)
    assert multiprocessing.active_children() == children


def test_one_worker_needs_no_process(problem):
    children = multiprocessing.active_children()
    with simulate(problem, 1) as transport:
        assert transport.plan == (1, 1)
        assert multiprocessing.active_children() == children


def test_a_run_s_environment_records_the_workers_that_were_used(problem):
    with simulate(problem, 2) as transport:
        known = about_run(Machine(device="cpu"), Federation(transport), 0, {}, METRIC)
    assert (known["workers"], known["threads"]) == (2, 1)


def test_threads_are_given_back(problem):
    before = torch.get_num_threads()
    with Simulator(problem, TRAINING, Seeds(7), threads=before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_threads_are_given_back_when_the_network_is_refused(problem):
    before = torch.get_num_threads()
    wrong = Problem(nn.ReLU, problem.loss, problem.sites)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        Simulator(wrong, TRAINING, Seeds(7), threads=before + 1)
    try:
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


def test_workers_answer_even_if_this_process_has_used_threads(problem):
    """A forked process cannot start threads of OpenMP: workers must do without."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.rand(2_000_000, generator=torch.Generator()).exp().sum()
        wide = Problem(
            lambda: nn.Sequential(nn.Linear(4, 20_000), nn.Linear(20_000, 3)),
            cross_entropy,
            problem.sites,
        )
        w0, _ = wide.initial(Seeds(7))
        with simulate(wide, 2) as transport:
            bank = Federation(transport, exchange=Exchange(deadline=60)).local_train(1, w0, T=1).w_k
        assert bank.sites == ("A", "B", "C")
    finally:
        torch.set_num_threads(before)


def test_the_simulator_is_registered():
    assert ENGINES["simulator"] is Simulator
    assert next(iter(ENGINES)) == "simulator"  # the default, first in the list


def test_the_log_says_who_is_waited_for(monkeypatch, caplog):
    """A worker that is stopped hung a run without a word; `watch` shows the log."""
    monkeypatch.setattr(patience, "MINUTE", 0.2)
    caplog.set_level("INFO", logger="autofedavg")
    problem = toy_problem(3, mlp)
    w, _ = problem.initial(Seeds(7))
    with Simulator(problem, TRAINING, Seeds(7), workers=3) as transport:
        stuck = transport._workers[1]
        os.kill(stuck._process.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (stuck._process.pid, signal.SIGCONT)).start()
        bank = Federation(transport).local_train(1, w, T=1).w_k
    assert bank.sites == ("A", "B", "C")
    asked = f"local_train: waiting for {', '.join(stuck.names)}, "
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith(asked)]
    assert 1 <= len(said) <= 4  # after 0.2 s, 0.4 s and so on: others may be slow on a busy machine


def test_a_deadline_ends_the_waiting_as_before(monkeypatch):
    monkeypatch.setattr(patience, "MINUTE", 0.2)
    problem = toy_problem(2, mlp)
    w, _ = problem.initial(Seeds(7))
    with Simulator(problem, TRAINING, Seeds(7), workers=2) as transport:
        stuck = transport._workers[0]
        os.kill(stuck._process.pid, signal.SIGSTOP)
        message = Message(arrays_of(w), {"t": 1, "T": 1})
        began = time.monotonic()
        answers = transport.ask("local_train", dict.fromkeys("AB", message), 0.7)
        assert 0.6 < time.monotonic() - began < 5
        os.kill(stuck._process.pid, signal.SIGCONT)
    assert answers[stuck.names[0]] == NoReply("no answer within 0.7 s")
