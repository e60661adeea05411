"""A site's side of a job, engine-free: its data, network and models, kept between requests.

What leaves a site passes here. Errors leave without the names of files and cases, which stay in the
site's own log; where the names of cases are private, numbers leave instead.
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
from autofedavg.core.errors import AutoFedAvgError, DataError, TrainingError, printable
from autofedavg.core.seeds import Seeds, global_seed
from autofedavg.core.site import Facts
from autofedavg.core.trainer import LocalTrainer, checked_device
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.keeping import Keeping, state_home
from autofedavg.engines.remote.policy import Policy, Refused
from autofedavg.engines.remote.sitefile import read_site_file
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message
from autofedavg.federation.replies import lacks
from autofedavg.federation.serialization import facts_text

log = logging.getLogger(__name__)

DATA = "joined_with"  # in a request: what every site said of its data when it joined


class SiteService:
    """Answers a server's requests for one job.

    Args:
        text: the job, as `Job.text` makes it.
        site: the name the engine vouches for.
        local: the site's own file.
        client_state: the models it keeps; in this process's memory by default.
        history: of an earlier process that answered for this job.

    Nothing heavy happens before the first answer. Requests are answered one at a time.
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
        self._keeping: Keeping | None = None  # where the names of cases are private
        self._policy: Policy | None = None

    def answer(self, verb: str, message: Message) -> Message:
        """Answers one request; an error is an answer too."""
        with self._turn:
            log.info("%s: %s", self.site, _in_words(verb, message))
            try:
                client, policy = self._ready()
                if verb == "hello":
                    policy.begin()
                    return Message({}, dict(self._said))
                self._refuse_other_data(message)
                asked = {key: value for key, value in message.facts.items() if key != DATA}
                policy.check(verb, asked)
                answer = self._without_names(
                    message, client.answer(verb, Message(message.arrays, asked))
                )
                facts_text(answer.facts)  # what cannot be sent is told here, not by the engine
                if not lacks(answer):
                    policy.answered(verb, message.facts)
                return answer
            except Refused as error:
                log.warning("%s refuses: %s", self.site, error)
                what = error.what
            except TrainingError as error:
                log.exception("%s: %s", self.site, verb)
                what = error.what
            except AutoFedAvgError as error:
                log.exception("%s: %s", self.site, verb)
                what = f"{type(error).__name__}, and this site's own log says more"
            except Exception as error:
                log.exception("%s: %s", self.site, verb)
                what = f"{type(error).__name__} in {verb}, and this site's own log says more"
        return Message({}, {"error": what})

    def history(self) -> Facts:
        """What was asked for so far, to be given to the next process."""
        return self._policy.history() if self._policy else self._history

    def _ready(self) -> tuple[Client, Policy]:
        """The client, with its data prepared, and what it answers; made at the first request."""
        if self._client is None or self._policy is None:
            job = self._read()
            mine = read_site_file(self._local)
            task = mine.placed(job.row.task, str(self._local))
            threads = mine.threads or job.threads
            if threads:
                torch.set_num_threads(threads)
            device = checked_device(mine.device)
            problem = task.problem()
            if self.site not in problem.sites:
                raise DataError(
                    f"there are cases of {', '.join(problem.sites)}, and this is {self.site}",
                    where=str(self._local),
                    remedy="write this site's name, as the engine knows it, into the data list",
                )
            with global_seed(0):
                network = problem.network()
            bench = LocalTrainer(network, problem.loss, job.row.training, device, problem.steady)
            if bench.layout.describe() != job.network:
                raise Refused(
                    f"its network has {bench.layout.size} values of another shape than the "
                    "job's: other versions of MONAI or PyTorch, perhaps"
                )
            data, about = problem.sites[self.site], task.describe()
            digests = {key: str(about.get(key, "")) for key in ("split_sha256", "content_sha256")}
            if task.private_names:
                # Whoever can guess the names of cases could check a guess against a bare digest.
                self._keeping = Keeping(state_home(mine.state), self.site)
                digests = {key: self._keeping.salted(value) for key, value in digests.items()}
            self._said = {
                "version": __version__,
                "network": job.network,
                "torch": str(torch.__version__),
                "cases": {split: int(n) for split, n in data.cases().items()},
                **digests,
            }
            self._client = Client(self.site, data, bench, Seeds(job.seed), self._client_state)
            self._policy = Policy(job, bench.layout)
            if self._history:
                self._policy.restore(self._history)
        return self._client, self._policy

    def _refuse_other_data(self, message: Message) -> None:
        """A site that came back goes on with the data it joined with, or not at all."""
        joined = message.facts.get(DATA)
        mine = joined.get(self.site) if isinstance(joined, dict) else None
        if mine is not None and mine != data_digest(self._said):
            raise Refused("its data are not those it joined this run with")

    def _read(self) -> Job:
        try:
            job = Job.read(self._text, "the job")
        except AutoFedAvgError as error:
            raise Refused(error.what) from error
        if self.site not in job.sites:
            raise Refused(f"{self.site} is not a site of this job: {', '.join(job.sites)}")
        return job

    def _without_names(self, message: Message, answer: Message) -> Message:
        """Scores with numbers instead of the names of cases, where names are private."""
        scores = answer.facts.get("scores")
        if scores is None or self._keeping is None:
            return answer
        split = str(message.facts["split"])
        names = sorted({name for name, _, _ in scores})
        numbers = {name: f"{split}-{n:04d}" for n, name in enumerate(names, 1)}
        try:
            # Other splits, other numbers.
            self._keeping.keep_names(split, str(self._said["split_sha256"])[:8], numbers)
        except OSError as error:
            log.warning("which number is which case could not be written down: %s", error)
        renamed = [[numbers[name], metric, value] for name, metric, value in scores]
        return Message(answer.arrays, {**answer.facts, "scores": renamed})


def data_digest(said: Mapping[str, Any]) -> str:
    """A site's splits and files in one word."""
    both = f"{said['split_sha256']} {said['content_sha256']} {sorted(said['cases'].items())}"
    return hashlib.blake2b(both.encode(), digest_size=8).hexdigest()


def _in_words(verb: str, message: Message) -> str:
    """What is asked, for the site's own log."""
    where = [
        f"{word} {message.facts[key]}"
        for key, word in (("t", "round"), ("s", "step"))
        if isinstance(message.facts.get(key), int)
    ]
    return ", ".join([printable(verb), *where])
