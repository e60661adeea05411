"""Checks of what a site replies, before anything is used.

Replies come from other machines, so nothing is trusted: every number, name, shape and type is
checked. What does not fit is a `BadReply` with its reason, never another error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from autofedavg.core.bank import Model
from autofedavg.core.errors import AutoFedAvgError, error_in, from_outside
from autofedavg.core.site import Site
from autofedavg.federation.encoding import Kind, kinds, opened
from autofedavg.federation.local_training import BACK, LocalRequest, Reply
from autofedavg.federation.messages import Message, Score
from autofedavg.federation.personal import DIGEST
from autofedavg.federation.settings import Encoding

# Beyond it theta says nothing that a smaller one does not: a softmax is one-hot from about 40 on,
# and a Dirichlet's weights vary by a thousandth at a concentration of a million.
THETA_BOUND = 1e6
# Finite is not enough: two scores of 1e308 have no mean, and one wins every selection
# (decision 45). Voxels and the like are further metrics.
SCORE_BOUND, COUNT_BOUND = 1e6, 1e12
LONGEST_NAME = 200  # characters of a case's or a metric's
MOST_METRICS = 1000
MOST_CLASSES, MOST_CASES = 10_000, 10**9
LOST = "has lost the personal model that it is to score"
DIVERGED = "diverged"  # next to an error's text: that training at the site has diverged
SAME_STUDY = "give every site the same study"
Scored = TypeVar("Scored")


class BadReply(Exception):
    """An answer that cannot be used.

    Args:
        reason: what is wrong with it.
        remedy: what can be done about it.
        error: what was raised at the site, where that is known whole.
    """

    def __init__(self, reason: str, remedy: str = "", error: AutoFedAvgError | None = None) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.error = reason, remedy, error


class Diverging(BadReply):
    """An answer whose numbers are not finite, or a loss beyond all reason: training diverged."""


def size_of(answer: Message) -> int:
    """The bytes of a reply, if it is a message: named tensors and plain values."""
    try:
        for name in (*answer.arrays, *answer.facts):
            if not isinstance(name, str):
                raise TypeError
        for array in answer.arrays.values():
            if not isinstance(array, Tensor):
                raise TypeError
        return answer.nbytes
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise BadReply("its answer is not made of tensors and plain values") from None


def refuse_error(answer: Message) -> None:
    """Refuses the answer of a site that says it failed."""
    if "error" in answer.facts:
        said = from_outside(answer.facts["error"])
        kind = Diverging if answer.facts.get(DIVERGED) is True else BadReply
        raise kind(f"failed: {said}", "look at the site's own log", error_in(answer.facts))


def number(answer: Message, fact: str) -> float:
    """A loss or a score that a site was asked for: finite, and not beyond all reason."""
    given = answer.facts.get(fact, math.nan)
    value = finite(given)
    if value is None or abs(value) > SCORE_BOUND:
        refused = out_of_bounds(f"its {fact}", given, value, SCORE_BOUND)
        diverged = fact == "loss" and isinstance(answer.facts.get(fact), float)
        raise Diverging(refused.reason, refused.remedy) if diverged else refused
    return value


def loss_in(answer: Message) -> float | None:
    """The loss of a reply; None where the site withholds it, with the price of a private reply."""
    private = answer.facts.get("loss", math.nan) is None and "spent" in answer.facts
    return None if private else number(answer, "loss")


def out_of_bounds(what: str, given: Any, value: float | None, bound: float) -> BadReply:
    """The refusal of a number that is not finite, or beyond all reason."""
    if value is None:
        return BadReply(f"{what} is {from_outside(given)}")
    return BadReply(f"{what} is {value!r}, beyond {bound:g}", "look at this site's data")


def finite(value: Any) -> float | None:
    """The value as a finite number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def no_arrays(answer: Message) -> None:
    """Refuses tensors where only plain values were asked for."""
    if answer.arrays:
        raise BadReply(f"sent {_names(answer)} that nobody asked for")


def trained_model(answer: Message, start: Model, how: Encoding) -> Model:
    """The model a client has trained: shapes and types of the one it started from, all finite."""
    expected = kinds(start, how)
    arrays = {k: a for k, a in answer.arrays.items() if not k.startswith(BACK)}
    found = {k: Kind(a.shape, a.dtype) for k, a in arrays.items()}
    if expected != found:
        raise BadReply(
            f"its model does not fit the network: {from_outside(found)} instead of {expected}",
            SAME_STUDY,
        )
    model = opened(arrays, how, start.values.dtype, start, start.form)
    if not math.isfinite(float(model.values.sum())):
        raise Diverging(
            "its trained model holds numbers that are not finite",
            "lower training.learning_rate, or look at this site's images",
        )
    return model


def trained_reply(answer: Message, start: Model, how: Encoding, asked: LocalRequest) -> Reply:
    """All that a client replies to LocalTrain: what was asked for, and no more."""
    told: dict[str, float] = {name: number(answer, name) for name in asked.tell}
    for name, value in told.items():
        if not value > 0:
            raise BadReply(f"its {name} is {value:g}", SAME_STUDY)
    if asked.probe:
        told["probe"] = number(answer, "probe")
    back = {k.removeprefix(BACK): a for k, a in answer.arrays.items() if k.startswith(BACK)}
    if set(back) != set(asked.rule.returns):
        raise BadReply(f"sent {_names(answer)} where {asked.rule.returns} was asked for")
    wanted = ((asked.length,), start.values.dtype)
    for what, vector in back.items():
        if (vector.shape, vector.dtype) != wanted or not bool(torch.isfinite(vector).all()):
            raise BadReply(f"its {what} is not {asked.length} finite numbers", SAME_STUDY)
    kept = digest_in(answer.facts, "kept") if asked.rule.keeps else ""
    return Reply(trained_model(answer, start, how), loss_in(answer), told, back, kept)


def digest_in(facts: Mapping[str, Any], name: str) -> str:
    """The digest of something that a site keeps."""
    digest = facts.get(name)
    if not isinstance(digest, str) or not re.fullmatch(f"[0-9a-f]{{{DIGEST}}}", digest):
        raise BadReply(f"its digest of what it keeps is {from_outside(digest)}", SAME_STUDY)
    return digest


def theta_of(answer: Message, beta: Tensor, s: int) -> tuple[Tensor, float | None]:
    """theta^{s,k}: the shape and type of beta, finite, not beyond all reason; and the loss."""
    loss = loss_in(answer)
    if set(answer.arrays) != {"theta"}:
        raise BadReply(
            f"answered step {s} with {_names(answer)} instead of theta",
            "give every site the same version",
        )
    theta = answer.arrays["theta"]
    remedy = "lower method.beta_rate, or look at this site's images"
    fits = (theta.shape, theta.dtype) == (beta.shape, beta.dtype)
    largest = float(torch.linalg.vector_norm(theta, math.inf)) if fits else math.nan
    if not math.isfinite(largest):
        kind = Diverging if fits else BadReply
        raise kind(f"its beta for step {s} has a wrong shape or is not finite", remedy)
    if largest > THETA_BOUND:
        raise BadReply(f"its beta for step {s} holds {largest:g}, beyond {THETA_BOUND:g}", remedy)
    return theta, loss


def gradient_of(
    answer: Message, length: int, kind: torch.dtype, s: int
) -> tuple[Tensor, float | None]:
    """The gradient of step s, `length` finite numbers of the network's type; and the loss."""
    loss = loss_in(answer)
    gradient = answer.arrays.get("gradient", torch.empty(0))
    fits = len(answer.arrays) == 1 and (gradient.shape, gradient.dtype) == ((length,), kind)
    if not fits or not bool(torch.isfinite(gradient).all()):
        raise (Diverging if fits else BadReply)(
            f"its gradient for step {s} is not {length} finite numbers of {kind}",
            "give every site the same study, or look at this site's images",
        )
    return gradient, loss


def scores_of(answer: Message, site: Site, split: str, metric: str | None = None) -> list[Score]:
    """One number within bounds per case and metric, no case twice, all of the site's cases.

    Args:
        answer: the site's.
        site: its name, and its number of cases where that is known.
        split: whose cases were to be scored.
        metric: the metric that every case must have.
    """
    no_arrays(answer)
    given_scores = answer.facts.get("scores")
    if not isinstance(given_scores, list) or not given_scores:
        raise BadReply("sent no scores")
    rows: dict[tuple[str, str], Score] = {}
    for line in given_scores:
        if not isinstance(line, list | tuple) or len(line) != 3:
            raise BadReply(f"sent {from_outside(line)} for a score")
        case, name, given = line
        if not isinstance(case, str) or not isinstance(name, str):
            raise BadReply(f"sent {from_outside(line)} for a score")
        if len(case) > LONGEST_NAME or len(name) > LONGEST_NAME:
            long = max(case, name, key=len)
            length = f"a name has {len(long)} characters, more than {LONGEST_NAME}"
            raise BadReply(f"{length}: {from_outside(long)}")
        value, bound = finite(given), SCORE_BOUND if name == metric else COUNT_BOUND
        if value is None or abs(value) > bound:
            what = f"{from_outside(name)} of case {from_outside(case)}"
            raise out_of_bounds(what, given, value, bound)
        if (case, name) in rows:
            raise BadReply(f"scored case {from_outside(case)} twice")
        rows[case, name] = Score(site.name, case, name, value)
    if len({name for _, name in rows}) > MOST_METRICS:
        raise BadReply(f"has more than {MOST_METRICS} scores for a case", SAME_STUDY)
    _refuse_holes(rows, site, split, metric)
    return list(rows.values())


def personal_of(
    answer: Message, read: Callable[[Message], list[Scored]], *, needed: bool
) -> tuple[str, list[Scored]] | None:
    """Digest and scores of a site's personal predictor; None where it has lost it."""
    own = answer.facts.get("personal")
    if own is None and needed:
        raise BadReply(LOST)
    if own is None:
        return None
    if not isinstance(own, dict):
        raise BadReply(f"sent {from_outside(own)} for its personal model")
    scores = read(Message({}, {key: said for key, said in own.items() if key != "digest"}))
    return digest_in(own, "digest"), scores


def _refuse_holes(
    rows: Mapping[tuple[str, str], Score], site: Site, split: str, metric: str | None
) -> None:
    """Refuses scores of fewer or more cases than the site has, and cases without the metric."""
    cases = dict.fromkeys(case for case, _ in rows)
    for case in cases:
        if metric is not None and (case, metric) not in rows:
            raise BadReply(f"case {from_outside(case)} has no {metric}", SAME_STUDY)
    count = site.cases.get(split, len(cases))
    if len(cases) != count:
        raise BadReply(f"scored {len(cases)} cases of {split}, and it has {count}", SAME_STUDY)


def class_counts_of(answer: Message) -> list[int] | None:
    """Training cases per class, or None where the site does not know them."""
    no_arrays(answer)
    counts = answer.facts.get("classes")
    if counts is None:
        return None
    whole = isinstance(counts, list) and len(counts) <= MOST_CLASSES
    whole = whole and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MOST_CASES for n in counts
    )
    if not whole:
        raise BadReply(f"its class counts are {from_outside(counts)}")
    return list(counts)


def lacks(answer: Message) -> bool:
    """Whether a client says that it lacks what the request is about."""
    return answer.facts.get("missing") is True


def missing_of(answer: Message, sites: Sequence[str]) -> list[str]:
    """The models, by site, that a client says it has not got."""
    missing = answer.facts.get("missing", [])
    if not isinstance(missing, list) or not all(name in sites for name in missing):
        raise BadReply(f"says it misses {from_outside(missing)}")
    return [name for name in sites if name in missing]


def _names(answer: Message) -> str:
    return from_outside(sorted(answer.arrays))
