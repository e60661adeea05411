"""What the documentation says of models in 16 and in 8 bits is what the runs say."""

import statistics

import pytest

from published import half_interval, words

STUDIES = {"study-messages": "bench-skew", "study-messages-lgg": "study-lgg"}
METHODS = ("fedavg", "n-softmax")
LOSSY = ("bfloat16", "difference")


@pytest.fixture(scope="module")
def rows(rebuild):
    """By study, method and encoding: the row."""
    return {
        (study, row.name.removesuffix(f"-{how}"), how if row.name.endswith(how) else "float32"): row
        for study, exact in STUDIES.items()
        for row in rebuild.travel.beside(rebuild.results(study), rebuild.results(exact)).rows
        for how in LOSSY
        if row.name.endswith(how) or row.name in METHODS
    }


@pytest.fixture(scope="module")
def apart(rebuild, rows):
    """By study, method and encoding: points from float32, of each seed."""
    travel = rebuild.travel
    found = {}
    for study in STUDIES:
        for method in METHODS:
            whole = rows[study, method, "float32"]
            known = travel.scores(whole, travel.rounds_of(whole))
            for how in LOSSY:
                mine = travel.scores(rows[study, method, how], travel.rounds_of(whole))
                assert mine.keys() == known.keys()
                found[study, method, how] = [mine[seed] - known[seed] for seed in mine]
    return found


def test_rows_differ_in_nothing_but_how_models_travel(rows) -> None:
    """Settings that came later have values that change nothing."""
    for (study, method, how), row in rows.items():
        whole = rows[study, method, "float32"].repeats[0].config
        mine = row.repeats[0].config
        down, up = (mine.get("exchange", {}).get(way, "float32") for way in ("down", "up"))
        assert (down, up) == (how, how)
        for part in ("task", "training", "method"):
            shared = mine[part].keys() & whole[part].keys()
            assert {key: mine[part][key] for key in shared} == {
                key: whole[part][key] for key in shared
            }


def test_neither_encoding_costs_a_score_that_can_be_seen(rebuild, apart) -> None:
    text = words("docs/reproduction.md")
    pictures = {key: points for key, points in apart.items() if key[0] == "study-messages"}
    most = max(abs(point) for points in pictures.values() for point in points)
    assert f"no run ends more than {most:.1f} points from float32 with the same seed" in text
    pooled = {
        how: [p for key, points in pictures.items() if key[2] == how for p in points]
        for how in LOSSY
    }
    said = {
        how: f"{statistics.fmean(p):+.1f} ± {half_interval(p):.1f}" for how, p in pooled.items()
    }
    assert (
        f"the mean difference is {said['bfloat16']} points for bfloat16 and {said['difference']} "
        "for 8-bit differences (95 % interval)" in text
    )
    hospitals = [p for key, points in apart.items() if key[0] != "study-messages" for p in points]
    assert len(hospitals) == 4
    assert f"between {min(hospitals):.1f} and {max(hospitals):+.1f} points" in text
    spreads = []
    for study, exact in STUDIES.items():
        for method in METHODS:
            T = rebuild.travel.rounds_of(rebuild.results(study).row(f"{method}-bfloat16"))
            seeds = rebuild.travel.scores(rebuild.results(exact).row(method), T)
            spreads.append(statistics.stdev(seeds.values()))
    assert f"their standard deviation is {min(spreads):.1f} to {max(spreads):.1f}." in text
    assert max(abs(p) for points in apart.values() for p in points) < min(spreads)


def test_the_bytes_of_the_encodings(rebuild, rows) -> None:
    text, travel = words("docs/reproduction.md"), rebuild.travel
    sent = {key: travel.megabytes(row, travel.rounds_of(row)) for key, row in rows.items()}
    shares = {
        how: [
            100 * mb / sent[study, m, "float32"] for (study, m, h), mb in sent.items() if h == how
        ]
        for how in LOSSY
    }
    few, half = ([round(f(shares[how])) for f in (min, max)] for how in ("difference", "bfloat16"))
    assert f"8-bit differences need {few[0]} to {few[1]} % of the bytes" in text
    assert f"bfloat16 {half[0]} to {half[1]} %." in text
    learned = sent["study-messages", "n-softmax", "difference"]
    exact, small = (sent["study-messages", "fedavg", how] for how in ("float32", "difference"))
    assert (
        f"sends {learned / exact:.1f} times the bytes of FedAvg in float32, and "
        f"{learned / small:.1f} times those of FedAvg in 8-bit differences" in text
    )
