"""Runs whose sites disclose means alone, through the public door: run, resume, report, compare."""

import csv
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from tests_tiny import TINY
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Machine, Training, federate, read_study, run_study
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.engines.remote.server import host
from autofedavg.engines.remote.site_files import read_site_file
from autofedavg.experiment.folder import Ledger
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import decode
from autofedavg.federation.settings import Exchange
from autofedavg.monitor.trackers.points import score_points
from deployed import InProcessTransport, assert_same_run, job_of
from hospitals import CANARY, build_hospitals

SET = ("--set", "exchange.disclose=means")
COLUMNS = ["model", "site", "split", "metric", "value", "cases"]


@pytest.fixture(scope="module")
def homes(tmp_path_factory) -> dict[str, Path]:
    """The tiny study twice, with the scores of cases and with means."""
    home = tmp_path_factory.mktemp("disclose")
    (home / "tiny.toml").write_text(TINY)
    machine = Machine(workers=1, threads=1)
    return {
        how: run_study(
            read_study(home / "tiny.toml", [f"exchange.disclose='{how}'"]), home / how, machine
        )
        for how in ("all", "means")
    }


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_a_run_of_the_command_line_holds_no_case(tiny, tmp_path, say):
    code, _, err = say("run", tiny, *SET, "--only", "fedavg", "--out", tmp_path / "runs")
    assert code == 0, err
    run = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    rows = table(run / "scores.csv")
    assert list(rows[0]) == COLUMNS
    assert {row["metric"] for row in rows} == {"dice"}, "sizes of lesions stay, too"
    assert len({(row["model"], row["site"]) for row in rows}) == len(rows)
    told = json.loads((run / "environment.json").read_text())["data"]["cases"]
    assert {row["site"]: int(row["cases"]) for row in rows} == {k: told[k]["test"] for k in told}
    assert 'disclose = "means"  # study' in (run / "config.toml").read_text()
    for file in run.rglob("*"):
        if file.is_file():
            assert not re.search(rb"I-\d\d|label_voxels", file.read_bytes()), file
    code, out, _ = say("report", tmp_path / "runs")
    assert code == 0
    assert "Sites disclosed means alone (exchange.disclose)" in out


def test_means_are_of_the_same_models_and_scores(homes):
    for row in ("local-only", "fedavg", "n-dirichlet"):
        whole, means = (Ledger(homes[how] / row / "seed-0") for how in ("all", "means"))
        kept = ("alpha", "beta", "loss", "validation", "validation_local")
        assert [[line[k] for k in kept] for line in whole.rounds()] == [
            [line[k] for k in kept] for line in means.rounds()
        ]
        found: dict[tuple[str, str], list[float]] = {}
        for score in whole.scores():
            if score.metric == "dice":
                found.setdefault((score.model, score.site), []).append(score.value)
        assert {(m.model, m.site): (m.value, m.cases) for m in means.scores()} == {
            key: (pytest.approx(sum(values) / len(values)), len(values))
            for key, values in found.items()
        }


def test_the_tables_are_those_of_all_scores_without_the_test(homes, say):
    tables = {}
    for how, home in homes.items():
        code, out, err = say("report", home, "--json")
        assert code == 0, err
        tables[how] = {table["name"]: table for table in json.loads(out)}
    whole, means = (tables[how]["scores"] for how in ("all", "means"))
    for mine, other in zip(whole["rows"], means["rows"], strict=True):
        for head, cell in mine["columns"].items():
            assert other["columns"][head]["value"] == (
                None if cell["value"] is None else pytest.approx(cell["value"])
            )
            assert other["columns"][head]["test"] is None
    told = " ".join(means["notes"])
    assert "no scores, names or sizes of cases, so there is no test over cases" in told
    assert "†" not in told
    counted = [note for note in whole["notes"] if "tested are" in note]
    assert counted == [note for note in means["notes"] if "tested are" in note]


@pytest.mark.parametrize("how", ["all", "means"])
def test_a_page_says_what_means_cannot_show(how, homes, tmp_path, say):
    code, _, err = say("report", homes[how], "--out", tmp_path / "page")
    assert code == 0, err
    text = (tmp_path / "page" / "index.html").read_text()
    alone = how == "means"
    assert ("not tested over cases, for sites disclosed means alone" in text) == alone
    assert ("no pictures: sites disclosed means alone" in text) == alone
    assert ("Sites disclosed means alone: the file has them" in text) == alone
    assert ("No p for Auto-FedAvg-N-Dirichlet" in text) == alone
    assert (tmp_path / "page" / "figures" / "differences.svg").exists() != alone
    assert (tmp_path / "page" / "figures" / "matrices.svg").exists()
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= set(re.findall(r'\bid="([^"]+)"', text)), "no link leads nowhere"
    rows = table(tmp_path / "page" / "cases" / "fedavg.csv")
    assert list(rows[0]) == ["seed", *COLUMNS] if alone else "case" in rows[0]
    (line,) = table(tmp_path / "page" / "tables" / "differences.csv")
    assert all(value for head, value in line.items() if head in ("row", "I", "all sites"))
    assert bool(line.get("I p")) != alone


def test_rows_of_both_kinds_stand_in_one_report(homes, tmp_path, say):
    mixed = tmp_path / "mixed"
    for row, how in (("fedavg", "all"), ("n-dirichlet", "means")):
        shutil.copytree(homes[how] / row, mixed / row)
    code, out, err = say("report", mixed)
    assert code == 0, err
    assert "Sites of Auto-FedAvg-N-Dirichlet disclosed means alone" in out
    code, out, err = say("compare", mixed / "fedavg", mixed / "n-dirichlet")
    assert code == 0, err
    assert "no test over cases: sites disclosed means alone" in out
    assert "NOT comparable" not in out


def test_compare_has_the_numbers_and_no_test(homes, say):
    made = {}
    for how, home in homes.items():
        code, out, err = say("compare", home / "fedavg", home / "n-dirichlet", "--json")
        assert code == 0, err
        made[how] = {pair["name"]: pair for pair in json.loads(out)["scores"]}
    assert made["all"]["global test avg"]["test"]
    for name, pair in made["means"].items():
        assert pair["test"] is None
        assert pair["difference"] == pytest.approx(made["all"][name]["difference"])


def test_an_archive_and_a_resumed_run_have_the_same_scores(homes, tiny, tmp_path, say):
    code, _, err = say("archive", homes["means"], "--out", tmp_path / "archive")
    assert code == 0, err
    (packed,) = (tmp_path / "archive").iterdir()
    with zipfile.ZipFile(packed) as archive:
        kept = archive.read("fedavg/seed-0/scores.csv")
    run = homes["means"] / "fedavg" / "seed-0"
    assert kept == (run / "scores.csv").read_bytes()
    assert say("report", packed)[1] == say("report", homes["means"])[1]
    start = ("run", tiny, *SET, "--only", "fedavg", "--out", tmp_path / "runs")
    assert say(*start)[0] == 0
    again = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    for name in ("scores.csv", *(f"checkpoints/last-3.{e}" for e in ("json", "safetensors"))):
        (again / name).unlink()
    (again / "status.json").write_text('{"schema": 1, "state": "running"}')
    assert say("resume", again)[0] == 0
    assert (again / "scores.csv").read_bytes() == (run / "scores.csv").read_bytes()


def test_watching_and_tracking_show_the_same_numbers(homes, say):
    found = {}
    for how, home in homes.items():
        run = home / "n-dirichlet" / "seed-0"
        code, out, err = say("watch", run, "--json")
        assert code == 0, err
        sites = json.loads(out)["sites"]
        scores = score_points(
            Ledger(run).scores(), "dice", {site: site for site in ("I", "II", "III")}
        )
        found[how] = ([site["validation"] for site in sites], pytest.approx(scores))
    assert found["all"][0] == found["means"][0]
    assert found["all"][1].expected == found["means"][1]


def test_check_warns_that_own_models_go_to_all_sites(tiny, say):
    said = "every site's best own model is tested at all sites, which receive it"
    assert said in say("check", tiny)[1]
    assert said not in say("check", tiny, "--set", "test_local=own")[1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "global,I,test,dice,nan,3",
            "dice of I by global is there twice, not finite, or of no case",
        ),
        ("global,I,test,dice,0.5,0", "dice of I by global is there twice, not finite"),
        (
            "global,I,test,dice,0.5,3\nglobal,I,test,dice,0.5,3",
            "dice of I by global is there twice",
        ),
        ("global,I,test,dice,0.5,many", "invalid literal"),
        ("global,XX,test,dice,0.5,3", "scores.csv names XX, which is no site of this run"),
    ],
)
def test_damaged_means_are_named(line, why, homes, tmp_path, say):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.toml", "environment.json", "rounds.jsonl"):
        (run / name).write_bytes((homes["means"] / "fedavg" / "seed-0" / name).read_bytes())
    (run / "status.json").write_text('{"state": "finished"}')
    (run / "scores.csv").write_text(",".join(COLUMNS) + f"\n{line}\n")
    code, _, err = say("report", run)
    assert code == 1
    assert why in err


def test_another_word_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"exchange\.disclose: input should be 'all' or 'means'"):
        read_study(tiny, ["exchange.disclose='mean'"])


def loader(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 4, generator=draw)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 6)


def test_federate_takes_it(tmp_path):
    found = {}
    for how in ("all", "means", "all"):  # the last time it goes on
        found[how] = federate(
            lambda: torch.nn.Linear(4, 2),
            lambda network, batch: torch.nn.functional.cross_entropy(network(batch[0]), batch[1]),
            {k: LoaderSite(loader(n), loader(n + 5), loader(n + 9)) for n, k in enumerate("AB")},
            lambda network, batch: (network(batch[0]).argmax(1) == batch[1]).double(),
            rounds=2,
            method="fedavg",
            training=Training(epochs=1, learning_rate=0.05),
            out=tmp_path / how,
            machine=Machine(workers=1, threads=1),
            exchange=Exchange(disclose=how),
        ).summary.by_site
        config = tmp_path / how / "config.toml"
        # As a version wrote it that had no such setting.
        config.write_text(config.read_text().replace('disclose = "all"\n', ""))
    assert found["means"] == pytest.approx(found["all"])
    assert list(table(tmp_path / "means" / "scores.csv")[0]) == COLUMNS


# --- on a real engine -----------------------------------------------------------------------------


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    return build_hospitals(tmp_path / "world")


def test_a_job_gives_the_simulators_bits_and_only_means_leave_a_site(hospitals, tmp_path):
    study, files = hospitals
    plan = read_study(study, ["exchange.disclose='means'", "method={ name = 'ditto' }"])
    job = job_of(plan, "auto-fedavg")
    transport = InProcessTransport(job, files)
    path = host(job, transport, tmp_path / "runs")
    replies = [decode(sent).facts for sent in transport.sent]
    means = [facts for facts in replies if "means" in facts]
    assert any(facts.get("personal") for facts in means)
    told = [part for facts in means for part in (facts, facts.get("personal")) if part]
    assert {metric for part in told for metric, _, _ in part["means"]} == {"dice"}
    everything = b"".join(transport.sent)
    for word in (b'"scores"', b"label_voxels", b"test-0001", CANARY.encode()):
        assert word not in everything
    assert not list((tmp_path / "state").rglob("cases-*")), "nothing was numbered"
    alone = run_study(plan, tmp_path / "simulated", Machine(workers=1, threads=1))
    assert_same_run(alone / "auto-fedavg" / "seed-0", path)


def test_a_site_may_demand_means(hospitals, tmp_path):
    study, files = hospitals
    files["north"].write_text('disclose = "means"\n' + files["north"].read_text())
    assert read_site_file(files["north"]).disclose == "means"
    job = job_of(read_study(study), "auto-fedavg")
    refused = r"site north, joining: it cannot take part: this site discloses means alone.*"
    refused += 'set exchange.disclose = "means" in the study'
    with pytest.raises(ConfigError, match=refused):
        host(job, InProcessTransport(job, files), tmp_path / "runs")
    job = job_of(read_study(study, ["exchange.disclose='means'"]), "auto-fedavg")
    path = host(job, InProcessTransport(job, files), tmp_path / "means")
    assert Ledger(path).status() == "finished"
    files["north"].write_text('disclose = "mean"\n' + files["south"].read_text())
    with pytest.raises(ConfigError, match="disclose: input should be 'all' or 'means'"):
        read_site_file(files["north"])


def test_a_site_answers_no_more_than_its_job_asks_for(hospitals):
    study, files = hospitals
    job = job_of(read_study(study, ["exchange.disclose='means'"]), "auto-fedavg")
    service = InProcessTransport(job, files).services["north"]
    said = service.answer("evaluate", Message({}, {"t": 1, "split": "validation"})).facts
    assert said == {"error": "evaluate of round 1 is not asked for by this job without means"}


def test_the_server_refuses_what_it_did_not_ask_for(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study, ["exchange.disclose='means'"]), "auto-fedavg")

    def chatty(verb, site, answer):
        if (verb, site) != ("evaluate", "south"):
            return answer
        return Message({}, {**answer.facts, "scores": [["patient-7", "dice", 0.5]]})

    with pytest.raises(Exception, match=r"client south, evaluate: sent \['scores'\]") as error:
        host(job, InProcessTransport(job, files, chatty), tmp_path / "runs")
    assert not isinstance(error.value, RunError)
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or b"patient-7" not in file.read_bytes()
