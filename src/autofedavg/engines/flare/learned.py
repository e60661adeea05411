"""The server's side of a FLARE job of somebody else's making: FLARE's FedAvg, learned weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from torch import Tensor

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError, error_facts
from autofedavg.engines.dropin.learner import SETTINGS, WeightLearner
from autofedavg.engines.flare.answering import TOPIC, LearnedWeights, read, written
from autofedavg.engines.flare.pushing import answer, push
from autofedavg.federation.messages import Message, NoReply

COMPONENT = "learned_weights"
PACKAGE = "autofedavg"  # installed at every site, so FLARE need not put it into the job
DEADLINE = 600.0  # seconds that a site has for one answer
_OTHERS = ("aggregator", "exclude_vars", "enable_tensor_disk_offload")  # FedAvg's other averages


class LearnedFedAvg(FedAvg):  # type: ignore[misc]
    """FLARE's FedAvg with weights learned from the sites' own data (the paper's Algorithm 1).

    The weights are logged and are in the metrics of every round's model, as `alpha/<site>`, or
    `alpha/<site>/<layer>` with `weights="layer"`.

    Args:
        *args: FedAvg's.
        method: our settings, as a table.
        **kwargs: FedAvg's, but `aggregator`, `exclude_vars` and `enable_tensor_disk_offload`;
            and ours, as in `method`: those of the method `auto-fedavg` (`constraint`, `weights`,
            `t0`, `S`, ...), `deadline` (seconds a message may take, 600), `retries`,
            `bad_answers`, `quorum` (sites that must answer, 0 for all that have trained), `seed`.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """

    def __init__(self, *args: Any, method: dict[str, Any] | None = None, **kwargs: Any) -> None:
        ours = {name: kwargs.pop(name) for name in [*kwargs] if name in SETTINGS}
        self.method = {**(method or {}), **ours}  # FLARE writes it into the job
        for name in _OTHERS:
            if kwargs.get(name):
                raise ConfigError(
                    f"{name} does not go together with learned weights",
                    where="LearnedFedAvg",
                    remedy=f"leave {name} out",
                )
        self._learner = WeightLearner("LearnedFedAvg", **{"deadline": DEADLINE, **self.method})
        self._w: dict[str, Any] = {}
        self._trained: dict[str, dict[str, Tensor]] = {}
        super().__init__(*args, **kwargs)

    def send_model(self, *args: Any, data: FLModel | None = None, **how: Any) -> None:
        """Remembers what training begins from."""
        self._w = dict(data.params) if data is not None and data.params else {}
        self._trained = {}
        super().send_model(*args, data=data, **how)

    def _aggregate_one_result(self, result: FLModel) -> bool:
        if not result.params:
            return bool(super()._aggregate_one_result(result))
        name = str((result.meta or {}).get("client_name", ""))
        self._trained[name] = self._whole(result)
        # FLARE's own sums are for the metrics alone.
        figures = FLModel(
            params={"": np.zeros(1)},
            params_type=ParamsType.FULL,
            metrics=result.metrics,
            meta=result.meta,
        )
        return bool(super()._aggregate_one_result(figures))

    def _whole(self, result: FLModel) -> dict[str, Tensor]:
        """The trained model, also of a client that sent what it changed."""
        state = _tensors(result.params)
        if result.params_type != ParamsType.DIFF:
            return state
        before = _tensors(self._w)
        fits = {k for k, a in state.items() if k in before and before[k].shape == a.shape}
        return {k: before[k] + a if k in fits else a for k, a in state.items()}

    def _get_aggregated_result(self) -> FLModel:
        t = self.current_round - self.start_round + 1
        carrier = AuxCarrier(self.fl_ctx, self.abort_signal)
        try:
            learned = self._learner.round(t, _tensors(self._w), self._trained, carrier)
        except AutoFedAvgError as error:
            self.panic(str(error))
            raise
        how = "learned" if learned.learned else "kept"
        self.info(f"alpha of round {self.current_round}, {how}: {learned}")
        result = super()._get_aggregated_result()
        arrays = all(isinstance(value, np.ndarray) for value in self._w.values())
        result.params = {
            k: a.cpu().numpy() if arrays else a for k, a in learned.state.items() if k in self._w
        }
        result.params_type = ParamsType.FULL
        result.metrics = {**(result.metrics or {}), **learned.metrics()}
        return result


class LearnedFedAvgRecipe(FedAvgRecipe):  # type: ignore[misc]
    """FLARE's recipe for FedAvg with PyTorch, with learned weights.

    Args:
        method: our settings, as a table.
        **kwargs: the recipe's, and ours, as `LearnedFedAvg` takes them.

    Raises:
        ConfigError: a setting is unknown or wrong, or the script is to run in its own process.
    """

    def __init__(self, *, method: dict[str, Any] | None = None, **kwargs: Any) -> None:
        ours = {name: kwargs.pop(name) for name in [*kwargs] if name in SETTINGS}
        self._method = {**(method or {}), **ours}
        if kwargs.get("launch_external_process"):
            raise ConfigError(
                "a script in a process of its own cannot be asked for learned weights",
                where="LearnedFedAvgRecipe",
                remedy="leave launch_external_process out",
            )
        super().__init__(**kwargs)
        self._job.set_app_packages([PACKAGE])

    def _create_controller(
        self, persistor_id: str, model_params: Any, model_aggregator: Any
    ) -> LearnedFedAvg:
        return LearnedFedAvg(
            num_clients=self.min_clients,
            num_rounds=self.num_rounds,
            persistor_id=persistor_id,
            model=model_params,
            save_filename=self.save_filename,
            aggregator=model_aggregator,
            stop_cond=self.stop_cond,
            patience=self.patience,
            exclude_vars=self.exclude_vars,
            aggregation_weights=self.aggregation_weights,
            memory_gc_rounds=self.server_memory_gc_rounds,
            enable_tensor_disk_offload=self.enable_tensor_disk_offload,
            method=self._method,
            **self._get_controller_kwargs(),
        )

    def _prepare_client_apps(self) -> None:
        super()._prepare_client_apps()
        if self.per_site_config is None:
            self._job.to_clients(LearnedWeights(), id=COMPONENT)
        for site in self.per_site_config or {}:
            self._job.to(LearnedWeights(), site, id=COMPONENT)


class AuxCarrier:
    """Notes as messages that are pushed to the sites and answered at once."""

    def __init__(self, context: FLContext, stopped: Signal) -> None:
        self._context, self._stopped = context, stopped

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        """Sends each site its note.

        Raises:
            RunError: the job was stopped.
        """
        replies = push(self._context, TOPIC, verb, messages, within, written)
        if self._stopped.triggered:
            raise RunError("the job was stopped", where="FLARE", remedy="submit it again")
        return {name: _answer(name, replies.get(name), within) for name in messages}


def _answer(name: str, reply: object, within: float | None) -> Message | NoReply:
    if isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.TOPIC_UNKNOWN:
        return Message({}, error_facts(_no_component(name)))
    return answer(reply, read, within)


def _no_component(site: str) -> ConfigError:
    return ConfigError(
        "the job has no component LearnedWeights there",
        where=f"client {site}",
        remedy=f'job.to_clients(LearnedWeights(), id="{COMPONENT}"), or use LearnedFedAvgRecipe',
    )


def _tensors(params: Mapping[str, Any]) -> dict[str, Tensor]:
    """What of these is a tensor or an array of numbers."""
    found = {}
    for name, value in params.items():
        if isinstance(value, Tensor):
            found[name] = value.detach()
        elif (array := np.array(value)).dtype.kind in "biuf":
            found[name] = torch.from_numpy(array)
    return found
