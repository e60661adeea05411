"""How much of its scores a site discloses, at both ends (decision 64).

By default a site sends a score for every case and metric. Asked for means, it sends one mean and
one count for the study's metric, and for each class of it: no name of a case, no case's score, and
no other metric, such as the size of a lesion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autofedavg.core.errors import DataError, from_outside
from autofedavg.core.problem import CaseScore
from autofedavg.core.scores import MeanRow, ScoreRow
from autofedavg.core.site import Facts, Site
from autofedavg.federation.messages import Message, Score, SiteMean
from autofedavg.federation.replies import (
    LONGEST_NAME,
    MOST_CASES,
    MOST_METRICS,
    SAME_STUDY,
    SCORE_BOUND,
    BadReply,
    finite,
    no_arrays,
    out_of_bounds,
    personal_of,
    scores_of,
)
from autofedavg.federation.settings import Exchange

SiteScore = Score | SiteMean


def means_wanted(exchange: Exchange, metric: str) -> Facts:
    """What a request for scores says of disclosure: nothing, or the metric whose mean it is for."""
    return {"means": metric} if exchange.disclose == "means" else {}


def disclosed(scores: Sequence[CaseScore], metric: str | None, site: str) -> Facts:
    """A site's scores as it sends them; with a metric, means of it and of its classes alone.

    Raises:
        DataError: no case has the metric.
    """
    if metric is None:
        return {"scores": [list(score) for score in scores]}
    values: dict[str, list[float]] = {}
    for score in scores:
        if _of(metric, score.metric):
            values.setdefault(score.metric, []).append(score.value)
    if metric not in values:
        raise DataError(f"no case has a score called {metric}", where=f"site {site}")
    # Summed as the server sums the scores of cases: the same models are selected.
    means = [[name, sum(found) / len(found), len(found)] for name, found in values.items()]
    return {"means": means}


@dataclass(frozen=True)
class ScoreRequest:
    """What a call asks of every site's scores.

    Attributes:
        split: whose cases are scored.
        metric: the score that every case must have; None for any.
        means: empty for the scores of all cases, or what `means_wanted` says.
    """

    split: str
    metric: str | None
    means: Facts

    def read(
        self, reply: Message, site: Site, *, both: bool, needed: bool
    ) -> tuple[list[SiteScore], dict[str, tuple[str, list[SiteScore]]]]:
        """The scores of a reply; with `both`, digest and scores of the personal predictor, too.

        Raises:
            BadReply: it holds something else, or no personal predictor where one is needed.
        """
        if not both:
            return self._scores(reply, site), {}
        own = personal_of(reply, lambda told: self._scores(told, site), needed=needed)
        rest = {key: said for key, said in reply.facts.items() if key != "personal"}
        rows = self._scores(Message(reply.arrays, rest), site)
        return rows, {} if own is None else {site.name: own}

    def _scores(self, reply: Message, site: Site) -> list[SiteScore]:
        if self.means:
            return [*means_of(reply, site, self.split, self.means["means"])]
        return [*scores_of(reply, site, self.split, self.metric)]


def score_row(model: str, split: str, score: SiteScore) -> ScoreRow | MeanRow:
    """A line of a run's scores.csv."""
    if isinstance(score, SiteMean):
        return MeanRow(model, score.site, split, *score[1:])
    return ScoreRow(model, score.site, split, *score[1:])


def means_of(reply: Message, site: Site, split: str, metric: str) -> list[SiteMean]:
    """One mean within bounds for the metric and for each of its classes, and nothing else.

    Raises:
        BadReply: it holds more or less than was asked for.
    """
    no_arrays(reply)
    more = sorted(reply.facts.keys() - {"means"})
    if more:
        raise BadReply(f"sent {from_outside(more)} where only means were asked for", SAME_STUDY)
    given = reply.facts.get("means")
    if not isinstance(given, list) or not 0 < len(given) <= MOST_METRICS:
        raise BadReply("sent no means, or too many")
    found: dict[str, SiteMean] = {}
    for line in given:
        mean = _mean(line, site, metric)
        if mean.metric in found:
            raise BadReply(f"sent the mean of {from_outside(mean.metric)} twice", SAME_STUDY)
        found[mean.metric] = mean
    if metric not in found:
        raise BadReply(f"sent no mean of {metric}", SAME_STUDY)
    count = site.cases.get(split, found[metric].cases)
    if found[metric].cases != count:
        told = f"scored {found[metric].cases} cases of {split}, and it has {count}"
        raise BadReply(told, SAME_STUDY)
    for mean in found.values():  # a class may be absent from some cases
        if mean.cases > count:
            raise BadReply(f"has {mean.cases} scores of {from_outside(mean.metric)}", SAME_STUDY)
    return list(found.values())


def _mean(line: object, site: Site, metric: str) -> SiteMean:
    """One line of a reply: metric, mean, number of cases."""
    if not isinstance(line, list | tuple) or len(line) != 3:
        raise BadReply(f"sent {from_outside(line)} for a mean")
    name, given, count = line
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _of(metric, name):
        raise BadReply(f"sent a mean of {from_outside(name)} that nobody asked for", SAME_STUDY)
    value = finite(given)
    if value is None or abs(value) > SCORE_BOUND:
        raise out_of_bounds(f"its mean {from_outside(name)}", given, value, SCORE_BOUND)
    if type(count) is not int or not 1 <= count < MOST_CASES:
        raise BadReply(f"its number of cases is {from_outside(count)}")
    return SiteMean(site.name, name, value, count)


def _of(metric: str, name: str) -> bool:
    """Whether a score is of the metric, or of one of its classes ("dice:liver")."""
    return name == metric or name.startswith(f"{metric}:")
