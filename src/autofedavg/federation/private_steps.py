"""Differentially private steps at a site: who takes part, with what noise, and at what price.

Samples and noise come from a key that only the site has. Whoever knew the sample would know who was
left out, and sampling would protect nobody; whoever knew the noise could subtract it. Crops and
dropout come from the run's seed, a patient at a time: one patient changes one summand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import DataError, TrainingError
from autofedavg.core.mixture import Mixture
from autofedavg.core.noise import NoiseKey
from autofedavg.core.privacy import (
    Bound,
    Patient,
    Privacy,
    PrivateBatch,
    mechanism,
    private_gradient,
)
from autofedavg.core.problem import LocalData, PatientData
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.core.site import Facts
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.federation.ledger import Entry, Ledger, Limit
from autofedavg.federation.local_training import LocalTraining
from autofedavg.federation.messages import PORT_VALUES

Mode = Literal["eval", "train"]
PRIVATE_RULES = ("keep", "plain", "prox", "shift")  # those that train once, on gradients alone


class PrivateSteps:
    """Samples, noise and account of one site.

    Args:
        site: its name.
        data: its data, by patient.
        seeds: the run's random streams, for crops and dropout.
        privacy: bounds and noise.
        batch_size: patients in a sample, on average.
        key: for samples and noise.
        ledger: what has been released.
        job: what the releases belong to, for the ledger.

    Raises:
        DataError: the data cannot be had patient by patient.
    """

    def __init__(
        self,
        site: str,
        data: LocalData,
        seeds: Seeds,
        privacy: Privacy,
        batch_size: int,
        key: NoiseKey,
        ledger: Ledger,
        job: str = "",
    ) -> None:
        if not isinstance(data, PatientData):
            raise DataError(
                "the data cannot be had patient by patient",
                where=f"site {site}, privacy",
                remedy="give it the methods of autofedavg.core.problem.PatientData",
            )
        self.site, self.data, self.seeds, self.privacy = site, data, seeds, privacy
        self.batch_size, self.key, self.ledger, self._job = batch_size, key, ledger, job
        self._hashed: tuple[Bank, list[bytes]] | None = None

    def refuse(self, verb: str, facts: Facts) -> None:
        """Refuses requests whose answer no noise would cover.

        Raises:
            TrainingError: names the request.
        """
        rule = (facts.get("rule") or {}).get("name", "plain")
        why = ""
        if "probe" in facts:
            why = "a loss before training"
        elif "half" in facts:
            why = "the ceiling"
        elif verb in ("mixture_losses", "model_losses"):
            why = "the losses that judge a call"
        elif self.privacy.train and verb == "class_counts":
            why = "training cases per class"
        elif self.privacy.train and verb == "local_train" and rule not in PRIVATE_RULES:
            why = f"the local rule {rule!r}"
        elif self.privacy.train and "form" in facts:
            why = "networks whose layers change their widths"
        if why:
            raise TrainingError(
                f"differential privacy does not cover {why}",
                where=f"client {self.site}, {verb}",
                remedy="use another method, or no [privacy]",
            )

    def training(self, job: LocalTraining) -> Release | None:
        """Pays for a local training; None where training is not private."""
        bound = self.privacy.train
        if bound is None:
            return None
        how = {"training": job.training.model_dump(mode="json"), "rate": job.rate}
        how |= {"rule": job.rule.note()}
        vectors = [part for name in sorted(job.vectors) for part in _bytes(job.vectors[name])]
        content = [_text(how), *_model(job.start), *vectors]
        steps = steps_of(job.training, self.data.patients("train"))
        return self._pay(("local_train", job.t, 0), "train", bound, steps, content)

    def weighing(
        self, verb: str, how: Facts, model: Model | Bank, beta: Tensor | None = None
    ) -> Release | None:
        """Pays for steps on beta, or for a gradient; None where these are not private."""
        bound = self.privacy.theta
        if bound is None:
            return None
        said = _text({key: value for key, value in how.items() if key not in PORT_VALUES})
        content = [said, *(_model(model) if isinstance(model, Model) else self._bank(model))]
        content += _bytes(beta) if beta is not None else []
        place = (verb, int(how["t"]), int(how.get("s", 0)))
        steps = how["batches"] if verb == "masked_gradient" else how.get("steps", 1)
        return self._pay(place, how["data"], bound, int(steps), content)

    def _pay(
        self,
        place: tuple[str, int, int],
        split: str,
        bound: Bound,
        steps: int,
        content: list[bytes],
    ) -> Release:
        n = self.data.patients(split)
        if not n:
            raise TrainingError(f"there is no {split} patient", where=f"client {self.site}")
        used = mechanism(bound, n, self.batch_size)
        job = [self._job.encode(), repr((place, split, bound, n, self.batch_size)).encode()]
        digest = self.key.digest(*job, *content)
        group = "train" if self.data.shares_patients(split, "train") else split
        entry = Entry(self._job, *place, group, used.q, used.sigma, steps, digest)
        self.ledger.spend(entry)
        return Release(self, entry, split, bound, n)

    def _bank(self, bank: Bank) -> list[bytes]:
        """The content of all models, read once: the server's own digest of them is not trusted."""
        if self._hashed is None or self._hashed[0] is not bank:
            digests = [bank[site].digest().encode() for site in bank.sites]
            self._hashed = bank, [*map(str.encode, bank.sites), *digests]
        return self._hashed[1]


@dataclass(frozen=True)
class Release:
    """An answer that is paid for."""

    steps: PrivateSteps
    entry: Entry
    split: str
    bound: Bound
    n: int

    @property
    def facts(self) -> Facts:
        """What the answer says of its price, in place of a loss, which no noise covers."""
        return {"loss": None, **self.price}

    @property
    def price(self) -> Facts:
        """Its price alone."""
        return {"spent": [self.entry.group, self.entry.q, self.entry.sigma, self.entry.steps]}

    def refuse_statistics(self, start: Model, trained: Model, trainable: int) -> None:
        """Refuses to send what training has changed besides the noisy weights.

        Raises:
            TrainingError: the network has buffers that change.
        """
        pairs = [(start.values[trainable:], trained.values[trainable:])]
        pairs += [(start.counters, trained.counters)]
        if not all(torch.equal(before.cpu(), after.cpu()) for before, after in pairs):
            raise TrainingError(
                "training has changed buffers of the network, which no noise covers",
                where=f"client {self.steps.site}, {self.entry.place}",
                remedy="use a network without running statistics, or no privacy.train_clip",
            )

    def batches(self) -> Iterator[PrivateBatch]:
        """The noisy steps of a local training."""
        return (self.batch(s, augment=True) for s in range(self.entry.steps))

    def batch(self, s: int, *, augment: bool = False) -> PrivateBatch:
        """The sampled patients of step s, and its noise."""
        key, digest = self.steps.key, self.entry.digest
        chosen = np.flatnonzero(key.uniforms(self.n, digest, "sample", s) < self.entry.q)
        return PrivateBatch(
            (self._patient(int(i), s, augment) for i in chosen),
            self.bound,
            self.entry.q * self.n,
            lambda count: key.normals(count, digest, "noise", s),
        )

    def theta(
        self, network: LocalTrainer, w_k: Bank, beta: Tensor, how: Facts, seed: int, s: int
    ) -> Tensor:
        """Theta^{s,k} after a step against the noisy mean of the patients' dL_i/dtheta."""
        mixture = Mixture.asked(w_k, beta, how, network.layout, seed)
        gradients = self._gradients(network, mixture.w, how["mode"], batch := self.batch(s))
        slopes = (mixture.slope(gradient) for gradient in gradients)
        slope = private_gradient(slopes, beta, self.bound, batch.expected, batch.noise)
        return mixture.moved(slope, how["rate"], how["smoothing"])

    def gradient(self, network: LocalTrainer, w: Model, mode: Mode, s: int) -> Tensor:
        """The noisy mean of the patients' grad L_i(w), (D',)."""
        gradients = self._gradients(network, w, mode, batch := self.batch(s))
        like = torch.empty_like(network.gradient)
        return private_gradient(gradients, like, self.bound, batch.expected, batch.noise)

    def _gradients(
        self, network: LocalTrainer, w: Model, mode: Mode, batch: PrivateBatch
    ) -> Iterator[Tensor]:
        for patient in batch.patients:
            with global_seed(patient.seed, network.device):
                found, _ = network.differentiate(w, patient.batch, mode)
            yield found

    def _patient(self, i: int, s: int, augment: bool) -> Patient:
        name, seeds, t = f"{self.steps.site}/{i}", self.steps.seeds, self.entry.t
        purpose = Purpose.TRANSFORMS if augment else Purpose.AGGREGATE_BATCHES
        crops = seeds.numpy(name, purpose, t, s)
        batch = self.steps.data.patient_batch(self.split, i, crops, augment)
        return Patient(seeds.number(name, Purpose.NETWORK, t, s), batch)


def simulated_privacy(
    site: str, data: LocalData, seeds: Seeds, privacy: Privacy, training: Training
) -> PrivateSteps | None:
    """The private steps of a simulated site: its key comes from the run's seeds."""
    if not privacy.on:
        return None
    key = NoiseKey(seeds.number(site, Purpose.PRIVACY).to_bytes(8, "big"))
    ledger = Ledger(Limit(delta=privacy.delta))
    return PrivateSteps(site, data, seeds, privacy, training.batch_size, key, ledger)


def steps_of(training: Training, n: int) -> int:
    """The noisy steps of a round: as many as there would be batches."""
    return training.iterations or training.epochs * -(-n // training.batch_size)


def _text(how: Facts) -> bytes:
    return json.dumps(how, sort_keys=True).encode()


def _model(model: Model) -> list[bytes]:
    return [*_bytes(model.values), *_bytes(model.counters)]


def _bytes(tensor: Tensor) -> list[bytes]:
    content = tensor.detach().cpu().contiguous()
    return [repr((content.dtype, content.shape)).encode(), content.numpy().tobytes()]
