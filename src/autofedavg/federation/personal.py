"""State that stays at a site, named by digests: personal models, and what blind learning keeps.

A local rule may keep arrays at the site from round to round (Ditto's v_k), and so does blind
learning (theta_j). They never travel. The server names them by digest: a request says from which
state to continue and which to hold, and the site drops all others. A site that has lost its state
says so and starts again. In a simulation the run's checkpoint has a copy, so that resuming is
exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autofedavg.core.local_rules import Kept
from autofedavg.core.site import Facts
from autofedavg.federation.messages import Message

DIGEST = 32  # characters


def digest_of(kept: Kept) -> str:
    """A fingerprint of named arrays."""
    found = hashlib.sha256()
    for name in sorted(kept):
        array = kept[name].detach().cpu().contiguous()
        found.update(f"{name}:{array.dtype}:{tuple(array.shape)};".encode())
        found.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:DIGEST]


@dataclass
class KeptStates:
    """A site's states by digest."""

    states: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    def keep(self, kept: Kept) -> str:
        """Keeps a copy; returns its digest."""
        digest = digest_of(kept)
        self.states[digest] = {name: array.detach().clone() for name, array in kept.items()}
        return digest

    def hold(self, digests: Iterable[str]) -> None:
        """Drops all others."""
        wanted = set(digests)
        self.states = {digest: kept for digest, kept in self.states.items() if digest in wanted}

    def message(self, digests: Iterable[str]) -> Message:
        """Some states as a message."""
        arrays = {
            f"{digest}/{name}": array
            for digest in digests
            for name, array in self.states.get(digest, {}).items()
        }
        return Message(arrays, {})

    def read(self, message: Message) -> None:
        """Adds the states of a message."""
        for key, array in message.arrays.items():
            digest, _, name = key.partition("/")
            self.states.setdefault(digest, {})[name] = array.clone()


@dataclass
class PersonalModels:
    """The server's side: which state, and which personal predictor if any, every site has.

    Attributes:
        states: the state that each site continues from, by digest.
        predictors: each site's latest personal predictor.
        scores: its mean validation score.
        held: predictors that sites must not drop: the best ones.
    """

    states: dict[str, str] = field(default_factory=dict)
    predictors: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)

    def facts(self, site: str) -> Facts:
        """What a site is told: the state to continue from, and what to hold besides it."""
        hold = [names[site] for names in (self.predictors, self.held) if site in names]
        return {"kept": self.states.get(site, ""), "hold": sorted(set(hold))}

    def forget(self, site: str) -> None:
        """A site has lost all that it kept, the best predictor too."""
        for names in (self.states, self.predictors, self.held):
            names.pop(site, None)
        self.scores.pop(site, None)

    def needed(self, site: str) -> list[str]:
        """All that a resumed run needs of a site."""
        known = (self.states, self.predictors, self.held)
        return sorted({names[site] for names in known if site in names})
