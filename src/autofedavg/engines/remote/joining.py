"""The sites of a job: how they join it, what each says of its data, and how requests reach them."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
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
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.site_service import DATA, DIGESTS, RUN, data_digest
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.replies import DIVERGED

log = logging.getLogger(__name__)

HELLO = 30.0  # seconds one "hello" may take; the server asks a site that is still preparing again
PAUSE = 0.5  # seconds between two rounds of "hello"
LOOK_EVERY = 1.0  # seconds between two looks at the connections
LOG_EVERY = 30.0  # seconds after which the log repeats which sites are missing
LEFT = "joined, then disconnected"
SPLITS = ("train", "validation", "test", "holdout")
MOST_CASES = 10**9

Said = dict[str, dict[str, Any]]  # by site: its cases, its versions, digests of its data


class RemoteTransport(Protocol):
    """What an engine supplies at the server."""

    name: str

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        """Sends each site its message; returns its reply, or why there is none."""

    def waiting(self) -> set[str]:
        """Sites that are connected but outside this job; only a new job can reach them."""

    def present(self) -> set[str] | None:
        """Sites whose part of this job is connected now; None where that is unknown."""


@dataclass
class JoinedSites:
    """A transport whose sites have joined.

    Every request says with which data the sites joined, so that a site that returns with other data
    refuses, and which run it is part of, so that a site finds what it kept. A site's error text is
    not trusted: it is shortened, and all else is dropped.
    """

    transport: RemoteTransport
    names: Sequence[str]
    said: Said
    run: str = ""

    def roster(self) -> Sequence[Site]:
        return [Site(name, self.said[name]["cases"]) for name in self.names]

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        data = {site: data_digest(said) for site, said in self.said.items()}
        # Sites that share a message object must still share one: transports encode it once.
        along = {DATA: data, RUN: self.run}
        shared = {id(m): Message(m.arrays, {**m.facts, **along}) for m in messages.values()}
        asked = {site: shared[id(message)] for site, message in messages.items()}
        replies = self.transport.ask(verb, asked, within)
        return {site: _error_alone(reply) for site, reply in replies.items()}


class Attendance:
    """Logs which sites are missing or have left while the server waits; a context manager.

    A site that has left owes its reply until a deadline that may be minutes away.

    Attributes:
        missing: sites that have not replied, and why as far as it is known.
        left: sites that were connected and are not.
    """

    def __init__(self, transport: RemoteTransport, sites: Iterable[str]) -> None:
        self._transport = transport
        self.missing = dict.fromkeys(sites, "")
        self._seen: set[str] = set()
        self.left: frozenset[str] = frozenset()
        self._logged: tuple[list[str], float] = ([], 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="autofedavg-joining", daemon=True)

    def look(self) -> None:
        """Checks the connections, and logs what has changed."""
        here = self._transport.present()
        if here is not None:
            self._seen |= here
            for site in sorted(self._seen - here - self.left):
                log.warning("site %s %s", site, LEFT)
            for site in sorted(self.left & here):
                log.info("site %s is back", site)
            self.left = frozenset(self._seen - here)
        missing = sorted(
            f"{site} ({from_outside(reason)})" if reason else site
            for site, reason in self.missing.copy().items()
        )
        now = time.monotonic()
        if missing and (missing != self._logged[0] or now - self._logged[1] >= LOG_EVERY):
            log.info("waiting for %s", ", ".join(missing))
            self._logged = missing, now

    def _watch(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(LOOK_EVERY)

    def __enter__(self) -> Attendance:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def about_data(said: Said) -> dict[str, Any]:
    """What environment.json records of the data: no site's case names or paths."""
    about: dict[str, Any] = {
        "data": f"held by {len(said)} sites",
        "cases": {name: facts["cases"] for name, facts in sorted(said.items())},
        "sites": said,
    }
    for key in DIGESTS:
        parts = {name: facts[key] for name, facts in sorted(said.items())}
        if all(parts.values()):  # sites that each hold the whole data set have one digest
            joint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
            about[key] = joint if len(set(parts.values())) > 1 else parts.popitem()[1]
    return about


def join(job: Job, transport: RemoteTransport, known: Said) -> Said:
    """Waits for the sites: for all of them, or for a quorum where a run is resumed.

    Returns:
        What every site has said: now, or when the run began (`known`).

    Raises:
        FederationError: too few sites joined in time.
        ConfigError: a site has another version or another network.
        DataError: a site has other data than the run began with.
    """
    said: Said = {}
    until = time.monotonic() + job.wait
    refused: list[AutoFedAvgError] = []
    with Attendance(transport, job.sites) as attendance:
        missing = attendance.missing
        while missing and (left := until - time.monotonic()) > 0:
            hello = dict.fromkeys(missing, Message({}, {"version": __version__}))
            for site, reply in transport.ask("hello", hello, min(HELLO, left)).items():
                if isinstance(reply, NoReply):
                    missing[site] = reply.reason
                    continue
                del missing[site]
                try:
                    said[site] = _checked(job, site, reply.facts, known.get(site))
                except (ConfigError, DataError) as error:
                    if not known:
                        raise
                    log.warning("continuing without a site: %s", error)
                    refused.append(error)
            if missing:
                time.sleep(min(PAUSE, max(0.0, until - time.monotonic())))
    missing |= dict.fromkeys(attendance.left & missing.keys(), LEFT)
    if refused and len(said) < job.enough:
        raise refused[0]
    absent = sorted(missing)
    if absent and (len(said) < job.enough or not all(site in known for site in absent)):
        raise FederationError(
            f"did not join within {job.wait:g} s ({missing[absent[0]] or 'never heard of'}); "
            f"{len(said)} of {len(job.sites)} sites have joined",
            client=", ".join(absent),
            call="hello",
            remedy="start the site, or correct the site names in the study",
        )
    return {**known, **said}


def _checked(
    job: Job, site: str, said: Mapping[str, Any], before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a site said of itself, if it may take part."""
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
        raise ConfigError(f"it reports {from_outside(cases)} cases", where=place)
    if not cases.get("train"):
        raise DataError("it has no training cases", where=place, remedy="check its data list")
    kept = {
        key: from_outside(said[key]) if isinstance(said.get(key), str) else ""
        for key in ("version", "torch", *DIGESTS)
    }
    for key, what in DIGESTS.items():
        if before and before.get(key) != kept[key]:
            raise DataError(
                f"the {what} of its data are not those the run began with",
                where=place,
                remedy="restore the data, or start a new run under another name",
            )
    return {"cases": cases, **kept}


def _error_alone(reply: Message | NoReply) -> Message | NoReply:
    """A reply in which an error is one short text, and whether training diverged."""
    if isinstance(reply, NoReply):
        return NoReply(from_outside(reply.reason))
    if "error" in reply.facts:
        diverged = {DIVERGED: True} if reply.facts.get(DIVERGED) is True else {}
        return Message({}, {"error": from_outside(reply.facts["error"]), **diverged})
    return reply
