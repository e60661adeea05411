"""The documentation agrees with the code: links lead somewhere, every setting is listed."""

import re
import sys
from pathlib import Path

import pytest

from autofedavg.algorithm import Round
from autofedavg.core.privacy import Privacy
from autofedavg.core.seeds import Seeds
from autofedavg.core.settings import origins
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.trials import Tune
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods import METHODS
from autofedavg.methods.fedavg import FedAvg
from autofedavg.tasks import TASKS
from toy import TRAINING, toy_problem

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "examples").rglob("*.md"))
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short(sentences) -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    assert sentences.mean_length(text) < 20
    assert max(map(sentences.words, sentences.sentences(text))) <= sentences.LONGEST


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_that_names_a_file_leads_to_it(page) -> None:
    for text, target in re.findall(
        r"\[([^\]]+\.(?:py|toml|csv|md))\]\(([^)#]+)\)", page.read_text()
    ):
        assert Path(text).name == Path(target).name, page


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda page: page.stem
)
def test_how_to_pages_have_short_sentences(page, sentences) -> None:
    assert sentences.mean_length(page.read_text()) < 22


def test_what_counts_as_a_sentence(sentences) -> None:
    text = """# A heading of five words

First one, with `code --here` and [a link](of/many words). **Is this the second?** Yes it is, e.g.
by Y. Xia et al. in 2021.

- An item is a sentence of 3.5 words
- Short one.

| a table | is not |
| --- | --- |

<!-- nor is a comment. -->
```sh
nor is code # that runs on and on
```
"""
    found = sentences.sentences(text)
    assert [sentences.words(one) for one in found] == [7, 4, 11, 8]
    assert sentences.mean_length(text) == 30 / 4


@pytest.mark.parametrize("example", ["flower-app", "flare-job"])
def test_an_example_is_a_plain_one_and_the_lines_that_its_page_shows(example) -> None:
    """Without the added lines, and with the removed ones, nothing of ours is left."""
    folder = ROOT / "examples" / example
    text = (folder / "README.md").read_text()
    changes = re.findall(r"^```diff\n--- (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(changes) == 2
    for name, diff in changes:
        learned = (folder / name).read_text()
        for hunk in diff.split("@@\n"):
            lines = [line for line in hunk.splitlines() if line.strip()]
            new = "\n".join(line[1:] for line in lines if line[0] in " +")
            old = "\n".join(line[1:] for line in lines if line[0] in " -")
            compact = re.sub(r"\n\s*\n+", "\n", learned)
            assert compact.count(new) == 1, (name, new)
            learned = compact.replace(new, old)
        assert "autofedavg" not in learned
        assert "Learned" not in learned
        compile(learned, name, "exec")


def test_the_paper_map_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    named = set(re.findall(r"test_[a-z0-9_]+\.py", text))
    assert named
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert named <= there
    assert {path.name for path in (ROOT / "tests" / "paper").glob("test_*.py")} <= named


def every_setting():
    holders = [("", Rounds()), ("training", Training()), ("exchange", Exchange())]
    holders += [("privacy", Privacy()), ("tune", Tune())]
    holders += [(name, METHODS[name]()) for name in METHODS]
    holders += [(name, TASKS[name]()) for name in TASKS]
    for owner, settings in holders:
        for path, value, origin, text in origins(settings):
            if path != "name":
                yield pytest.param(path, value, origin, text, id=f"{owner}.{path}")


@pytest.mark.parametrize(("path", "value", "origin", "text"), list(every_setting()))
def test_every_setting_is_in_the_reference_with_its_default_and_origin(
    path, value, origin, text
) -> None:
    name = path.rpartition(".")[2]
    lines = [line for line in SETTINGS.splitlines() if re.match(rf"\| `[a-z.]*{name}` \|", line)]
    assert any(origin in line and text in line for line in lines), (path, origin, text)


def test_the_algorithm_is_short_enough_to_read_beside_the_page() -> None:
    lines = (ROOT / "src" / "autofedavg" / "algorithm.py").read_text().splitlines()
    assert len(lines) <= 110


def test_one_round_of_fedavg_is_read_in_at_most_ten_files() -> None:
    """The listed files exist, and a round on the simulator enters no others but named helpers."""
    page = ROOT / "docs" / "explanation" / "algorithm.md"
    section = page.read_text().partition("## Read one round of FedAvg\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. \[[^]]+\]\(([^)]+)\): ", section, re.MULTILINE)
    assert 0 < len(listed) <= 10
    files = {(page.parent / link).resolve() for link in listed}
    assert len(files) == len(listed)
    assert all(file.is_file() for file in files)
    assert all(len(file.read_text().splitlines()) <= 300 for file in files)
    helpers = set(re.findall(r"`([a-z_]+)`", section.partition("A round also calls these")[2]))
    entered = files_of_a_fedavg_round()
    assert files <= entered
    assert {file.stem for file in entered - files} == helpers


def files_of_a_fedavg_round() -> set[Path]:
    """The package's files whose functions run in the second round of FedAvg."""
    problem, seeds = toy_problem(3), Seeds(7)
    w0, layout = problem.initial(seeds)
    source, entered = ROOT / "src" / "autofedavg", set()

    def note(frame, event, _) -> None:
        if event == "call":
            entered.add(Path(frame.f_code.co_filename).resolve())

    with Simulator(problem, TRAINING, seeds, workers=1, threads=1) as simulator:
        rounds = FedAvg().rounds(Federation(simulator), layout, 2, Round(0, w0))
        next(rounds)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            next(rounds)
        finally:
            sys.setprofile(before)
    return {file for file in entered if file.is_relative_to(source)}
