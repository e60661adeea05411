"""The sites of a job: who joins it, what each says of its data, and how they are asked then."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autofedavg import __version__
from autofedavg.core.errors import (
    AutoFedAvgError,
    ConfigError,
    DataError,
    FederationError,
    from_outside,
)
from autofedavg.core.site import Site
from autofedavg.engines.remote.attendance import GONE, Attendance, Connected
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.site import DATA, data_digest
from autofedavg.federation.messages import Message, NoReply

log = logging.getLogger(__name__)

LOOK = 30.0  # seconds one "hello" may take; a site that is still preparing is asked again
PAUSE = 0.5
SPLITS = ("train", "validation", "test", "holdout")
MOST_CASES = 10**9

Said = dict[str, dict[str, Any]]  # by site: its cases, its versions, digests of its data


class RemoteTransport(Connected, Protocol):
    """What an engine supplies at the server."""

    name: str

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        """Sends each named site its note; its answer, or why there is none."""

    def waiting(self) -> set[str]:
        """Sites that are connected and that this job cannot reach: only a new job would."""


@dataclass
class Joined:
    """A remote fleet whose sites are known.

    Every request says what data the sites joined with, so that one which comes back with other data
    refuses. What sites say of their errors is their word alone: shortened, and without more.
    """

    transport: RemoteTransport
    names: Sequence[str]
    said: Said

    def roster(self) -> Sequence[Site]:
        return [Site(name, self.said[name]["cases"]) for name in self.names]

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        data = {site: data_digest(said) for site, said in self.said.items()}
        each = {
            id(message): message for message in messages.values()
        }  # sites with one note keep one
        told = {key: Message(n.arrays, {**n.facts, DATA: data}) for key, n in each.items()}
        answers = self.transport.ask(
            verb, {k: told[id(message)] for k, message in messages.items()}, within
        )
        return {site: _plain(answer) for site, answer in answers.items()}


def about_data(said: Said) -> dict[str, Any]:
    """What environment.json records of the data: no site's names or paths."""
    about: dict[str, Any] = {
        "data": f"held by {len(said)} sites",
        "cases": {name: told["cases"] for name, told in sorted(said.items())},
        "sites": said,
    }
    for key in ("split_sha256", "content_sha256"):
        parts = {name: told[key] for name, told in sorted(said.items())}
        if all(parts.values()):
            about[key] = _together(parts)
    return about


def join(job: Job, transport: RemoteTransport, known: Said) -> Said:
    """Waits for the sites: for all of them, or, going on with a run, for a quorum.

    Args:
        job: names the sites and says how long to wait.
        transport: the engine's transport.
        known: what sites said when the run was begun.

    Returns:
        What every site has said, now or then.

    Raises:
        FederationError: too few came in time.
        ConfigError: a site has another version or another network.
        DataError: a site has other data than the run was begun with.
    """
    said: Said = {}
    until = time.monotonic() + job.wait
    enough = job.enough
    missing: dict[str, str] = dict.fromkeys(job.sites, "never heard of")
    refused: dict[str, AutoFedAvgError] = {}
    with Attendance(transport, job.sites) as attendance:
        while missing:
            left = until - time.monotonic()
            if left <= 0:
                break
            hello = Message({}, {"version": __version__})
            for site, answer in transport.ask(
                "hello", dict.fromkeys(missing, hello), min(LOOK, left)
            ).items():
                if isinstance(answer, NoReply):
                    missing[site] = answer.reason
                    attendance.missed(site, answer.reason)
                    continue
                del missing[site]
                attendance.heard(site)
                try:
                    said[site] = _welcome(job, site, answer, known.get(site))
                except (ConfigError, DataError) as error:
                    if not known:
                        raise
                    log.warning("going on without it: %s", error)
                    refused[site] = error
            if missing:
                time.sleep(min(PAUSE, max(0.0, until - time.monotonic())))
    missing |= dict.fromkeys(attendance.gone & missing.keys(), GONE)
    if refused and len(said) < enough:
        raise next(iter(refused.values()))
    absent = sorted(missing)
    if absent and (len(said) < enough or not all(site in known for site in absent)):
        raise FederationError(
            f"did not join within {job.wait:g} s ({missing[absent[0]]}); "
            f"{len(said)} of {len(job.sites)} sites are there",
            client=", ".join(absent),
            call="hello",
            remedy="start the site, or correct the names of the sites in the study",
        )
    return {**known, **said}


def _welcome(
    job: Job, site: str, answer: Message, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a site said of itself, if it may take part."""
    said = answer.facts
    place = f"site {site}, joining"
    if "error" in said:
        raise ConfigError(f"it cannot take part: {from_outside(said['error'])}", where=place)
    version, network = from_outside(said.get("version")), from_outside(said.get("network"))
    if version != __version__:
        raise ConfigError(
            f"it has autofedavg {version}, and the server has {__version__}",
            where=place,
            remedy="install the same version everywhere",
        )
    if network != job.network:
        raise ConfigError(
            f"its network is {network}, and the server's is {job.network}",
            where=place,
            remedy="install the same versions of MONAI and PyTorch everywhere",
        )
    cases = said.get("cases")
    if not isinstance(cases, dict) or not all(
        name in SPLITS and isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MOST_CASES
        for name, n in cases.items()
    ):
        raise ConfigError(f"it says it has {from_outside(cases)} cases", where=place)
    if not cases.get("train"):
        raise DataError("it has no training case", where=place, remedy="look at its data list")
    kept = {
        key: from_outside(said[key]) if isinstance(said.get(key), str) else ""
        for key in ("version", "torch", "split_sha256", "content_sha256")
    }
    for key, what in (("split_sha256", "splits"), ("content_sha256", "files")):
        if before and before.get(key) != kept[key]:
            raise DataError(
                f"the {what} of its data are not those the run was begun with",
                where=place,
                remedy="put the data back as it was, or begin anew under another name",
            )
    return {"cases": cases, **kept}


def _plain(answer: Message | NoReply) -> Message | NoReply:
    """An answer in which a site speaks for itself alone."""
    if isinstance(answer, NoReply):
        return NoReply(from_outside(answer.reason))
    if "error" in answer.facts:
        return Message({}, {"error": from_outside(answer.facts["error"])})
    return answer


def _together(parts: Mapping[str, str]) -> str:
    """One digest for all sites; where every site knows of all the data, its own."""
    if len(set(parts.values())) == 1:
        return next(iter(parts.values()))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
