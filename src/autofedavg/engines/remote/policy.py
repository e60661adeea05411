"""What a site answers: what this job's method asks for in its rounds, and nothing else.

A round may ask a site for this (decision 43). All else is refused, in words that go back to the
server and into the site's own log:

| request          | in round t of 1 .. T                | it must say                            |
| ---------------- | ----------------------------------- | -------------------------------------- |
| `hello`          | at any time                         |                                        |
| `local_train`    | every round                         | T and the method's own values          |
| `share_models`   | rounds that learn, at the clients   |                                        |
| `update_beta`    | rounds that learn, at the clients   | the job's values for one of its steps  |
| `differentiate`  | rounds that learn, at the server    | one of its steps; the split learned on |
| `validate_local` | every round                         | the study's metric                     |
| `evaluate`       | rounds with a global model          | split `validation`                     |
|                  | such rounds that `test_every` names | split `test`                           |
|                  | round T, once training is over      | split `test`                           |
| `class_counts`   | rounds that weigh by class (FedMA)  |                                        |

A site cannot see the server's clock. So the first request for the final test is believed, unless
this process has trained and not yet in round T, though every client must; and it closes training:
rounds before T are then refused.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from autofedavg.core.bank import Layout
from autofedavg.core.errors import AutoFedAvgError, from_outside, printable
from autofedavg.core.site import Facts
from autofedavg.engines.remote.job import Job
from autofedavg.federation.calls import MENDS
from autofedavg.federation.serialization import facts_text

# What the port itself says in a request: how models travel, and which.
PORT: dict[str, frozenset[str]] = {
    "local_train": frozenset({"form", "sent", "up"}),
    "share_models": frozenset({"sites", "digest", "digests", "sent"}),
    "update_beta": frozenset({"digest"}),
    "differentiate": frozenset({"sent"}),
    "validate_local": frozenset({"digest", "form"}),
    "evaluate": frozenset({"form", "sites", "sent"}),
    "class_counts": frozenset(),
}


class Refused(AutoFedAvgError):
    """This site does not do that; says nothing of its data, so it may be sent on."""


class Policy:
    """Which requests of a job a site answers.

    Args:
        job: names method, rounds, sites and what is tested.
        layout: of the job's network.
    """

    def __init__(self, job: Job, layout: Layout) -> None:
        self._job, self._layout, self._row = job, layout, job.row
        exchange, K = self._row.exchange, len(job.sites)
        self._all_train = exchange.quorum("local_train", self._row.general.quorum, K) == K
        # A call asks again after silence, and after every "I lack it"; a carrier may ask twice.
        self._most = 2 * (1 + exchange.retries + MENDS)
        self._known: tuple[int, dict[str, list[Facts]]] = (0, {})
        self._asked: Counter[tuple[Any, ...]] = Counter()
        self._trained = 0
        self._over = False

    def history(self) -> Facts:
        """What was asked for so far, as plain values."""
        asked = [[*key, times] for key, times in self._asked.items()]
        return {"asked": asked, "trained": self._trained, "over": self._over}

    def restore(self, history: Facts) -> None:
        """Continues from an earlier process's `history`."""
        self._asked = Counter({tuple(key): times for *key, times in history["asked"]})
        self._trained, self._over = history["trained"], history["over"]

    def begin(self) -> None:
        """A server has said hello: one that goes on with a run asks for a round again."""
        self._asked.clear()

    def check(self, verb: str, facts: Facts) -> None:
        """Refuses what the job does not ask for.

        Raises:
            Refused: says why.
        """
        if verb not in PORT:
            raise Refused(f"unknown request {printable(verb)[:80]!r}")
        t, T = facts.get("t"), self._row.T
        if type(t) is not int or not 1 <= t <= T:
            asked = "none" if t is None else from_outside(t)
            raise Refused(f"{verb} belongs to a round, 1 to {T}, and was asked for {asked}")
        place = f"{verb} of round {t}"
        wanted = self.requests(t).get(verb)
        if not wanted:
            name = getattr(self._row.method, "name", "its method")
            raise Refused(f"{place} is not asked for by this job ({name})")
        said = {k: v for k, v in facts.items() if k not in PORT[verb] and k != "t"}
        said = {k: v for k, v in said.items() if (k, v) != ("mu", 0.0)}  # no pull at all
        if said not in wanted:
            other = {k: v for k, v in said.items() if all(v != w.get(k) for w in wanted)}
            raise Refused(f"{place} is not asked for by this job with {from_outside(other)}")
        self._in_time(place, verb, t, said)
        key = (verb, t, said.get("s"), said.get("split"))
        self._asked[key] += 1
        if self._asked[key] > self._times(verb, t, said) * self._most:
            raise Refused(f"{place} was asked for {self._asked[key] - 1} times already")

    def answered(self, verb: str, facts: Facts) -> None:
        """Takes note of a request that was answered in full."""
        if verb == "local_train":
            self._trained = max(self._trained, int(facts["t"]))

    def requests(self, t: int) -> dict[str, list[Facts]]:
        """What round t may ask for: by request, the values it must have, one set of them."""
        if self._known[0] == t:
            return self._known[1]
        general, T = self._row.general, self._row.T
        found = self._row.method.asks(t, T, self._layout)
        scored = found.pop("evaluate", [])
        found["local_train"] = [{"T": T, **how} for how in found["local_train"]]
        found["validate_local"] = [{"metric": self._row.task.metric}]
        found["evaluate"] = [{"split": "validation"} for _ in scored]
        if t == T or (scored and general.test_every and t % general.test_every == 0):
            found["evaluate"].append({"split": "test"})
        # As they come over a wire.
        self._known = (t, json.loads(facts_text(found)))
        return self._known[1]

    def _in_time(self, place: str, verb: str, t: int, said: Facts) -> None:
        """Training ends with the final test, and does not begin again."""
        T = self._row.T
        if self._over and t < T:
            raise Refused(
                f"{place} comes after the final test of this job, which ends training",
                remedy="restart the site to begin the job anew",
            )
        if t == T and said.get("split") == "test":
            if self._all_train and 0 < self._trained < T:
                raise Refused(f"{place} on test cases: round {T} has not been trained here yet")
            self._over = True

    def _times(self, verb: str, t: int, said: Facts) -> int:
        """How many calls of a round ask for the same."""
        if verb == "share_models":  # and again for a site that has lost them before a step
            return 1 + len(self.requests(t)["update_beta"])
        if verb == "update_beta":
            return 2
        final = verb == "evaluate" and said == {"split": "test"} and t == self._row.T
        # The best or last global model, every client's own, the last global one, the round's.
        return len(self._job.sites) + 3 if final else 1
