"""Learned weights in your own FLARE job.

On the server, in place of FLARE's own FedAvg:

    recipe = LearnedFedAvgRecipe(min_clients=3, num_rounds=5, ..., S=20)   # was: FedAvgRecipe
    job.to_server(LearnedFedAvg(num_clients=3, num_rounds=5, S=20))        # was: FedAvg
    job.to_clients(LearnedWeights(), id="learned_weights")                 # both without the
    job.set_app_packages(["autofedavg"])                                   # recipe

At a site, in the script (or in an Executor's START_RUN), once before the first round:

    answer_with(network=Net(), loss=loss, batches=validation)

The script must run in the job's own process, which is FLARE's default, because `answer_with` hands
its arguments over in memory. It cannot run in a separate process (`launch_external_process`,
`attach`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from torch import Tensor, nn

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError, error_facts
from autofedavg.core.trainer import Loss
from autofedavg.engines.dropin.learner import SETTINGS, WeightLearner
from autofedavg.engines.dropin.responder import Batches, Responder
from autofedavg.engines.flare import codec
from autofedavg.engines.flare.access import AccessCheck
from autofedavg.engines.flare.transport import VERB, reply_in, send_aux
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.serialization import WireError

__all__ = ["LearnedFedAvg", "LearnedFedAvgRecipe", "LearnedWeights", "answer_with"]

TOPIC = "autofedavg_dropin"
COMPONENT = "learned_weights"
DEADLINE = 600.0  # seconds that a site has for one reply
_UNSUPPORTED = ("aggregator", "exclude_vars", "enable_tensor_disk_offload")  # FedAvg's averages


class LearnedFedAvg(FedAvg):  # type: ignore[misc]
    """FLARE's FedAvg with weights learned from the sites' own data (the paper's Algorithm 1).

    The log and the metrics of every round's model have the weights, as `alpha/<site>`, or
    `alpha/<site>/<layer>` with `weights="layer"`.

    Args:
        *args: FedAvg's.
        method: our settings, as a table.
        **kwargs: FedAvg's, except `aggregator`, `exclude_vars` and `enable_tensor_disk_offload`;
            and ours, as in `method`: those of the method `auto-fedavg` (`constraint`, `weights`,
            `t0`, `S`, ...), `deadline` (seconds for one reply, 600), `retries`, `bad_answers`,
            `quorum` (sites that must reply, 0 for all that have trained), `seed`.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """

    def __init__(self, *args: Any, method: dict[str, Any] | None = None, **kwargs: Any) -> None:
        ours = {name: kwargs.pop(name) for name in [*kwargs] if name in SETTINGS}
        self.method = {**(method or {}), **ours}  # FLARE writes it into the job
        for name in _UNSUPPORTED:
            if kwargs.get(name):
                raise ConfigError(
                    f"{name} cannot be combined with learned weights",
                    where="LearnedFedAvg",
                    remedy=f"leave {name} out",
                )
        self._learner = WeightLearner("LearnedFedAvg", **{"deadline": DEADLINE, **self.method})
        self._w: dict[str, Any] = {}
        self._trained: dict[str, dict[str, Tensor]] = {}
        super().__init__(*args, **kwargs)

    def send_model(self, *args: Any, data: FLModel | None = None, **how: Any) -> None:
        """Sends the global model, and keeps it as the start of this round's training."""
        self._w = dict(data.params) if data is not None and data.params else {}
        self._trained = {}
        super().send_model(*args, data=data, **how)

    def _aggregate_one_result(self, result: FLModel) -> bool:
        if not result.params:
            return bool(super()._aggregate_one_result(result))
        name = str((result.meta or {}).get("client_name", ""))
        self._trained[name] = self._whole(result)
        # FLARE's own sums serve the metrics alone.
        kept = {"metrics": result.metrics, "meta": result.meta}
        figures = FLModel(params={"": np.zeros(1)}, params_type=ParamsType.FULL, **kept)
        return bool(super()._aggregate_one_result(figures))

    def _whole(self, result: FLModel) -> dict[str, Tensor]:
        """The trained model, also of a client that sent the difference."""
        state = _tensors(result.params)
        if result.params_type != ParamsType.DIFF:
            return state
        before = _tensors(self._w)
        fits = {k for k, a in state.items() if k in before and before[k].shape == a.shape}
        return {k: before[k] + a if k in fits else a for k, a in state.items()}

    def _get_aggregated_result(self) -> FLModel:
        t = self.current_round - self.start_round + 1
        channel = AuxChannel(self.fl_ctx, self.abort_signal)
        try:
            learned = self._learner.round(
                t, _tensors(self._w), self._trained, channel, self.num_rounds
            )
        except AutoFedAvgError as error:
            self.panic(str(error))
            raise
        self.info(f"alpha of round {self.current_round}, {learned}")
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
        ConfigError: a setting is unknown or wrong, or the script would run in its own process.
    """

    def __init__(self, *, method: dict[str, Any] | None = None, **kwargs: Any) -> None:
        ours = {name: kwargs.pop(name) for name in [*kwargs] if name in SETTINGS}
        self._method = {**(method or {}), **ours}
        if kwargs.get("launch_external_process"):
            raise ConfigError(
                "learned weights need the script in the job's own process",
                where="LearnedFedAvgRecipe",
                remedy="leave launch_external_process out",
            )
        super().__init__(**kwargs)
        self._job.set_app_packages(["autofedavg"])  # installed everywhere, so not part of the job

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


class LearnedWeights(FLComponent):  # type: ignore[misc]
    """A site's component: replies to the server with what `answer_with` was given."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            _answers.set(None)
            AccessCheck(fl_ctx.get_engine().get_cell(), TOPIC)
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._handle)

    def _handle(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        try:
            message = _decode(request)
        except WireError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        try:
            responder = _answers.responder(fl_ctx.get_identity_name())
        except AutoFedAvgError as error:
            return _encode(Message({}, error_facts(error)))
        return _encode(responder.answer(str(request.get_header(VERB)), message))


class _Answers:
    """What the script in this process has passed to `answer_with`."""

    def __init__(self) -> None:
        self._parts: tuple[nn.Module, Loss, Batches] | None = None
        self._responder: Responder | None = None
        self._turn = threading.Lock()

    def set(self, parts: tuple[nn.Module, Loss, Batches] | None) -> None:
        with self._turn:
            self._parts, self._responder = parts, None

    def responder(self, site: str) -> Responder:
        with self._turn:
            if self._responder is None:
                if self._parts is None:
                    raise ConfigError(
                        "its script has not called answer_with, or runs in a separate process",
                        where=f"client {site}",
                        remedy="run it in the job's process and add, before its first round: "
                        "answer_with(network=..., loss=..., batches=...)",
                    )
                self._responder = Responder(site, *self._parts)
            return self._responder


_answers = _Answers()


def answer_with(*, network: nn.Module, loss: Loss, batches: Batches) -> None:
    """Sets what this site learns the weights with; call it before the first round.

    Args:
        network: the network that is trained, with any weights; the learning uses a copy.
        loss: (network, batch) -> scalar; moves the batch to the network's device.
        batches: a data loader over cases that were not trained on, or a function
            (round, step) -> batch.
    """
    _answers.set((network, loss, batches))


class AuxChannel:
    """The way to the sites: aux messages."""

    def __init__(self, context: FLContext, stopped: Signal) -> None:
        self._context, self._stopped = context, stopped

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        replies = send_aux(self._context, TOPIC, verb, messages, within, _encode)
        if self._stopped.triggered:
            raise RunError("the job was stopped", where="FLARE", remedy="submit it again")
        return {name: _reply(name, replies.get(name), within) for name in messages}


def _reply(site: str, reply: object, within: float | None) -> Message | NoReply:
    if isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.TOPIC_UNKNOWN:
        missing = ConfigError(
            "the job has no component LearnedWeights there",
            where=f"client {site}",
            remedy=f'call job.to_clients(LearnedWeights(), id="{COMPONENT}"), or use the recipe',
        )
        return Message({}, error_facts(missing))
    return reply_in(reply, _decode, within)


def _encode(message: Message) -> Shareable:
    """Models as arrays, which FLARE sends in chunks; all else as one byte string."""
    models = any(name.startswith(("values", "gradient")) for name in message.arrays)
    return codec.encode_dxo(message) if models else codec.encode_bytes(message)


def _decode(shareable: object) -> Message:
    """Decodes what `_encode` encoded, or raises a WireError."""
    plain = isinstance(shareable, Shareable) and codec.MESSAGE in shareable
    return codec.decode_bytes(shareable) if plain else codec.decode_dxo(shareable)


def _tensors(params: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors and numeric arrays among these values."""
    found = {}
    for name, value in params.items():
        if isinstance(value, Tensor):
            found[name] = value.detach()
        elif (array := np.array(value)).dtype.kind in "biuf":
            found[name] = torch.from_numpy(array)
    return found
