"""A site's side of a job on any engine: keeps its data, network and models between requests.

Everything that leaves a site passes through here. Errors leave without the names of files and
cases, which stay in the site's own log. Where case names are private, numbers leave instead.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autofedavg import __version__
from autofedavg.core.errors import AutoFedAvgError, DataError, Diverged, TrainingError, printable
from autofedavg.core.seeds import Seeds, global_seed
from autofedavg.core.site import Facts
from autofedavg.core.trainer import LocalTrainer
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.policy import Policy, Refused
from autofedavg.engines.remote.site_files import SiteState, read_site_file, state_home
from autofedavg.engines.remote.site_ledger import site_privacy
from autofedavg.engines.remote.stored_states import StoredStates, is_run
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message
from autofedavg.federation.replies import DIVERGED, lacks
from autofedavg.federation.serialization import facts_text
from autofedavg.federation.settings import Reach

log = logging.getLogger(__name__)

DATA = "joined_with"  # in a request: what every site said of its data when it joined
RUN = "run"  # in a request: which run it is part of, whichever job continues it
OWN_LOG = "see this site's own log"
DIGESTS = {"split_sha256": "splits", "content_sha256": "files"}


class SiteService:
    """Answers a server's requests for one job.

    Args:
        text: the job, from `Job.text`.
        site: the name that the engine authenticated.
        local: the site's own file.
        client_state: the models it keeps; in this process's memory by default.
        history: of an earlier process that answered for this job.

    The first request prepares the data. Requests are answered one at a time.
    """

    def __init__(
        self,
        text: str,
        site: str,
        local: Path | None = None,
        client_state: ClientState | None = None,
        history: Facts | None = None,
    ) -> None:
        self.site = site
        self._client_state, self._history = client_state or ClientState(), history or {}
        self._text, self._local = text, local
        self._turn = threading.Lock()
        self._client: Client | None = None
        self._said: dict[str, Any] = {}
        self._own: SiteState | None = None
        self._private_names = False
        self._stored: StoredStates | None = None
        self._policy: Policy | None = None

    def answer(self, verb: str, message: Message) -> Message:
        """Answers one request; an error is a reply too."""
        with self._turn:
            log.info("%s: %s", self.site, _in_words(verb, message))
            diverged = False
            try:
                return self._answer(verb, message)
            except Refused as error:
                log.warning("%s refuses: %s", self.site, error)
                what = error.what
            except AutoFedAvgError as error:  # its message says all; a traceback would bury it
                log.error("%s: %s: %s", self.site, printable(verb), error)
                what, diverged = f"{type(error).__name__}; {OWN_LOG}", isinstance(error, Diverged)
                if isinstance(error, TrainingError):
                    what = error.what
            except Exception as error:
                log.exception("%s: %s", self.site, printable(verb))
                what = f"{type(error).__name__} in {verb}; {OWN_LOG}"
        return Message({}, {"error": what, **({DIVERGED: True} if diverged else {})})

    def history(self) -> Facts:
        """What was asked for so far, to be given to the next process."""
        return self._policy.history() if self._policy else self._history

    def _answer(self, verb: str, message: Message) -> Message:
        client, policy = self._ready()
        if verb == "hello":
            policy.begin()
            return Message({}, dict(self._said))
        asked = dict(message.facts)
        self._refuse_other_data(asked.pop(DATA, None))
        run = asked.pop(RUN, None)
        policy.check(verb, asked)
        if self._stored is None and self._own and is_run(run):
            self._stored = StoredStates(self._own.folder, run, self._client_state.kept)
        reply = client.answer(verb, Message(message.arrays, asked))
        if self._stored:
            self._stored.save()
        reply = self._without_names(message, reply)
        facts_text(reply.facts)  # what JSON cannot hold fails here, not in the engine
        if not lacks(reply):
            policy.answered(verb, asked)
        return reply

    def _ready(self) -> tuple[Client, Policy]:
        """The client, with its data prepared, and its policy; made at the first request."""
        if self._client is None or self._policy is None:
            job = self._job()
            mine = read_site_file(self._local)
            if mine.disclose == "means" and job.row.exchange.disclose != "means":
                raise Refused(
                    "this site discloses means alone, and the job asks for the scores of cases: "
                    'set exchange.disclose = "means" in the study'
                )
            if why := too_far(job.row.models_reach(len(job.sites)), mine.show_models):
                raise Refused(why)
            task = mine.placed(job.row.task, str(self._local))
            threads = mine.threads or job.threads
            if threads:
                torch.set_num_threads(threads)
            device = mine.hardware(str(self._local))
            problem = task.problem()
            if self.site not in problem.sites:
                raise DataError(
                    f"the data list has cases of {', '.join(problem.sites)}, none of {self.site}",
                    where=str(self._local),
                    remedy="use this site's name, as the engine knows it, in the data list",
                )
            with global_seed(0):
                network = problem.network()
            trainer = LocalTrainer(network, problem.loss, job.row.training, device, problem.steady)
            if trainer.layout.describe() != job.network:
                raise Refused(
                    f"its network has {trainer.layout.size} values of another shape than the "
                    "job's: check the versions of MONAI and PyTorch"
                )
            data, about = problem.sites[self.site], task.describe()
            digests = {key: str(about.get(key, "")) for key in DIGESTS}
            self._own = own = SiteState(state_home(mine.state), self.site)
            self._private_names = task.private_names
            if self._private_names:
                # Without a salt, guessed case names could be checked against a digest.
                digests = {key: own.salted(value) for key, value in digests.items()}
            self._said = {
                "version": __version__,
                "network": job.network,
                "torch": str(torch.__version__),
                "cases": {split: int(n) for split, n in data.cases().items()},
                **digests,
            }
            machine = f"{data_digest(self._said)} {device} {torch.get_num_threads()}"
            private = site_privacy(job, self.site, mine.privacy, own, data, trainer.layout, machine)
            seeds = Seeds(job.seed)
            self._client = Client(self.site, data, trainer, seeds, self._client_state, private)
            self._policy = Policy(job, trainer.layout)
            if self._history:
                self._policy.restore(self._history)
        return self._client, self._policy

    def _refuse_other_data(self, joined: object) -> None:
        """A site that returns must have the data that it joined with."""
        mine = joined.get(self.site) if isinstance(joined, dict) else None
        if mine is not None and mine != data_digest(self._said):
            raise Refused("its data are not those it joined this run with")

    def _job(self) -> Job:
        try:
            job = Job.read(self._text, "the job")
        except AutoFedAvgError as error:
            raise Refused(error.what) from error
        if self.site not in job.sites:
            raise Refused(f"{self.site} is not a site of this job: {', '.join(job.sites)}")
        return job

    def _without_names(self, message: Message, reply: Message) -> Message:
        """Scores with numbers in place of case names, where names are private."""
        parts = (reply.facts, reply.facts.get("personal"))  # the same cases, under two models
        scored = [part for part in parts if isinstance(part, dict) and "scores" in part]
        if not scored or self._own is None or not self._private_names:
            return reply
        split = str(message.facts["split"])
        if "half" in message.facts:  # its cases have numbers of their own
            split = f"{split}-half-{int(message.facts['half'])}"
        names = sorted({name for part in scored for name, _, _ in part["scores"]})
        numbers = {name: f"{split}-{n:04d}" for n, name in enumerate(names, 1)}
        try:
            # Another split of the same data has another numbering.
            self._own.keep_names(split, str(self._said["split_sha256"])[:8], numbers)
        except OSError as error:
            log.warning("the key from numbers to cases could not be written: %s", error)
        everything, *own = (
            {**part, "scores": [[numbers[name], *rest] for name, *rest in part["scores"]]}
            for part in scored
        )
        return Message(reply.arrays, {**everything, **({"personal": own[0]} if own else {})})


def too_far(shown: Reach, most: Reach) -> str:
    """Why a job shows a site's own models to more than the site allows; nothing if it does not."""
    who: dict[Reach, str] = {"nobody": "nobody", "server": "the server alone", "sites": "all sites"}
    if list(who).index(shown) <= list(who).index(most):
        return ""
    remedy = 'set method.learning = "blind"'
    if most == "server":
        remedy += ', or use a method without it, with test_local = "own" and without ceiling'
    return f"this site's models may go to {who[most]}, and the job's go to {who[shown]}: {remedy}"


def data_digest(said: Mapping[str, Any]) -> str:
    """One digest of a site's splits, files and numbers of cases."""
    both = f"{said['split_sha256']} {said['content_sha256']} {sorted(said['cases'].items())}"
    return hashlib.blake2b(both.encode(), digest_size=8).hexdigest()


def _in_words(verb: str, message: Message) -> str:
    """A request, for the site's own log."""
    where = [
        f"{word} {message.facts[key]}"
        for key, word in (("t", "round"), ("s", "step"))
        if isinstance(message.facts.get(key), int)
    ]
    return ", ".join([printable(verb), *where])
