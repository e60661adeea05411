"""A sum over sites that shows no summand: what the server asks for, and what a site refuses.

A request names the sites of the sum, their public keys and an attempt. Where a site is missing, the
server forgets all answers and asks the others again, as the next attempt. Two sums that differ by
one site would show that site, so a site answers an attempt once, and later ones only for fewer
sites. It cannot know whether an earlier attempt has arrived: the server is trusted to forget it
(decision 62).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autofedavg.core.errors import TrainingError, from_outside
from autofedavg.core.site import Facts
from autofedavg.federation.messages import Message

if TYPE_CHECKING:
    from autofedavg.federation.masks import MaskKey

log = logging.getLogger(__name__)

LEAST_SITES = 3  # a sum over two shows each of them the other
MOST_ATTEMPTS = 1000
REMEDY = "have the same version at server and sites"


@dataclass(frozen=True)
class SumOver:
    """Whose numbers a sum is over.

    Attributes:
        keys: the public key of each, by site, in their fixed order; empty in a simulation.
        attempt: from 1.
        cases: the training cases of all sites of the run, where they count by these.
    """

    keys: Mapping[str, str]
    attempt: int
    cases: int = 0

    @classmethod
    def read(cls, fact: Any, site: str, place: str) -> SumOver:
        """What a request says.

        Raises:
            TrainingError: it is not a sum that this site takes part in.
        """
        match fact:
            case {"keys": dict(keys), "attempt": int(attempt), "cases": int(cases)}:
                pass
            case _:
                raise _refused(f"{from_outside(fact)} is not a sum over sites", place)
        if not all(isinstance(text, str) for pair in keys.items() for text in pair):
            raise _refused("the keys of a sum over sites are not text", place)
        if isinstance(attempt, bool) or not 1 <= attempt <= MOST_ATTEMPTS or cases < 0:
            raise _refused(f"attempt {attempt} of a sum is out of bounds", place)
        if site not in keys:
            raise _refused("it is asked for a part of a sum that it does not belong to", place)
        if len(keys) < LEAST_SITES:
            raise _refused(
                f"a sum over {len(keys)} sites would show what a site alone has sent; "
                f"it needs {LEAST_SITES}",
                place,
            )
        return cls(keys, attempt, cases)

    @property
    def K(self) -> int:
        return len(self.keys)

    def note(self) -> Facts:
        """Plain values of a message."""
        return {"keys": dict(self.keys), "attempt": self.attempt, "cases": self.cases}


@dataclass
class MaskState:
    """What a site remembers of masks.

    Attributes:
        private: its private key.
        given: by round and call, the last attempt, its sites and a digest of what was masked.
        done: its last training: what it was asked for, the integers, and the plain values of the
            reply. A further attempt does not train again.
    """

    private: str = field(default="", repr=False)
    given: dict[str, tuple[int, list[str], str]] = field(default_factory=dict)
    done: tuple[tuple[str, float], dict[str, Tensor], Facts] | None = field(
        default=None, repr=False
    )


class SiteSums:
    """A site's part in sums: its key, its masks, and its refusals.

    Args:
        site: its name.
        state: what it remembers.
        masked: whether it masks. Only a simulation has clients that do not: there masks cancel
            within one process, and nobody could read them in between.
    """

    def __init__(self, site: str, state: MaskState, *, masked: bool) -> None:
        self._site, self._state, self.masked = site, state, masked

    def renewed(self) -> str:
        """The public half of a new key: with it no earlier mask comes back."""
        if not self.masked:
            return ""
        self._state.private, self._state.given = _keys().new().private, {}
        return self.public

    @property
    def public(self) -> str:
        """The public half of its key; empty where it does not mask."""
        if not self.masked:
            return ""
        if not self._state.private:
            return self.renewed()
        return _keys()(self._state.private).public

    def unknown(self, over: SumOver) -> Message | None:
        """The reply where the sum is asked for with another key than this site's."""
        own = self.public
        if over.keys[self._site] == own:
            return None
        return Message({}, {"missing": True, "key": own})

    def part(
        self, arrays: Mapping[str, Tensor], over: SumOver, t: int, call: str
    ) -> dict[str, Tensor]:
        """This site's part of a sum, masked.

        Raises:
            TrainingError: the same sum was answered with other numbers or for other sites.
        """
        place = f"client {self._site}, {call}, round {t}"
        sites = list(over.keys)
        log.info("%s, attempt %d: a sum over %s", place, over.attempt, ", ".join(sites))
        if not self.masked:
            return dict(arrays)
        digest = _digest(arrays, over)
        before = self._state.given.get(f"{t}/{call}")
        if before is not None:
            attempt, known, answered = before
            if over.attempt < attempt or not set(sites) <= set(known):
                raise _refused(
                    f"attempt {over.attempt} for {sites} comes after {before[:2]}", place
                )
            if over.attempt == attempt and answered != digest:
                raise _refused(f"attempt {attempt} was answered with other numbers", place)
        self._state.given[f"{t}/{call}"] = (over.attempt, sites, digest)
        from autofedavg.federation.masks import Address

        key, at = _keys()(self._state.private), Address(t, call, over.attempt)
        return key.masked(arrays, self._site, over.keys, at)


def _keys() -> type[MaskKey]:
    """Imported where it is needed: a simulation does without the library."""
    from autofedavg.federation.masks import MaskKey

    return MaskKey


def _digest(arrays: Mapping[str, Tensor], over: SumOver) -> str:
    found = hashlib.sha256(repr(sorted(over.keys.items())).encode())
    for name in sorted(arrays):
        found.update(arrays[name].cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _refused(what: str, place: str) -> TrainingError:
    return TrainingError(what, where=place, remedy=REMEDY)
