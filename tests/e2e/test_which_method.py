"""The guide to the methods says what the published runs say, and nothing without a run."""

import re
import shlex
import statistics

import pytest
import typer

from autofedavg import cli
from published import ROOT, gains_of, half_interval, words

PAGE = "docs/which-method.md"
DECIMAL = re.compile(r"\d+\.\d+")
LINK = re.compile(r"\(reproduction\.md#([\w-]+)\)")
LGG, SKEW, TUNED, TOGETHER = "study-lgg", "bench-skew", "bench-hospitals-tuned", "seven-studies"
FEDAVG, EVEN, AVERAGE = "FedAvg", "FedAvg - even", "global test avg"
LEARNED = "Auto-FedAvg-N-Softmax, S = 100"


@pytest.fixture(scope="module")
def cell(rebuild):
    """A cell of a rebuilt table, without marks and spread."""

    def found(study: str, table: str, row: str, column: str) -> str:
        lines = [line for line in rebuild.tables(study)[table].splitlines() if line[:1] == "|"]
        split = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines}
        heads = [head.strip() for head in split[""]]
        text = split[row][heads.index(column)]
        return re.sub(r"[*†]| ±.*", "", text).strip()

    return found


@pytest.fixture(scope="module")
def rows(rebuild):
    """The labels of a table's rows."""

    def found(study: str, table: str) -> list[str]:
        lines = [line for line in rebuild.tables(study)[table].splitlines() if line[:1] == "|"]
        labels = [line.split("|")[1].strip() for line in lines[2:]]
        return [label for label in labels if not label.startswith("*")]

    return found


def sections(rebuild) -> dict[str, tuple[str, set[str]]]:
    """Anchor -> text and studies of that section of docs/reproduction.md."""
    found = {}
    for part in re.split(r"^##+ ", (ROOT / "docs/reproduction.md").read_text(), flags=re.MULTILINE):
        title, _, text = part.partition("\n")
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        found[anchor] = (text, {study for _, study, _, _, _ in rebuild.BLOCK.findall(text)})
    return found


def blocks() -> list[str]:
    """The page's paragraphs, list items and table rows, without code and names of files."""
    text = re.sub(r"^```.*?^```", "", (ROOT / PAGE).read_text(), flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=[-|]|\d+\. )", text)
    return [" ".join(part.split()) for part in parts]


def test_its_commands_are_commands_of_the_package() -> None:
    (code,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    verbs = typer.main.get_command(cli.app).commands
    lines = [shlex.split(line, comments=True) for line in code.splitlines()]
    assert [line[1] for line in lines] == ["run", "ceiling", "tune", "run", "report"]
    for name, verb, *arguments in lines:
        assert name == "autofedavg"
        verbs[verb].make_context(verb, arguments)  # refuses unknown options and wrong values


def test_it_is_short() -> None:
    assert len((ROOT / PAGE).read_text().splitlines()) <= 150


def test_its_sentences_are_short(sentences) -> None:
    text = (ROOT / PAGE).read_text()
    assert sentences.mean_length(text) < 20
    assert max(map(sentences.words, sentences.sentences(text))) <= sentences.LONGEST


def test_every_number_is_in_the_section_that_its_sentence_links_to(rebuild) -> None:
    """In a table of the section's studies, or in the section's text, which tests hold as well."""
    known, checked = sections(rebuild), 0
    for block in blocks():
        numbers = DECIMAL.findall(re.sub(r"Dir\(\d\.\d\)|`[^`]*`", "", LINK.sub("", block)))
        if not numbers:
            continue
        linked = LINK.findall(block)
        assert linked, f"no runs behind: {block}"
        text = "".join(known[anchor][0] for anchor in linked)
        studies = {study for anchor in linked for study in known[anchor][1]}
        tables = [table for study in studies for table in rebuild.tables(study).values()]
        there = set(DECIMAL.findall("\n".join([text, *tables])))
        assert not [number for number in numbers if number not in there], block
        checked += len(numbers)
    assert checked > 50


def test_a_number_without_a_run_would_be_found(rebuild) -> None:
    known = sections(rebuild)
    text, studies = known["four-real-hospitals"]
    assert studies == {LGG}
    tables = rebuild.tables(LGG).values()
    assert "66.06" in DECIMAL.findall("\n".join(tables))
    assert "66.07" not in DECIMAL.findall("\n".join([text, *tables]))


def test_where_all_sites_are_good_nothing_beats_fedavg(rebuild, cell, rows) -> None:
    text = words(PAGE)
    mine = rows(LGG, "seeds")
    best = max(mine, key=lambda label: float(cell(LGG, "scores", label, AVERAGE)))
    said = f"four hospitals: {cell(LGG, 'scores', FEDAVG, AVERAGE)}, the best of nine other rows "
    said += f"{cell(LGG, 'scores', best, AVERAGE)} (p {cell(LGG, 'seeds', best, 'p (Holm)')} after"
    assert said in text
    assert len(mine) == 9
    for study in (LGG, "demo", "table1-cifar10", "study-few-rounds", SKEW):
        notes = rebuild.tables(study)["seeds"]
        assert "above FedAvg: none, and below FedAvg: none" in notes, study
    prox = cell(LGG, "scores", "FedProx", AVERAGE)
    assert f"{prox} where FedAvg has {cell(LGG, 'scores', FEDAVG, AVERAGE)}" in text
    own, alone = (cell(LGG, "scores", row, "local avg") for row in (FEDAVG, "Local only - FG"))
    assert f"common {cell(LGG, 'scores', FEDAVG, AVERAGE)}, each site's own best {own}" in text
    assert f"alone {alone}" in text
    drawn = cell("table1-cifar10", "scores", "FedAvg - random weights", AVERAGE)
    same = cell("table1-cifar10", "ceiling", "FedAvg - round 99", FEDAVG)  # of the same seed
    assert f"at random end at {drawn}, FedAvg with the same seed at {same}" in text
    gap = [cell("table1-cifar10", "seeds", "Auto-FedAvg-N-Dirichlet", column)
           for column in ("difference", "95 % from", "95 % to")]  # fmt: skip
    assert "N-Dirichlet is {} points from FedAvg, with an interval of {} to {}".format(*gap) in text


def test_learned_weights_lead_early(cell) -> None:
    text = words(PAGE)

    def after(study: str, row: str, t: int) -> str:
        return cell(study, "rounds", row, str(t))

    first, late = ([after(SKEW, row, t) for row in (LEARNED, FEDAVG)] for t in (5, 20))
    assert "after five rounds {}, FedAvg {}; after twenty".format(*first) in text
    assert "after twenty {} and {}".format(*late) in text
    blind = "Auto-FedAvg-N-Softmax, blind"
    pairs = [[after(SKEW, row, t) for row in (blind, FEDAVG)] for t in (5, 20)]
    assert "five rounds: {}, FedAvg {}; after twenty".format(*pairs[0]) in text
    assert "after twenty {} and {}".format(*pairs[1]) in text
    long = [after("bench-skew-long", row, t)
            for t in (50, 80) for row in (FEDAVG, f"{LEARNED}, t0 = auto")]  # fmt: skip
    said = "after fifty rounds {}, learned weights {}; after eighty {} and {} (two seeds)"
    assert said.format(*long) in text
    for count, n, study, row in (("two", "2", "study-few-rounds", "Auto-FedAvg-N-Dirichlet"),
                                 ("five", "5", "bench-skew-long", LEARNED)):  # fmt: skip
        columns = (row, "rounds for as many bytes", "FedAvg, as many bytes")
        worth = [cell(study, "worth", n, column) for column in columns]
        assert f"{count} learned rounds ({{}}), FedAvg trains {{}} ({{}})".format(*worth) in text
    p = cell(SKEW, "seeds", LEARNED, "p (Holm)")
    assert f"after twenty rounds has p = {p}" in text
    extra = float(cell(SKEW, "traffic", LEARNED, "extra, %"))
    assert f"costs {extra / 100:.1f} times FedAvg's traffic" in text


def test_what_the_skew_section_says_is_repeated(rebuild) -> None:
    """These sentences are held by the tests of docs/reproduction.md."""
    text, whole = words(PAGE), words("docs/reproduction.md")
    (five,) = re.findall(r"S = 100 is (\S+ ± \S+) points above FedAvg after five rounds", whole)
    (twenty,) = re.findall(r"after ten and (\S+ ± \S+) after twenty\.", whole)
    assert f"is {five} points above FedAvg after five rounds, and {twenty} after twenty" in text
    late = re.findall(
        r"average (\S+) points below FedAvg with the first seed, and (\S+) above", whole
    )
    said = "they are {} points below FedAvg on average with one seed, and {} above with another"
    assert said.format(*late[0]) in text
    (blind,) = re.findall(r"add (\S+ %) to FedAvg's traffic", whole)
    assert f"Its gradients add {blind} to FedAvg's traffic" in text
    few, every = re.findall(r"It moves (\S+ times) FedAvg's bytes instead of (\S+ times)", whole)[0]
    assert f"four calls of twenty: {few} FedAvg's bytes instead of {every}" in text


def test_the_ceiling(cell, rebuild) -> None:
    gains = [cell("bench-skew-long", "ceiling", f"FedAvg - round {t}", "network-wise")
             for t in (5, 20, 80)]  # fmt: skip
    said = "gain {} points in round 5, {} in round 20 and {} in round 80".format(*gains)
    assert said in words(PAGE)
    gains = [cell("table1-cifar10", "ceiling", f"FedAvg - round {t}", "network-wise")
             for t in (3, 10, 99)]  # fmt: skip
    said = "could gain {} in round 3, {} in round 10 and {} in round 99".format(*gains)
    assert said in words(PAGE)
    verdict = "better weights could gain 0.0 ± 0.2 points"
    assert f"round 99: {verdict} here: not worth" in rebuild.tables("table1-cifar10")["ceiling"]
    assert verdict in words("README.md")


def test_a_bad_hospital_is_found(cell) -> None:
    text, study = words(PAGE), "study-lgg-bad-site"
    assert f"where sizes give it {cell(study, 'weights', FEDAVG, 'DU')} of the weight" in text


def test_where_a_site_may_be_bad(cell, rebuild) -> None:
    text = words(PAGE)
    chosen, learned = rebuild.CHOSEN, "Auto-FedAvg-L-Dirichlet"
    behind = {row: cell(rebuild.ACROSS, "scores", row, "furthest behind")
              for row in (FEDAVG, EVEN, chosen, learned)}  # fmt: skip
    most = max(
        (cell(rebuild.ACROSS, "scores", row, "furthest behind")
         for row in rebuild.across() if row.startswith("Auto-FedAvg")), key=float,
    )  # fmt: skip
    said = f"at most {behind[learned]} to {most} points behind the best of six rows; FedAvg "
    assert f"{said}{behind[FEDAVG]}, even weights {behind[EVEN]} (five seeds, one" in text
    assert f"and {behind[FEDAVG]} points behind if the largest is" in text
    assert f"more than {behind[learned]} to {most} behind" in text
    said = f"variants stay within {most} points of the best of six rows (five seeds)"
    assert said in words("README.md")
    assert f"is at most {behind[chosen]} behind, in two trainings" in text
    gains = {label: statistics.fmean(studies[2]) for label, studies in
             rebuild.overview(TOGETHER).gains.items() if label != EVEN}  # fmt: skip
    assert rebuild.RANKED[2] == "demo"
    said = "are {:.2f} to {:.2f} below, not significantly after correction"
    assert said.format(-max(gains.values()), -min(gains.values())) in text
    said = "variants are {:.2f} to {:.2f} points below FedAvg, not significantly after correction."
    assert said.format(-max(gains.values()), -min(gains.values())) in words("docs/reproduction.md")


def test_what_blind_learning_brings(cell, rebuild) -> None:
    text, row = words(PAGE), "Auto-FedAvg-N-Softmax, blind"
    large, small, real = (cell(study, "seeds", row, "difference")
                          for study in ("study-bad-site", "study-bad-small-site", LGG))  # fmt: skip
    said = f"{float(large):+.1f} points from FedAvg, with the smallest bad {float(small):+.1f} ("
    assert said in text
    p = cell("study-bad-small-site", "seeds", row, "p (Holm)")
    said = f"The last is not significant after correction (p = {p})."
    assert said in words("docs/reproduction.md")
    assert all(gain < 0 for gain in gains_of(rebuild.results(LGG), "n-softmax-blind"))
    p = cell(LGG, "seeds", row, "p (Holm)")
    said = f"it is {real}, below with each of three seeds, which correction makes p = {p}"
    assert said in text


def test_bytes_and_what_did_not_matter(cell, rows, rebuild) -> None:
    text = words(PAGE)
    share, apart = (cell("study-messages", "travel", "FedAvg, 8-bit differences", column)
                    for column in ("% of float32", "points from float32"))  # fmt: skip
    said = " and ".join(apart.split(", "))
    assert f"{share} % of the bytes; {said} points from float32 (two seeds)" in text
    held = cell("table1-holdout", "tested", FEDAVG, "last test")
    whole = cell("table1-cifar10", "ceiling", "FedAvg - round 99", FEDAVG)  # seed 0, as well
    assert f"nine tenths of the images FedAvg ends at {held} (" in text
    assert f"With all of them and the same seed it ends at {whole} (" in text
    ablation = "ablation-bad-site"
    reference, trained = (
        cell(ablation, "scores", row, AVERAGE)
        for row in (
            "N-Dirichlet: t0 = 1, S = 10, step of beta 0.1, beta0 = 6",
            "learned on training cases",
        )
    )
    apart = gains_of(rebuild.results(ablation), "on-train", "n-dirichlet")
    gain = f"{statistics.fmean(apart):.1f} ± {half_interval(apart):.1f}"
    assert f"training cases {trained}, on validation cases {reference}: {gain} |" in text
    said = f"the row has {trained}, and with validation cases {reference}: {gain} with the same"
    assert said in words("docs/reproduction.md")
    network = [float(cell(ablation, "scores", row, AVERAGE)) for row in rows(ablation, "scores")
               if row not in (FEDAVG, EVEN) and not row.startswith("L-Dirichlet")]  # fmt: skip
    assert f"{min(network):.2f} to {max(network):.2f}, without a direction" in text


def test_ranks_over_studies(cell, rows, rebuild) -> None:
    text, whole = words(PAGE), words("docs/reproduction.md")
    ranks = rebuild.overview(TOGETHER).ranking
    first, second, *_, last = ranks.items()
    assert f"from {first[1]:.2f} for L-Dirichlet and {second[1]:.2f} for FedAvg" in text
    assert f"to {last[1]:.2f} for N-Softmax" in text
    assert [name.removeprefix("Auto-FedAvg-") for name, _ in (first, second, last)] == [
        "L-Dirichlet", "FedAvg", "N-Softmax",
    ]  # fmt: skip
    assert f"the critical difference of {rebuild.overview(TOGETHER).critical:.2f}" in text
    assert rebuild.overview(TOGETHER).groups == [list(ranks)]  # "No two differ"
    places = [cell(TOGETHER, "ranks", FEDAVG, study) for study in rebuild.RANKED]
    assert (places.count("1"), places.count("6")) == (3, 2)
    assert "FedAvg is first in three studies and last in two." in whole
    worst = [study for study, place in zip(rebuild.RANKED, places, strict=True) if place == "6"]
    assert worst == ["study-bad-site", "study-bad-site-votes"]
