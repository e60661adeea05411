"""What a run has spent of each site's patients' privacy, as its sites say, round by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autofedavg.core.accountant import Mechanism, epsilon_of, parallel
from autofedavg.core.privacy import Privacy
from autofedavg.federation.ledger import Account

Spent = Mapping[str, Sequence[Sequence[Any]]]  # by site: [group, q, sigma, steps]


class PrivacyAccount:
    """Adds up the prices of private replies.

    Args:
        privacy: the row's settings.
        lines: the rounds that the run has behind it, as in rounds.jsonl.

    Note:
        A reply that was lost on its way is in the site's own ledger and not here.
    """

    def __init__(self, privacy: Privacy, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._delta = privacy.delta
        self._sites: dict[str, Account] = {}
        for line in lines:
            self._add(line.get("spent", {}))

    def record(self, spent: Spent) -> dict[str, Any]:
        """What a round's line says of it: `spent` in the round, `epsilon` so far, by site."""
        if not spent:
            return {}
        self._add(spent)
        return {"spent": dict(spent), "epsilon": self.epsilon()}

    def epsilon(self) -> dict[str, float]:
        """By site, what was spent on the patient who is worst off."""
        return {
            site: epsilon_of(parallel(account.values()), self._delta)
            for site, account in sorted(self._sites.items())
        }

    def _add(self, spent: Spent) -> None:
        for site, releases in spent.items():
            account = self._sites.setdefault(site, {})
            for group, q, sigma, steps in releases:
                account.setdefault(group, Counter())[Mechanism(q, sigma)] += steps
