"""FedAvg in pfl-research (package `pfl`), where it is installed; never a dependency of ours.

It trains on slices of each user's tensors in their order: it does not shuffle.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bench.rounds import ENDLESS
from bench.turns import Turn
from bench.work import MOMENTUM, RATE, Images, small_cnn


def play(users: Sequence[Images], batch_size: int, turn: Turn) -> None:
    """Rounds over all users, a turn after each."""
    # It sets itself up only in a process of this name, and this one does nothing else.
    multiprocessing.current_process().name = "MainProcess"
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class AfterEach(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            turn()
            return False, Metrics()

    torch.set_num_threads(1)
    data = {k: [images, labels] for k, (images, labels) in enumerate(users)}
    sampler = get_user_sampler("minimize_reuse", list(data))
    cohort = FederatedDataset.from_slices(data, sampler)
    network = Classifier()
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its metrics after every round
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=ENDLESS,
                evaluation_frequency=ENDLESS,
                train_cohort_size=len(data),
                val_cohort_size=0,
            ),
            SimulatedBackend(cohort, cohort, postprocessors=[WeightByDatapoints()]),
            model,
            NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=RATE, local_batch_size=batch_size
            ),
            callbacks=[AfterEach()],
        )


class Classifier(nn.Module):
    """The small network in the form that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_cnn()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.body(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        return {}
