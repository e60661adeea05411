"""What sites say that their differentially private replies have cost, at the server."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from autofedavg.core.errors import from_outside
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.federation.messages import Message
from autofedavg.federation.replies import LONGEST_NAME, SAME_STUDY, BadReply, finite, lacks

MOST_STEPS = 10**9
WEIGHING = frozenset({"update_beta", "differentiate", "masked_gradient"})  # steps on beta


class Spent(NamedTuple):
    """Releases about one group of a site's patients: chance q, noise multiplier sigma."""

    group: str
    q: float
    sigma: float


class Spending:
    """Collects the prices of private replies.

    A reply must have one where the study asks for noise, and only there.
    """

    def __init__(self, privacy: Privacy = NONE) -> None:
        self._private = {"local_train"} if privacy.train else set()
        self._private |= WEIGHING if privacy.theta else set()
        self._taken: dict[str, Counter[Spent]] = {}

    def private(self, call: str) -> bool:
        """Whether replies to a call are noisy, and have no loss."""
        return call in self._private

    def note(self, call: str, site: str, answer: Message) -> None:
        """Records the price of a reply.

        Raises:
            BadReply: it has none, an impossible one, or one that nobody asked for.
        """
        if lacks(answer):
            return
        if call not in self._private:
            if "spent" in answer.facts:
                raise BadReply("made a private reply that nobody asked for", SAME_STUDY)
            return
        said = answer.facts.get("spent")
        if not isinstance(said, list) or len(said) != 4 or not isinstance(said[0], str):
            raise BadReply(f"the price of its reply is {from_outside(said)}", SAME_STUDY)
        q, sigma, steps = (finite(value) or 0.0 for value in said[1:])
        if not (0 < q <= 1 and sigma > 0 and 1 <= steps <= MOST_STEPS):
            raise BadReply(f"the price of its reply is {from_outside(said)}", SAME_STUDY)
        spent = Spent(said[0][:LONGEST_NAME], q, sigma)
        self._taken.setdefault(site, Counter())[spent] += int(steps)

    def take(self) -> dict[str, list[list[str | float | int]]]:
        """[group, q, sigma, steps] of every kind of release since this was last called, by site."""
        taken, self._taken = self._taken, {}
        return {
            site: [[*spent, steps] for spent, steps in sorted(spending.items())]
            for site, spending in sorted(taken.items())
        }
