"""What a site discloses of its scores: means and counts where they are asked for, and no more."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import DataError, FederationError
from autofedavg.core.problem import CaseScore
from autofedavg.core.scores import MeanRow, ScoreRow
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Site
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.run import RunLoop
from autofedavg.federation.disclosure import ScoreRequest, disclosed, score_row
from autofedavg.federation.messages import Message, Score, Scores, SiteMean
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.federation.replies import BadReply
from autofedavg.federation.settings import Exchange
from autofedavg.methods import METHODS
from toy import CPU, METRIC, TRAINING, DirectFleet, forge, toy_problem

MEANS = Exchange(disclose="means")
SITE = Site("A", {"test": 3})
WANTED = ScoreRequest("test", "dice", {"means": "dice"})
NUMBERS = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_means_are_those_that_the_server_makes_of_cases(values):
    """Bit for bit, so that the same models are selected."""
    scores = [CaseScore(f"c{i}", "dice", one) for i, (one, _) in enumerate(values)]
    scores += [CaseScore(f"c{i}", "dice:liver", other) for i, (_, other) in enumerate(values)]
    site = Site("A", {"test": len(values)})
    rows = []
    for means in ({}, {"means": "dice"}):
        said = json.loads(json.dumps(disclosed(scores, means.get("means"), "A")))
        request = ScoreRequest("test", "dice", means)
        rows.append(request.read(Message({}, said), site, both=False, needed=False)[0])
    for metric in ("dice", "dice:liver"):
        by_cases, by_means = (Scores(tuple(each)).by_site(metric) for each in rows)
        assert by_cases == by_means
    assert {row.cases for row in rows[1]} == {len(values)}


def test_names_sizes_and_scores_of_cases_stay():
    scores = [CaseScore("patient-7", "dice", 0.25), CaseScore("patient-7", "label_voxels", 4711.0)]
    scores += [CaseScore("patient-8", "dice", 0.75), CaseScore("patient-8", "label_voxels", 10.0)]
    scores += [CaseScore("patient-8", "dice2", 0.125)]
    assert disclosed(scores, "dice", "A") == {"means": [["dice", 0.5, 2]]}
    assert disclosed(scores, None, "A") == {"scores": [list(score) for score in scores]}
    with pytest.raises(DataError, match="site A: no case has a score called f1"):
        disclosed(scores, "f1", "A")


GOOD = [["dice", 0.5, 3], ["dice:liver", 0.25, 2]]


def test_what_was_asked_for_is_read():
    rows, own = WANTED.read(Message({}, {"means": GOOD}), SITE, both=False, needed=False)
    assert (rows, own) == (
        [SiteMean("A", "dice", 0.5, 3), SiteMean("A", "dice:liver", 0.25, 2)],
        {},
    )
    personal = {"digest": "0" * 32, "means": GOOD[:1]}
    told = Message({}, {"means": GOOD, "personal": personal})
    rows, own = WANTED.read(told, SITE, both=True, needed=True)
    assert own == {"A": ("0" * 32, [SiteMean("A", "dice", 0.5, 3)])}
    told = Message({}, {"means": GOOD, "personal": None})
    assert WANTED.read(told, SITE, both=True, needed=False) == (rows, {})


CASES = [["c1", "dice", 0.5]]
BAD = [
    ({"scores": CASES}, r"sent \['scores'\] where only means were asked for"),
    ({"means": GOOD, "scores": CASES}, r"sent \['scores'\] where only means"),
    ({"means": GOOD, "personal": {}}, r"sent \['personal'\] where only means"),
    ({"means": GOOD, "sizes": [1]}, r"sent \['sizes'\] where only means"),
    ({}, "sent no means"),
    ({"means": []}, "sent no means"),
    ({"means": "dice"}, "sent no means"),
    ({"means": [[f"dice:{i}", 0.5, 1] for i in range(1001)]}, "or too many"),
    ({"means": [["dice", 0.5]]}, r"sent \['dice', 0.5\] for a mean"),
    ({"means": [7]}, "sent 7 for a mean"),
    ({"means": [*GOOD, ["label_voxels", 9.0, 3]]}, "a mean of label_voxels that nobody asked for"),
    ({"means": [*GOOD, ["dice2", 0.5, 3]]}, "a mean of dice2 that nobody asked for"),
    ({"means": [[1, 0.5, 3]]}, "a mean of 1 that nobody asked for"),
    ({"means": [*GOOD, ["dice:" + "x" * 200, 0.5, 3]]}, "that nobody asked for"),
    ({"means": [*GOOD, GOOD[0]]}, "sent the mean of dice twice"),
    ({"means": [["dice", "high", 3]]}, "its mean dice is high"),
    ({"means": [["dice", float("nan"), 3]]}, "its mean dice is nan"),
    ({"means": [["dice", 1e7, 3]]}, "its mean dice is 10000000.0, beyond"),
    ({"means": [["dice", 0.5, True]]}, "its number of cases is True"),
    ({"means": [["dice", 0.5, 0]]}, "its number of cases is 0"),
    ({"means": [["dice", 0.5, 3.0]]}, "its number of cases is 3.0"),
    ({"means": [["dice", 0.5, 10**9]]}, "its number of cases is 1000000000"),
    ({"means": [["dice:liver", 0.5, 3]]}, "sent no mean of dice"),
    ({"means": [["dice", 0.5, 2]]}, "scored 2 cases of test, and it has 3"),
    ({"means": [["dice", 0.5, 3], ["dice:liver", 0.5, 4]]}, "has 4 scores of dice:liver"),
]


@pytest.mark.parametrize(("facts", "why"), BAD, ids=[why for _, why in BAD])
def test_more_or_less_than_was_asked_for_is_refused(facts, why):
    with pytest.raises(BadReply, match=why):
        WANTED.read(Message({}, facts), SITE, both=False, needed=False)
    if "personal" not in facts:
        own = {"digest": "0" * 32, **facts}
        told = Message({}, {"means": GOOD, "personal": own})
        with pytest.raises(BadReply, match=why):
            WANTED.read(told, SITE, both=True, needed=True)


def test_arrays_that_come_with_means_are_refused():
    """Nobody looks into them: they could hold images."""
    reply = Message({"more": torch.zeros(3)}, {"means": GOOD})
    with pytest.raises(BadReply, match=r"sent \['more'\] that nobody asked for"):
        WANTED.read(reply, SITE, both=False, needed=False)


def test_the_port_asks_for_means_and_names_the_site_that_says_more(problem):
    w = problem.initial(Seeds(7))[0]
    transport = DirectFleet(problem)
    scores = Federation(transport, exchange=MEANS, metric=METRIC).evaluate(w, "validation")
    assert {message.facts["means"] for message in transport.sent("evaluate")} == {METRIC}
    assert [(row.site, row.cases) for row in scores.rows] == [(name, 6) for name in "ABC"]
    plain = Federation(DirectFleet(problem), metric=METRIC).evaluate(w, "validation")
    assert plain.by_site(METRIC) == scores.by_site(METRIC)
    more = Message({}, {"scores": [["case", METRIC, 0.5]]})
    transport = DirectFleet(problem, intercept=forge("B", "evaluate", more))
    with pytest.raises(FederationError, match=r"client B, evaluate: sent \['scores'\] where only"):
        Federation(transport, exchange=MEANS, metric=METRIC).evaluate(w, "validation")


def test_a_line_of_scores_is_of_a_case_or_of_a_site():
    case = score_row("global", "test", Score("A", "c", "dice", 0.5))
    assert case == ScoreRow("global", "A", "test", "c", "dice", 0.5)
    site = score_row("global", "test", SiteMean("A", "dice", 0.5, 3))
    assert site == MeanRow("global", "A", "test", "dice", 0.5, 3)


def a_run(name, folder, exchange, select):
    problem = toy_problem(3)
    transport = DirectFleet(problem)
    proxy = Proxy.of(problem, TRAINING, transport.seeds, CPU)
    federation = Federation(transport, exchange=exchange, metric=METRIC, proxy=proxy)
    w0, layout = problem.initial(Seeds(7))
    home = RunFolder.create(folder, "", {})
    general = Rounds(rounds=3, select=select)
    RunLoop(METHODS[name](), general, federation, layout, METRIC, home).run(w0)
    return home


@pytest.mark.parametrize("select", ["best", "last"])
@pytest.mark.parametrize("name", ["fedavg", "auto-fedavg", "ditto", "fedce", "local-only"])
def test_disclosure_changes_no_model(name, select, tmp_path):
    whole = a_run(name, tmp_path / "all", Exchange(), select)
    means = a_run(name, tmp_path / "means", MEANS, select)
    drop = ("time", "calls", "bytes_down", "bytes_up")
    lines = [[{k: v for k, v in ln.items() if k not in drop} for ln in r.rounds()]
             for r in (whole, means)]  # fmt: skip
    assert lines[0] == lines[1]
    for file in (whole.path / "checkpoints").glob("*.json"):
        told, same = (json.loads((r.path / "checkpoints" / file.name).read_text())
                      for r in (whole, means))  # fmt: skip
        assert told["sha256"] == same["sha256"]
    assert not list(means.scores().columns())
    assert set(means.scores().groups) == set(whole.scores().groups)
