"""What the server sees of a blind run, with one site on its side: sums over the other three.

K = 4. The server has every message; site D gives it its private key and all that it knows. Nothing
of that is, or goes along with, a model, a step, a gradient or a weight of A, B or C alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

import pytest
import torch
from torch import nn

from autofedavg.federation.fixed_point import from_fixed, summed
from autofedavg.federation.masks import Address, MaskKey
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import decode, encode
from blind_runs import blind_run
from toy import DirectFleet, toy_problem

HONEST, TRAITOR = ("A", "B", "C"), "D"
ALL = (*HONEST, TRAITOR)


def wide_mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Large enough that chance correlations are small: 1,603 numbers."""
    return nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 3)).to(dtype)


@dataclass
class WireTap(DirectFleet):
    """Every message as the bytes that travel, and what sites keep to themselves."""

    def __post_init__(self):
        super().__post_init__()
        self.down: list[tuple[str, str, Message]] = []
        self.up: list[tuple[str, str, Message]] = []
        self.secrets: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.clients}
        self.content: dict[tuple[str, str, int], dict[str, torch.Tensor]] = {}
        for name, client in self.clients.items():
            self._listen(name, client)

    def ask(self, verb, messages, within):
        sent = {name: decode(encode(message)) for name, message in messages.items()}
        self.down += [(verb, name, message) for name, message in sent.items()]
        replies = super().ask(verb, sent, within)
        found = {name: decode(encode(reply)) for name, reply in replies.items()}
        self.up += [(verb, name, reply) for name, reply in found.items()]
        return found

    def _listen(self, name, client):
        """Takes down, at the site itself, what must not leave it."""
        trained, gradient = client.blind.trained, client.blind.gradient
        secrets = self.secrets[name]

        def on_trained(job, start, model, t, loss, price):
            secrets[f"w of round {t}"] = model.values.clone()
            secrets[f"step of round {t}"] = (model.values - start.values).clone()
            secrets[f"theta of round {t}"] = job.state["theta"].clone()
            secrets[f"loss of round {t}"] = torch.tensor([loss], dtype=torch.float64)
            reply = trained(job, start, model, t, loss, price)
            self.content[name, "local_train", t] = client.client_state.masks.done[1]
            return reply

        def on_gradient(message, differentiate, price=None):
            t, taken = message.facts["t"], []

            def listening(s):
                found, loss = differentiate(s)
                taken.append(found.clone())
                return found, loss

            reply = gradient(message, listening, price)
            secrets[f"gradient of round {t}"] = torch.stack(taken).mean(dim=0)
            return reply

        client.blind.trained, client.blind.gradient = on_trained, on_gradient


@pytest.fixture(
    scope="module", params=[{"sketch": 0}, {"sketch": 400, "constraint": "softmax"}], ids=str
)
def tap(request) -> WireTap:
    problem = toy_problem(4, wide_mlp)
    made = WireTap(problem)
    blind_run(made, problem, **request.param)
    return made


def arrays(messages) -> Iterator[tuple[str, torch.Tensor]]:
    for verb, site, message in messages:
        for name, array in message.arrays.items():
            yield f"{verb} {site} {name}", array


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = one.double() - one.double().mean(), other.double() - other.double().mean()
    return float((a @ b) / (a.norm() * b.norm()))


def test_every_reply_is_integers_and_a_digest(tap):
    """All that sites say besides scores of the global model."""
    for verb, _, reply in tap.up:
        if verb == "evaluate":
            assert set(reply.facts) == {"scores"}
        elif verb == "share_keys":
            assert set(reply.facts) == {"key"}
        else:
            assert set(reply.facts) == ({"kept"} if verb == "local_train" else set())
            kinds = {name: array.dtype for name, array in reply.arrays.items()}
            assert kinds == {"narrow": torch.int32, "wide": torch.int64}
            continue
        assert not reply.arrays


def test_masked_integers_are_uniform(tap):
    """Every bit of every masked number is a fair coin."""
    narrow = [a for name, a in arrays(tap.up) if name.endswith("narrow")]
    wide = [a for name, a in arrays(tap.up) if name.endswith("wide")]
    for values, bits in ((torch.cat(narrow), 32), (torch.cat(wide), 64)):
        ones = torch.stack([((values >> k) & 1).double().mean() for k in range(bits)])
        assert float((ones - 0.5).abs().max()) < 5 * 0.5 / len(values) ** 0.5


def test_nothing_on_the_wire_is_or_goes_along_with_a_secret(tap):
    """Down or up, to and from every site; the traitor's own messages among them."""
    seen = [*arrays(tap.down), *arrays(tap.up)]
    for site in HONEST:
        for what, secret in tap.secrets[site].items():
            for where, array in seen:
                if array.numel() != secret.numel():
                    continue
                assert not torch.equal(array.double(), secret.double()), (where, site, what)
                masked = not array.is_floating_point()
                if masked and secret.numel() > 100:
                    assert abs(correlation(array, secret)) < 6 / secret.numel() ** 0.5, where
    known = {
        float(x) for s in HONEST for k, v in tap.secrets[s].items() if v.numel() == 1 for x in v
    }
    known -= {float(x) for x in tap.secrets[TRAITOR]["theta of round 1"]}  # all begin there
    said = {float(x) for _, array in seen if array.is_floating_point() for x in array.flatten()}
    assert not known & said


def stripped(tap: WireTap, site: str, t: int, verb: str, message: Message, reply: Message):
    """A site's reply without the masks that it shares with the traitor."""
    keys = message.facts["sum"]["keys"]
    key = MaskKey(tap.clients[TRAITOR].client_state.masks.private)
    pair = {name: keys[name] for name in ALL if name in (site, TRAITOR)}
    zeros = {name: torch.zeros_like(array) for name, array in reply.arrays.items()}
    at = Address(t, verb, message.facts["sum"]["attempt"])
    shared = key.masked(zeros, TRAITOR, pair, at)  # what the traitor has, the site has negated
    return {name: reply.arrays[name] + shared[name] for name in reply.arrays}


def test_with_a_traitor_the_server_has_the_sum_of_the_other_three_and_no_smaller_one(tap):
    checked = 0
    pairs = list(zip(tap.down, tap.up, strict=True))
    for t in (1, 2, 3):
        parts = {
            site: stripped(tap, site, t, verb, message, reply)
            for (verb, site, message), (_, _, reply) in pairs
            if verb == "local_train" and site in HONEST and message.facts["t"] == t
        }
        truth = {site: tap.content[site, "local_train", t] for site in HONEST}
        whole, real = summed(parts.values()), summed(truth.values())
        assert all(torch.equal(whole[name], real[name]) for name in real)
        assert float(from_fixed(whole["narrow"], 4).abs().max()) < 10
        for some in chain(combinations(HONEST, 1), combinations(HONEST, 2)):
            found = summed(parts[site] for site in some)["narrow"]
            plain = summed(truth[site] for site in some)["narrow"]
            assert abs(correlation(found, plain)) < 6 / len(plain) ** 0.5
            assert int(found.abs().max()) > 2**30
            checked += 1
    assert checked == 18


def test_what_comes_down_is_the_same_for_every_site_but_for_its_own_digest(tap):
    """A site learns w, U and R g: nothing that is meant for another one."""
    for verb in ("local_train", "masked_gradient", "evaluate"):
        by_site = {
            site: [message for v, s, message in tap.down if (v, s) == (verb, site)] for site in ALL
        }
        for messages in zip(*by_site.values(), strict=True):
            first = messages[0]
            for other in messages[1:]:
                assert first.arrays.keys() == other.arrays.keys()
                assert all(torch.equal(first.arrays[k], other.arrays[k]) for k in first.arrays)
                own = {"kept", "hold"}
                facts = [{k: v for k, v in m.facts.items() if k not in own} for m in (first, other)]
                assert facts[0] == facts[1]
