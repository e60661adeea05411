"""What a site answers: what this job's method asks for in its rounds, and nothing else.

A round may ask a site for this (decision 43). The site refuses everything else; the reason goes to
the server and into the site's own log.

| request          | in round t of 1 .. T                | it must say                            |
| ---------------- | ----------------------------------- | -------------------------------------- |
| `hello`          | at any time                         |                                        |
| `local_train`    | every round                         | T and the method's own values          |
| `share_models`   | rounds that learn, at the clients   |                                        |
| `update_beta`    | rounds that learn, at the clients   | the job's values for one of its steps  |
| `differentiate`  | rounds that learn, at the server    | one of its steps; the split learned on |
| `mixture_losses` | with t0 = "auto", at the clients    | batches of its own; the split          |
| `model_losses`   | with t0 = "auto", at the server     | batches of its own; the split          |
| `share_keys`     | every round, if it learns blindly   |                                        |
| `masked_gradient`| rounds that learn blindly, not T    | the job's values for it                |
| `validate_local` | every round, unless it learns so    | the study's metric                     |
| `evaluate`       | rounds with a global model          | split `validation`                     |
|                  | such rounds that `test_every` names | split `test`                           |
|                  | round T, once training is over      | split `test`                           |
|                  | round T of a job with a `ceiling`   | split `test`, and which half of it     |
| `differentiate`  | round T of a job with a `ceiling`   | a step, split `test`, and which half   |
| `class_counts`   | rounds that weigh by class          |                                        |

A job whose sites disclose means alone (decision 64) asks for them in every `evaluate`.
With t0 = "auto" every round may learn: the site cannot know which do, and answers each once.
A site cannot see the server's clock. So it accepts the first request for the final test, unless all
clients must train and this process has trained but not yet in round T. That test ends training:
the site then refuses rounds before T. Requests about a half of the test cases come after it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from autofedavg.core.bank import Layout
from autofedavg.core.errors import AutoFedAvgError, from_outside, printable
from autofedavg.core.site import Facts
from autofedavg.engines.remote.job import Job
from autofedavg.experiment.oracle import Fit, times_asked
from autofedavg.federation.calls import MENDS
from autofedavg.federation.disclosure import means_wanted
from autofedavg.federation.messages import KNOWN, PORT_VALUES
from autofedavg.federation.serialization import facts_text

HOLDERS = ("update_beta", "mixture_losses")  # requests of sites that hold all models


class Refused(AutoFedAvgError):
    """A site refuses a request; says nothing of its data, so it may be sent to the server."""


class Policy:
    """Which requests of a job a site answers, given the layout of its network."""

    def __init__(self, job: Job, layout: Layout) -> None:
        self._job, self._layout, self._row = job, layout, job.row
        exchange, K = self._row.exchange, len(job.sites)
        self._all_train = exchange.quorum("local_train", self._row.general.quorum, K) == K
        # The port repeats a call after silence and after each "missing"; a transport may, too.
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
        """Resets the counts: after a hello, a server that resumes a run repeats a round."""
        self._asked.clear()

    def check(self, verb: str, facts: Facts) -> None:
        """Raises `Refused`, with the reason, if the job does not ask for this."""
        if verb not in KNOWN:
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
        said = method_values(verb, facts)
        if said not in wanted:
            other = {k: v for k, v in said.items() if all(v != w.get(k) for w in wanted)}
            lacking = sorted(set.intersection(*map(set, wanted)) - said.keys())
            with_what = f"with {from_outside(other)}" if other else f"without {', '.join(lacking)}"
            raise Refused(f"{place} is not asked for by this job {with_what}")
        self._check_order(place, t, said)
        key = (verb, t, said.get("s"), said.get("split"), said.get("half"))
        self._asked[key] += 1
        if self._asked[key] > self._times(verb, t, said) * self._most:
            raise Refused(f"{place} was asked for {self._asked[key] - 1} times already")

    def answered(self, verb: str, facts: Facts) -> None:
        """Records a request that was answered in full."""
        if verb == "local_train":
            self._trained = max(self._trained, int(facts["t"]))

    def requests(self, t: int) -> dict[str, list[Facts]]:
        """What round t may ask for: by request, the sets of values of which it must have one."""
        if self._known[0] == t:
            return self._known[1]
        general, T = self._row.general, self._row.T
        found = self._row.method.asks(t, T, self._layout)
        scored = found.pop("evaluate", [])
        found["local_train"] = [{"T": T, **how} for how in found["local_train"]]
        if self._row.method.shows_models:
            found["validate_local"] = [{"metric": self._row.task.metric}]
        # A site without a personal model scores the global one alone, or is asked for one it keeps.
        kinds = [*scored, {}] if any(scored) else scored
        found["evaluate"] = [{"split": "validation", **how} for how in kinds]
        if t == T or (scored and general.test_every and t % general.test_every == 0):
            # Personal models are tested with the last global one; the best ones on their own.
            tested = kinds if t == T and general.select == "last" and kinds else [{}]
            found["evaluate"] += [{"split": "test", **how} for how in tested]
        wanted = means_wanted(self._row.exchange, self._row.task.metric)
        found["evaluate"] = [{**how, **wanted} for how in found["evaluate"]]
        if t == T and general.ceiling:
            for verb, asked in Fit().asks().items():
                found[verb] = [*found.get(verb, []), *asked]
        self._known = (t, json.loads(facts_text(found)))  # as values arrive in a message
        return self._known[1]

    def _check_order(self, place: str, t: int, said: Facts) -> None:
        """The final test ends training, which does not start again."""
        T = self._row.T
        if self._over and t < T:
            raise Refused(
                f"{place} comes after the final test of this job, which ends training",
                remedy="restart the site to start the job again",
            )
        if "half" in said:
            if not self._over:
                raise Refused(f"{place} on half of the test cases comes before the final test")
        elif t == T and said.get("split") == "test":
            if self._all_train and 0 < self._trained < T:
                raise Refused(f"{place} on test cases: round {T} has not been trained here yet")
            self._over = True

    def _times(self, verb: str, t: int, said: Facts) -> int:
        """How many calls of a round make the same request."""
        if "half" in said:
            return times_asked(verb, len(self._row.general.ceiling), len(self._job.sites))
        if verb == "share_models":  # again for a site that has lost the models before a step
            return 1 + sum(len(self.requests(t).get(call, ())) for call in HOLDERS)
        if verb in HOLDERS:
            return 2
        final = verb == "evaluate" and said.get("split") == "test" and t == self._row.T
        # The best or last global model, every client's own, the last global one, the round's.
        return len(self._job.sites) + 3 if final else self.requests(t)[verb].count(said)


def method_values(verb: str, facts: Facts) -> Facts:
    """The values of a request that are the method's or the run's, not the port's own."""
    port = KNOWN[verb] & PORT_VALUES
    return {k: v for k, v in facts.items() if k not in port}
