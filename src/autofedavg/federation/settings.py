"""How server and clients exchange what they have to say: time limits, quorums, encodings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from autofedavg.core.errors import did_you_mean
from autofedavg.core.settings import Settings, setting

CALLS = (
    "local_train",
    "share_models",
    "update_beta",
    "differentiate",
    "mixture_losses",
    "model_losses",
    "share_keys",
    "masked_gradient",
    "evaluate",
    "validate_local",
    "class_counts",
)

Disclosure = Literal["all", "means"]
Reach = Literal["nobody", "server", "sites"]  # who receives a model; sites: the server, too
Encoding = Literal["float32", "bfloat16", "difference"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Clients = Annotated[int, Field(ge=0)]


class Exchange(Settings):
    """What is done about slow, absent and wrong answers, and how models travel.

    Note:
        The paper needs stable connections to every client (Sec. 5): decisions 31 and 32.
    """

    deadline: Seconds = setting(
        0.0, origin="ours", help="seconds a call may take, retries included; 0 means no limit"
    )
    deadlines: dict[str, Seconds] = setting(
        {}, origin="ours", help="seconds of single calls, over `deadline`"
    )
    quorums: dict[str, Clients] = setting(
        {}, origin="ours", help="clients that must answer single calls, over `quorum`; 0 means all"
    )
    test_quorum: Clients = setting(
        0,
        origin="ours: decision 45",
        help="clients that must answer the final test; 0 means all: a table without holes",
    )
    retries: int = setting(
        1, origin="ours", help="times a lost client is asked again within a call", ge=0
    )
    bad_answers: Literal["fail", "drop"] = setting(
        "fail",
        origin="ours",
        help="an answer that cannot be used: the run fails, or the site is left out of the call",
    )
    down: Encoding = setting(
        "float32", origin="ours", help="models on their way to the sites; float32 is exact"
    )
    up: Encoding = setting(
        "float32", origin="ours", help="models on their way to the server; float32 is exact"
    )

    disclose: Disclosure = setting(
        "all",
        origin="ours: decision 64",
        help="scores that leave a site: all, of every case; means, a mean and a count a metric",
    )

    @field_validator("deadlines", "quorums")
    @classmethod
    def _are_calls(cls, given: Mapping[str, float]) -> Mapping[str, float]:
        for name in given:
            if name not in CALLS:
                raise ValueError(f"{name} is not a call; {did_you_mean(name, CALLS)}")
        return given

    def seconds(self, call: str) -> float | None:
        """The time limit of a call; None without one."""
        return self.deadlines.get(call, self.deadline) or None

    def quorum(self, call: str, general: int, K: int) -> int:
        """How many of K clients must answer a call, `general` being the row's quorum."""
        return self.quorums.get(call, general) or K

    def tested(self, K: int) -> int:
        """How many of K clients must answer the final test."""
        return min(self.test_quorum or K, K)

    def least(self, general: int, K: int) -> int:
        """The smallest quorum of any call."""
        return min(self.quorum(call, general, K) for call in CALLS)
