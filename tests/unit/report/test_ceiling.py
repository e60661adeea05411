"""The sentence about the ceiling, by its interval, and the means over repeats."""

import pytest

from autofedavg.core.gains import Gain
from autofedavg.report.ceiling import Measured, measured, sentence, table_of_ceilings

NONE = Gain(0.0, 0.0)


def line(gain: Gain, **others: Gain) -> Measured:
    gains = {"fedavg": NONE, "network": NONE, "layer": gain, "scaled": Gain(-0.1, 0.01), **others}
    return Measured("FedAvg", 99, "test", 0.89, gains)


@pytest.mark.parametrize(
    ("gain", "says"),
    [
        (
            Gain(0.001, 0.002),
            "could gain 0.1 ± 0.2 points here: not worth their traffic (layer-wise).",
        ),
        (Gain(0.005, 0.0), "not worth their traffic (layer-wise)."),
        (Gain(0.13, 0.01), "13.0 ± 1.0 points here: layer-wise weights are worth learning."),
        (Gain(0.01, 0.006), "a real gain, and perhaps a small one (layer-wise)."),
        (Gain(0.01, 0.01), "these cases are too few to tell (layer-wise)."),
        (Gain(0.01, 0.2), "these cases are too few to tell (layer-wise)."),
        (Gain(0.001, 0.01), "these cases are too few to tell (layer-wise)."),
        (
            Gain(-0.001, 0.01),
            "could gain -0.1 ± 1.0 points here: these cases are too few to tell (layer-wise).",
        ),
    ],
    ids=str,
)
def test_the_interval_decides_the_words(gain, says):
    assert sentence(line(gain)).endswith(says)
    assert sentence(line(gain)).startswith("FedAvg, round 99: better weights could gain")


@pytest.mark.parametrize(
    ("network", "layer", "scaled", "says"),
    [
        (
            (5.0, 1.0), (5.5, 8.0), (5.0, 1.0),
            "better weights could gain 5.0 ± 1.0 points here: network-wise weights are worth "
            "learning.",
        ),
        (
            (5.0, 1.0), (5.5, 2.0), (9.0, 1.0),
            "better weights could gain 5.5 ± 2.0 points here: layer-wise weights are worth "
            "learning.",
        ),
        (
            (0.1, 0.2), (0.0, 0.1), (5.0, 1.0),
            "scaled weights could gain 5.0 ± 1.0 points here: worth learning, with their factor "
            "on the whole model.",
        ),
        (
            (0.1, 0.2), (0.0, 0.1), (0.4, 0.6),
            "better weights could gain 0.1 ± 0.2 points here: not worth their traffic "
            "(network-wise).",
        ),
        (
            (0.4, 0.3), (0.5, 8.0), (0.4, 0.6),
            "better weights could gain 0.4 ± 0.3 points here: a real gain, and perhaps a small "
            "one (network-wise).",
        ),
        (
            (0.1, 0.2), (0.0, 8.0), (0.1, 0.2),
            "better weights could gain 0.0 ± 8.0 points here: these cases are too few to tell "
            "(layer-wise).",
        ),
    ],
)  # fmt: skip
def test_a_wide_interval_does_not_hide_a_sure_gain_and_a_factor_is_no_weight(
    network, layer, scaled, says
):
    kinds = {"network": network, "layer": layer, "scaled": scaled}
    gains = {kind: Gain(mean / 100, margin / 100) for kind, (mean, margin) in kinds.items()}
    assert sentence(Measured("FedAvg", 5, "test", 0.5, gains)) == f"FedAvg, round 5: {says}"


def content(gain: float, margin: float, **more: dict) -> dict:
    row = {"score": 0.5, "gain": 0.0, "margin": 0.0, "sites": {}}
    rows = dict.fromkeys(("fedavg", "network", "scaled"), row) | more
    rows["layer"] = {**row, "gain": gain, "margin": margin}
    return {"split": "test", "rounds": [{"t": 5, "rows": rows}]}


def test_repeats_are_averaged_and_share_their_cases():
    own = {"score": 0.6, "gain": 0.1, "margin": 0.0, "sites": {}}
    (found,) = measured("row", [content(0.02, 0.01), content(0.04, 0.03, **{"local-A": own})])
    assert found.gains["layer"] == pytest.approx(Gain(0.03, 0.02))
    assert "local-A" not in found.gains  # not of both
    assert found.best_site is None


def test_the_table_has_columns_for_what_was_measured_and_a_sentence_for_every_round():
    early = line(Gain(0.2, 0.01))._replace(t=5)
    late = line(
        Gain(0.0, 0.001), run=NONE, **{"local-A": Gain(-0.2, 0.1), "local-B": Gain(-0.1, 0.1)}
    )
    table = table_of_ceilings([early, late])
    assert table.heads == (
        "FedAvg", "network-wise", "layer-wise", "scaled", "this run", "best site",
    )  # fmt: skip
    assert [label for label, _ in table.rows] == ["FedAvg - round 5", "FedAvg - round 99"]
    cells = table.rows[1][1]
    assert (cells[0].value, cells[-1].value, cells[-1].spread) == pytest.approx((89.0, -10.0, 10.0))
    assert table.rows[0][1][-1].value is None
    assert table.notes[0].startswith("FedAvg, round 5: ")
    assert table.notes[1].startswith("FedAvg, round 99: ")
    assert table_of_ceilings([]) is None
