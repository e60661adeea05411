"""The guide to the methods says what the published runs say, and nothing without a run."""

import re
import shlex
import statistics

import pytest
import typer

from autofedavg import cli
from published import ROOT, words

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
    table1 = [cell("table1-cifar10", "scores", row, AVERAGE)
              for row in ("FedAvg - random weights", FEDAVG)]  # fmt: skip
    assert "at random end at {}, FedAvg at {}".format(*table1) in text
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
    worth = [cell("study-few-rounds", "worth", "2", column)
             for column in ("Auto-FedAvg-N-Dirichlet", "rounds for as many bytes",
                            "FedAvg, as many bytes")]  # fmt: skip
    assert "two learned rounds ({}), FedAvg trains {} ({})".format(*worth) in text
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
    rows = ("Auto-FedAvg-N-Dirichlet", EVEN, FEDAVG)
    scores = [cell(study, "scores", row, AVERAGE) for row in rows]
    said = "four hospitals: N-Dirichlet {}, even weights {} (two seeds), FedAvg {}".format(*scores)
    assert said in text
    assert f"where sizes give it {cell(study, 'weights', FEDAVG, 'DU')} of the weight" in text


def test_where_a_site_may_be_bad(cell, rebuild) -> None:
    text = words(PAGE)
    chosen, learned = rebuild.CHOSEN, "Auto-FedAvg-L-Dirichlet"
    behind = {row: cell(rebuild.ACROSS, "scores", row, "furthest behind")
              for row in (FEDAVG, EVEN, chosen, learned)}  # fmt: skip
    said = f"at most {behind[learned]} points behind the best row; FedAvg {behind[FEDAVG]}, "
    assert f"{said}even weights {behind[EVEN]} (five seeds)" in text
    assert f"and {behind[FEDAVG]} points behind if the largest is" in text
    assert f"more than {behind[learned]} behind" in text
    assert f"is at most {behind[chosen]} behind, in two trainings" in text
    gains = {label: statistics.fmean(studies[2]) for label, studies in
             rebuild.overview().gains.items() if label != EVEN}  # fmt: skip
    assert rebuild.RANKED[2] == "demo"
    said = "are {:.2f} to {:.2f} points below FedAvg, not significantly"
    assert said.format(-max(gains.values()), -min(gains.values())) in text
    blind = [cell(study, "seeds", "Auto-FedAvg-N-Softmax, blind", "difference")
             for study in ("study-bad-site", LGG)]  # fmt: skip
    assert f"{blind[0]} points from FedAvg" in text
    p = cell(LGG, "seeds", "Auto-FedAvg-N-Softmax, blind", "p (Holm)")
    assert f"it is {blind[1]}, which correction makes p = {p}" in text


def test_bytes_and_what_did_not_matter(cell, rows) -> None:
    text = words(PAGE)
    share, apart = (cell("study-messages", "travel", "FedAvg, 8-bit differences", column)
                    for column in ("% of float32", "points from float32"))  # fmt: skip
    said = " and ".join(apart.split(", "))
    assert f"{share} % of the bytes; {said} points from float32 (two seeds)" in text
    held, whole = (cell(study, "tested", FEDAVG, "last test")
                   for study in ("table1-holdout", "table1-cifar10"))  # fmt: skip
    assert f"nine tenths of the images FedAvg ends at {held} with one seed" in text
    assert f"With all of them it ends at {whole}" in text
    ablation = "ablation-bad-site"
    reference, trained = (
        cell(ablation, "scores", row, AVERAGE)
        for row in (
            "N-Dirichlet: t0 = 1, S = 10, step of beta 0.1, beta0 = 6",
            "learned on training cases",
        )
    )
    assert f"training cases {trained}, on validation cases {reference}" in text
    network = [float(cell(ablation, "scores", row, AVERAGE)) for row in rows(ablation, "scores")
               if row not in (FEDAVG, EVEN) and not row.startswith("L-Dirichlet")]  # fmt: skip
    assert f"{min(network):.2f} to {max(network):.2f}, without a direction" in text


def test_ranks_over_studies(cell, rows, rebuild) -> None:
    text, whole = words(PAGE), words("docs/reproduction.md")
    ranks = rebuild.overview().ranking
    first, second, *_, last = ranks.items()
    assert f"from {first[1]:.2f} for L-Dirichlet and {second[1]:.2f} for FedAvg" in text
    assert f"to {last[1]:.2f} for N-Softmax" in text
    assert [name.removeprefix("Auto-FedAvg-") for name, _ in (first, second, last)] == [
        "L-Dirichlet", "FedAvg", "N-Softmax",
    ]  # fmt: skip
    assert f"the critical difference of {rebuild.overview().critical:.2f}" in text
    assert rebuild.overview().groups == [list(ranks)]  # "No two differ"
    places = [cell(TOGETHER, "ranks", FEDAVG, study) for study in rebuild.RANKED]
    assert (places.count("1"), places.count("6")) == (3, 2)
    assert "FedAvg is first in three studies and last in two." in whole
    worst = [study for study, place in zip(rebuild.RANKED, places, strict=True) if place == "6"]
    assert worst == ["study-bad-site", "study-bad-site-votes"]
