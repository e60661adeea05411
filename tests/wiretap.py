"""Everything that a server and its sites get to see in a job: all bytes, all files, all objects.

A job of four clinics runs in this process over real site services. Every message is recorded as
bytes, for its receiver. While it runs, the objects that the server's stack and every site's service
hold are searched. What belongs to a site is recorded at that site: then one can look for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from autofedavg import algorithm
from autofedavg.core.problem import CaseScore, Problem
from autofedavg.core.trainer import LocalTrainer
from autofedavg.engines.remote import server
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.site_service import SiteService
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import encode
from autofedavg.tasks.base import Task
from deployed import InProcessTransport
from toy import ToySite, cross_entropy, mlp, seeded, toy_site

algorithm_local_train, trainer_differentiate = algorithm.local_train, LocalTrainer.differentiate
SITES = ("A", "B", "C", "D")
CANARY = "Qx7z"
TRAIN = {site: 1_000_003 + 4 * k for k, site in enumerate(SITES)}  # numbers like no other
BETA0 = 0.5  # of the jobs that are tapped
Thing = bytes | str | float  # of which one can tell whether a party has seen it


# --- the clinics ----------------------------------------------------------------------------------


class ClinicData(ToySite):
    """A toy site with private names, and a size for every case."""

    def cases(self):
        return {**super().cases(), "train": TRAIN[self.name]}

    def score(self, network, split):
        found = []
        for number, score in enumerate(super().score(network, split)):
            case = f"{self.name}-{CANARY}-{split}-{number}"
            found += [score._replace(case=case, metric="dice"), CaseScore(case, *self.size(number))]
        Tapped.scored(self.name, found)
        return found

    def size(self, number: int) -> tuple[str, float]:
        return "label_voxels", 31337000.0 * (1 + SITES.index(self.name)) + 7.0 * number


class Clinics(Task):
    """A task whose sites are in this process, with names that must not leave them."""

    name: Literal["clinics"] = "clinics"

    def problem(self, progress=None):
        toys = {site: toy_site(site, k) for k, site in enumerate(SITES)}
        sites = {site: ClinicData(site, toy.splits) for site, toy in toys.items()}
        return Problem(mlp, cross_entropy, sites, self.metric)

    def site_names(self):
        return [*SITES]

    def network(self):
        return seeded(mlp, 0)

    def memory(self):
        return 0

    def where(self):
        return "in this process"

    def describe(self):
        cases = {site: dict(data.cases()) for site, data in self.problem().sites.items()}
        return {"data": "clinics", "cases": cases, "split_sha256": "1", "content_sha256": "2"}


# --- what is seen ---------------------------------------------------------------------------------


@dataclass
class Seen:
    """All that one party has seen: bytes, and what its objects hold."""

    blob: bytearray = field(default_factory=bytearray)
    texts: set[str] = field(default_factory=set)
    numbers: set[float] = field(default_factory=set)

    def add(self, content: bytes) -> None:
        self.blob += content + b"\0"

    def look(self, root: object, stop: tuple[type, ...] = ()) -> None:
        """Adds all that can be reached from an object."""
        for found in reachable(root, stop):
            if isinstance(found, Tensor | np.ndarray):
                array = (
                    found.detach().cpu().contiguous().numpy()
                    if isinstance(found, Tensor)
                    else found
                )
                content = array.tobytes()
                if content not in self.blob:
                    self.add(content)
            elif isinstance(found, bytes | bytearray):
                self.add(bytes(found))
            elif isinstance(found, str):
                self.texts.add(found)
            else:
                self.numbers.add(float(found))

    def has(self, thing: Thing) -> bool:
        if isinstance(thing, bytes):
            return thing in self.blob
        if isinstance(thing, float):
            whole = [str(int(thing)).encode()] if thing.is_integer() and thing > 1000 else []
            return thing in self.numbers or any(
                t in self.blob for t in (repr(thing).encode(), *whole)
            )
        return thing.encode() in self.blob or any(thing in text for text in self.texts)


LEAVES = (Tensor, np.ndarray, bytes, bytearray, str, int, float)
CLOSED = (ModuleType, type, torch.dtype, torch.device)


def reachable(root: object, stop: tuple[type, ...]) -> Iterator[Any]:
    """Tensors, bytes, texts and numbers that an object holds, however deep."""
    waiting, met = [root], set()
    while waiting:
        at = waiting.pop()
        if at is None or id(at) in met or isinstance(at, (*CLOSED, *stop)):
            continue
        if not isinstance(at, int | float):
            met.add(id(at))
        if isinstance(at, LEAVES):
            if not (isinstance(at, int) and abs(at) > 2**53):
                yield at
            continue
        waiting += _inside(at)


def _inside(at: object) -> Iterable[object]:
    if isinstance(at, Mapping):
        return [*at.keys(), *at.values()]
    if isinstance(at, list | tuple | set | frozenset):
        return [*at]
    if isinstance(at, GeneratorType):
        return [*at.gi_frame.f_locals.values()] if at.gi_frame else []
    if isinstance(at, FunctionType):
        return [cell.cell_contents for cell in at.__closure__ or () if _filled(cell)]
    own = [getattr(at, "__self__", None)]
    own += [*getattr(at, "__dict__", {}).values()]
    slots = {name for kind in type(at).__mro__ for name in getattr(kind, "__slots__", ())}
    return own + [getattr(at, name, None) for name in slots]


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# --- the job --------------------------------------------------------------------------------------


class Tapped(InProcessTransport):
    """A job's transport that records who sees what, and what is whose."""

    now: Tapped | None = None
    at = ""  # the site that is answering

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.server, self.sites = Seen(), {site: Seen() for site in SITES}
        self.own: dict[str, dict[str, list[Thing]]] = {site: {} for site in SITES}
        self._looked: set[tuple[Any, ...]] = set()
        for site, seen in self.sites.items():
            seen.add(job.text().encode())
            self.own[site]["number of training cases"] = [float(TRAIN[site])]
            splits = job.row.task.problem().sites[site].splits
            rows = [row for x, _ in splits.values() for row in x]
            labels = [splits["train"][1]]  # long enough to be like no others
            self.own[site]["images"] = [row.numpy().tobytes() for row in (*rows, *labels)]
        Tapped.now = self

    @classmethod
    def scored(cls, site: str, scores: list[CaseScore]) -> None:
        """Records the scores of a site's cases, when it computes them."""
        if cls.now is None:
            return
        own = cls.now.own[site]
        dice = [score.value for score in scores if score.metric == "dice"]
        sizes = [score.value for score in scores if score.metric == "label_voxels"]
        own.setdefault("names of cases", []).extend(score.case for score in scores)
        own.setdefault("score of a case", []).extend(dice)
        own.setdefault("size of a case", []).extend(sizes)
        own.setdefault("mean score", []).append(sum(dice) / len(dice))

    def _one(self, verb: str, site: str, message: Message) -> Message:
        self.sites[site].add(encode(message))
        self.at = site
        answer = super()._one(verb, site, message)
        self.server.add(self.sent[-1])
        own = self.own[site]
        for theta in self._thetas(site, answer):
            own.setdefault("theta", []).append(theta.numpy().tobytes())
        if verb in ("local_train", "masked_gradient") and "values" in message.arrays:
            own.setdefault("w", []).append(message.arrays["values"].numpy().tobytes())
        if verb == "differentiate":
            own.setdefault("mixture", []).append(message.arrays["values"].numpy().tobytes())
        if (verb, site, message.facts.get("t")) not in self._looked:
            self._looked.add((verb, site, message.facts.get("t")))
            self.sites[site].look(self.services[site])
            self._look_at_the_server()
        return answer

    def _thetas(self, site: str, answer: Message) -> list[Tensor]:
        """A site's steps on beta: sent, or kept where it learns blindly; not where all begin."""
        found = [answer.arrays["theta"]] if "theta" in answer.arrays else []
        client = self.services[site]._client
        kept = client.client_state.kept.states.values() if client else ()
        first = torch.full((1,), BETA0, dtype=torch.float64)
        moved = [state["theta"] for state in kept if "theta" in state]
        return found + [theta for theta in moved if not torch.equal(theta, first)]

    def trained(self, *given: Any) -> Any:
        """LocalTrain, whose result is the site's own."""
        model, losses = algorithm_local_train(*given)
        own = self.own[self.at]
        own.setdefault("values", []).append(model.values.numpy().tobytes())
        own.setdefault("training loss", []).append(float(losses.mean()))
        return model, losses

    def differentiated(self, trainer: LocalTrainer, *given: Any) -> Any:
        """The gradient of a mini-batch, likewise."""
        gradient, loss = trainer_differentiate(trainer, *given)
        self.own[self.at].setdefault("gradient", []).append(gradient.numpy().tobytes())
        return gradient, loss

    def _look_at_the_server(self) -> None:
        """Everything that the server's functions, up to the one that hosts the job, hold."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename not in (__file__, sys.modules["deployed"].__file__):
                self.server.look(list(frame.f_locals.values()), (SiteService, InProcessTransport))
            frame = None if frame.f_code is server.host.__code__ else frame.f_back

    def who(self, what: str) -> str:
        """Who has seen something that belongs to a site: the server, other sites, or nobody."""
        found = {site: own.get(what, []) for site, own in self.own.items()}
        at_server = any(self.server.has(thing) for things in found.values() for thing in things)
        elsewhere = any(
            self.sites[other].has(thing)
            for site, things in found.items()
            for thing in things
            for other in SITES
            if other != site
        )
        seen = [name for name, yes in (("server", at_server), ("other sites", elsewhere)) if yes]
        return " and ".join(seen) or "nobody"


def tap(job: Job, runs: Path) -> Tapped:
    """Runs a job, and returns who has seen what."""
    transport = Tapped(job)
    gradients = patch.object(LocalTrainer, "differentiate", lambda *g: transport.differentiated(*g))
    try:
        with patch.object(algorithm, "local_train", transport.trained), gradients:
            path = server.host(job, transport, runs)
    finally:
        Tapped.now = None
    for file in path.rglob("*"):
        if file.is_file():
            transport.server.add(file.read_bytes())
    return transport
