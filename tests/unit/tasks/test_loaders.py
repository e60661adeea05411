"""A user's own data loaders as a site: batches follow the run's seed, whatever was asked before."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from autofedavg.core.errors import DataError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.studies.federate import federate
from autofedavg.studies.machine import Machine
from autofedavg.tasks.loaders import METRIC, LoaderData, LoaderSite
from toy import CPU, mlp, seeded

SEEDS = Seeds(3)


def numbers(start, n):
    """Cases that can be told apart: the number of the case in every place."""
    x = torch.arange(start, start + n, dtype=torch.float32).unsqueeze(1).repeat(1, 4)
    return TensorDataset(x, torch.arange(n) % 3)


class Jittered(Dataset):
    """Augmentation as people write it: drawn from PyTorch's global generator."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        x, y = self.inner[i]
        return x + torch.rand(4), y


def loader(data, generator=True, **how):
    own = {"generator": torch.Generator().manual_seed(1)} if generator else {}
    return DataLoader(data, batch_size=2, **({"shuffle": True} | how), **own)


def confidence(network, batch):
    x, y = batch
    return torch.softmax(network(x - 103), dim=1)[torch.arange(len(y)), y]


def loss(network, batch):
    x, y = batch
    return nn.functional.cross_entropy(network(x / 7), y)


def site(generator=True, wrap=lambda data: data, **others):
    """Seven training cases (four batches) and five validation cases (three batches)."""
    return LoaderSite(
        train=loader(wrap(numbers(0, 7)), generator),
        validation=loader(wrap(numbers(100, 5)), generator),
        **others,
    )


def data(**how):
    return LoaderData("A", site(**how), confidence)


def cases(batches):
    return [x[:, 0].tolist() for x, _ in batches]


def flat(lists):
    return [number for numbers in lists for number in numbers]


def trained_on(local, t, **training):
    return cases(local.train_batches(SEEDS, t, Training(**training)))


# --- cases ----------------------------------------------------------------------------------------


def test_cases_are_counted_in_the_data_sets():
    assert data().cases() == {"train": 7, "validation": 5}
    more = data(test=loader(numbers(200, 3)), holdout=loader(numbers(300, 2)))
    assert more.cases() == {"train": 7, "validation": 5, "test": 3, "holdout": 2}


def test_an_empty_loader_is_refused():
    empty = DataLoader(numbers(0, 1), batch_size=2, drop_last=True)
    wrong = "^site A: the test loader is empty; give every site at least one batch of each split$"
    with pytest.raises(DataError, match=wrong):
        data(test=empty)


# --- training batches -----------------------------------------------------------------------------


def test_epochs_are_whole_passes():
    seen = trained_on(data(), 1, epochs=2)
    assert len(seen) == 8
    first, second = flat(seen[:4]), flat(seen[4:])
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second


@pytest.mark.parametrize("iterations", [1, 3, 4, 5, 11])
def test_iterations_go_on_into_another_pass(iterations):
    seen = trained_on(data(), 1, iterations=iterations)
    assert len(seen) == iterations
    assert seen == trained_on(data(), 1, iterations=11)[:iterations]


def test_training_batches_are_the_round_s_whatever_came_before():
    local = data()
    third = trained_on(local, 3, epochs=1)
    for t in (1, 2, 3):
        again = trained_on(local, t, epochs=2)[:4]
    assert again == third
    assert trained_on(local, 4, epochs=1) != third


def test_training_batches_are_the_run_s_and_the_site_s():
    first = trained_on(data(), 1, epochs=1)
    training = Training(epochs=1)
    assert cases(data().train_batches(Seeds(4), 1, training)) != first
    other = LoaderData("B", site(), confidence)
    assert cases(other.train_batches(SEEDS, 1, training)) != first


def test_an_abandoned_pass_leaves_no_trace():
    local = data()
    batches = local.train_batches(SEEDS, 1, Training(epochs=1))
    next(batches)
    assert trained_on(local, 1, epochs=1) == trained_on(data(), 1, epochs=1)


def test_a_loader_s_own_generator_is_seeded_anew_at_every_pass():
    own = torch.Generator().manual_seed(1)
    local = LoaderData(
        "A",
        LoaderSite(
            DataLoader(numbers(0, 7), 2, shuffle=True, generator=own), loader(numbers(0, 3))
        ),
        confidence,
    )
    first = trained_on(local, 1, epochs=1)
    own.manual_seed(999)
    assert trained_on(local, 1, epochs=1) == first


def test_a_sampler_s_own_generator_is_seeded_too():
    def fresh(seed):
        sampler = RandomSampler(numbers(0, 7), generator=torch.Generator().manual_seed(seed))
        train = DataLoader(numbers(0, 7), batch_size=2, sampler=sampler)
        return LoaderData("A", LoaderSite(train, loader(numbers(100, 5))), confidence)

    local = fresh(1)
    first = trained_on(local, 1, epochs=1)
    assert trained_on(local, 1, epochs=1) == first
    assert trained_on(fresh(2), 1, epochs=1) == first


class Plain:
    """No DataLoader: it has a length, cases that can be counted, and passes."""

    def __init__(self, data):
        self.dataset = data

    def __len__(self):
        return -(-len(self.dataset) // 2)

    def __iter__(self):
        for part in torch.randperm(len(self.dataset)).split(2):
            yield self.dataset[part]


def test_whatever_gives_batches_is_a_loader():
    local = LoaderData("A", LoaderSite(Plain(numbers(0, 7)), Plain(numbers(100, 5))), confidence)
    assert local.cases() == {"train": 7, "validation": 5}
    first = trained_on(local, 1, epochs=2)
    assert [sorted(flat(first[:4])), sorted(flat(first[4:]))] == [list(range(7))] * 2
    assert trained_on(local, 1, epochs=2) == first != trained_on(local, 2, epochs=2)
    steps = weight_batches(local, range(1, 7))
    assert weight_batches(local, [5, 2, 6])[2] == steps[2]
    sites = {"A": LoaderSite(Plain(numbers(0, 7)), Plain(numbers(100, 5)))}
    sites["B"] = LoaderSite(Plain(numbers(7, 7)), Plain(numbers(100, 5)))
    how = {"method": "fedavg", "rounds": 1, "machine": Machine(device="cpu")}
    assert federate(mlp, loss, sites, confidence, **how).summary.by_site.keys() == {"A", "B"}


# --- batches for the weights ----------------------------------------------------------------------


def weight_batches(local, steps, t=1, split="validation"):
    return {s: local.weight_batch(SEEDS, t, s, split, 4)[0].tolist() for s in steps}


KINDS = {
    "own generator": {},
    "no generator": {"generator": False},
    "augmented": {"wrap": Jittered},
    "augmented, no generator": {"generator": False, "wrap": Jittered},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    "order", [[5, 2, 7, 1, 3, 6, 4], [7, 6, 5, 4, 3, 2, 1], [1, 1, 2, 2, 4, 4, 5]]
)
def test_a_step_s_batch_is_the_same_in_any_order(order, kind):
    in_order = weight_batches(data(**kind), range(1, 8))
    shuffled = weight_batches(data(**kind), order)
    assert all(shuffled[s] == in_order[s] for s in order)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_other_requests_in_between_change_nothing(kind):
    expected = weight_batches(data(**kind), range(1, 8))
    local = data(**kind)
    network = seeded(mlp, 0)
    for s in range(1, 8):
        assert weight_batches(local, [s])[s] == expected[s]
        trained_on(local, 2, iterations=2)
        local.score(network, "validation")
        weight_batches(local, [2], t=9)
        weight_batches(local, [s], split="train")


def test_steps_walk_through_the_split_pass_by_pass():
    seen = weight_batches(data(), range(1, 7))
    walked = [sorted(row[0] for s in steps for row in seen[s]) for steps in ((1, 2, 3), (4, 5, 6))]
    assert walked == [[100.0, 101.0, 102.0, 103.0, 104.0]] * 2
    assert [seen[s] for s in (1, 2, 3)] != [seen[s] for s in (4, 5, 6)]


def test_rounds_have_passes_of_their_own():
    local = data()
    assert weight_batches(local, [1, 2, 3], t=1) != weight_batches(local, [1, 2, 3], t=2)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weight_batches_leave_global_randomness_alone(kind):
    local = data(**kind)
    before = torch.get_rng_state()
    weight_batches(local, [2, 1, 3, 4])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_split_without_a_loader_is_named():
    with pytest.raises(DataError, match=r"^site A: there is no holdout loader; add holdout=$"):
        weight_batches(data(), [1], split="holdout")
    found = weight_batches(data(holdout=loader(numbers(300, 2))), [1], split="holdout")
    assert sorted(row[0] for row in found[1]) == [300.0, 301.0]


# --- scores ---------------------------------------------------------------------------------------


def test_scores_are_named_by_split_and_position():
    ordered = loader(numbers(100, 5), shuffle=False)
    local = LoaderData("A", LoaderSite(loader(numbers(0, 7)), ordered), confidence)
    network = seeded(mlp, 0)
    with torch.no_grad():
        scores = local.score(network, "validation")
        expected = confidence(network, numbers(100, 5).tensors)
    assert [score.case for score in scores] == [f"validation-{i:05d}" for i in range(5)]
    assert {score.metric for score in scores} == {METRIC}
    assert [score.value for score in scores] == pytest.approx(expected.tolist())


def test_without_a_test_loader_the_validation_cases_are_scored_again():
    ordered = loader(numbers(100, 5), shuffle=False)
    local = LoaderData("A", LoaderSite(loader(numbers(0, 7)), ordered), confidence)
    network = seeded(mlp, 0)
    validation, test = local.score(network, "validation"), local.score(network, "test")
    assert [s.value for s in validation] == [s.value for s in test]
    assert test[0].case == "test-00000"


def test_a_loader_may_give_other_cases_than_its_data_set_has():
    """Without the last batch, or by a sampler: what is scored is what it gives."""
    few = RandomSampler(numbers(100, 5), num_samples=3)
    sites = {
        "A": LoaderSite(loader(numbers(0, 7)), loader(numbers(100, 5), drop_last=True)),
        "B": LoaderSite(loader(numbers(7, 7)), DataLoader(numbers(100, 5), sampler=few)),
    }
    result = federate(
        mlp, loss, sites, confidence, method="fedavg", rounds=1, machine=Machine(device="cpu")
    )
    assert result.summary.by_site.keys() == {"A", "B"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_case_keeps_its_name_and_score_however_often_it_is_scored(kind):
    """Wilcoxon pairs the cases of two runs by name: a shuffled loader must not rename them."""
    local, network = data(**kind), seeded(mlp, 0)
    first = local.score(network, "validation")
    trained_on(local, 1, epochs=1)
    assert local.score(network, "validation") == first
    assert data(**kind).score(network, "validation") == first


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_scoring_leaves_global_randomness_alone(kind):
    local, network = data(**kind), seeded(mlp, 0)
    before = torch.get_rng_state()
    local.score(network, "validation")
    assert torch.equal(torch.get_rng_state(), before)


# --- through a client -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_client_trains_alike_whatever_kind_of_loader(kind):
    def trained(before=()):
        local = data(**kind)
        problem = Problem(mlp, loss, {"A": local}, METRIC)
        trainer = LocalTrainer(seeded(mlp, 0), loss, Training(epochs=2, learning_rate=0.01), CPU)
        client = Client("A", local, trainer, SEEDS, ClientState())
        w0, _ = problem.initial(SEEDS)
        for t in (*before, 5):
            answer = client.answer("local_train", Message(arrays_of(w0), {"t": t, "T": 9}))
        return answer.arrays["values"]

    untouched = torch.get_rng_state()
    first = trained()
    assert torch.equal(trained(before=(1, 5, 2)), first)
    with torch.random.fork_rng():
        torch.manual_seed(123)
        assert torch.equal(trained(), first)
    assert torch.equal(torch.get_rng_state(), untouched)


class Restless(nn.Module):
    """A network that draws from Python's and NumPy's global generators, as stochastic depth may."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(x) * (1 + random.random() + float(np.random.rand()))


def test_a_network_s_own_draws_are_the_run_s_with_any_number_of_workers():
    """They follow the batches' seeds, and leave the process's own generators alone."""

    def trained(workers):
        sites = {name: site() for name in "ABC"}
        machine = Machine(device="cpu", workers=workers, threads=1)
        result = federate(
            Restless, loss, sites, confidence, rounds=2, training=Training(epochs=1),
            machine=machine, select="last",
        )  # fmt: skip
        return result.network.state_dict()

    random.seed(1)
    before = random.getstate()
    first = trained(1)
    assert random.getstate() == before
    random.seed(2)
    for other in (trained(1), trained(2)):
        assert all(torch.equal(other[name], value) for name, value in first.items())
