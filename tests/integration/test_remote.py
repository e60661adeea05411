"""Jobs for real engines, without an engine: sites and server in one process."""

import json
import logging
import time

import pytest
import torch

import autofedavg
from autofedavg import read_study
from autofedavg.core.errors import AutoFedAvgError, ConfigError, FederationError
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.server import host
from autofedavg.experiment.folder import Ledger
from autofedavg.federation.messages import Message, NoReply
from autofedavg.report.build import report_tables
from autofedavg.report.formats import joined
from autofedavg.report.read import read_results
from deployed import InProcessTransport, assert_same_run, environment_of, job_of


@pytest.fixture
def study(tiny):
    return read_study(tiny)


@pytest.mark.parametrize("row", ["local-only", "fedavg", "n-dirichlet"])
def test_a_job_gives_the_simulators_bits(row, study, tiny_trained, tmp_path):
    job = job_of(study, row)
    path = host(job, InProcessTransport(job), tmp_path / "runs")
    assert path == tmp_path / "runs" / "tiny" / row / "seed-0"
    assert_same_run(tiny_trained / row / "seed-0", path)
    ran, here = environment_of(tiny_trained / row / "seed-0"), environment_of(path)
    assert here["data"]["cases"] == ran["data"]["cases"]
    assert here["data"]["split_sha256"] == ran["data"]["split_sha256"]
    assert here["engine"] == "in-process"


def test_a_job_is_read_as_it_was_written(study):
    job = job_of(study, "n-dirichlet", seed=3, supervised=True)
    again = Job.read(job.text(), "here")
    assert again.text() == job.text()
    assert (again.seed, again.sites, again.supervised) == (3, ("I", "II", "III"), True)


def test_a_job_has_no_path_in_it(tiny, tmp_path):
    study = read_study(tiny, [f"task.cache={tmp_path / 'canary'}"])
    assert "canary" not in job_of(study, "fedavg").text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "9.9.9"}, "made by autofedavg 9.9.9, and here is"),
        ({"schema": 2}, "made by autofedavg"),
        ({"row": 1}, "not a valid job"),
        ({"sites": 3}, "not a valid job"),
        ({"study": "../../outside"}, "cannot be a folder's name"),
        ({"study": "/srv"}, "cannot be a folder's name"),
    ],
)
def test_what_is_no_job_is_refused(change, says, study):
    content = json.loads(job_of(study, "fedavg").text()) | change
    with pytest.raises(ConfigError, match=says):
        Job.read(json.dumps(content), "here")
    with pytest.raises(ConfigError, match="not a valid job"):
        Job.read("no JSON", "here")


def test_a_site_of_another_version_is_refused_and_both_are_named(study, tmp_path, monkeypatch):
    job = job_of(study, "fedavg")
    transport = InProcessTransport(job)
    text = job.text().replace(f'"version": "{autofedavg.__version__}"', '"version": "0.0.7"')
    transport.services["II"]._text = text
    with pytest.raises(ConfigError, match=r"site II, joining: .* 0\.0\.7, and here is "):
        host(job, transport, tmp_path)
    assert [file.name for file in job.folder(tmp_path).glob("[a-z]*")] == ["status.json"]


def test_a_site_that_says_it_has_another_version_is_refused(study, tmp_path):
    job = job_of(study, "fedavg")

    def spoil(verb, site, answer):
        return Message({}, {**answer.facts, "version": "0.0.7"}) if site == "III" else answer

    with pytest.raises(ConfigError, match=r"site III, joining: it has autofedavg 0\.0\.7, and the"):
        host(job, InProcessTransport(job, spoil=spoil), tmp_path)


def test_a_site_with_another_network_is_refused(study, tmp_path):
    job = job_of(study, "fedavg")
    transport = InProcessTransport(job)
    text = json.loads(job.text())
    text["row"]["task"]["pipeline"]["channels"] = [6, 8]
    transport.services["II"]._text = json.dumps(text)
    with pytest.raises(ConfigError, match=r"site II, joining: .* network has .* another shape"):
        host(job, transport, tmp_path)


def test_a_server_waits_no_longer_than_the_job_says(study, tmp_path):
    job = job_of(study, "fedavg", wait=1.0)

    def spoil(verb, site, answer):
        return NoReply("not connected") if site == "II" else answer

    with pytest.raises(
        FederationError, match=r"client II, hello: did not join within 1 s .*2 of 3"
    ):
        host(job, InProcessTransport(job, spoil=spoil), tmp_path)


def test_a_site_that_had_joined_and_is_gone_is_named_at_once(study, tmp_path, caplog):
    job = job_of(study, "fedavg", wait=3.0)
    logged = []

    class Vanishing(InProcessTransport):
        """Site II is connected, and dies before it answers; the others take their time."""

        def ask(self, verb, messages, within):
            time.sleep(2.5)  # an answer that will never come is waited for
            logged.extend(record.message for record in caplog.records)
            return {site: NoReply("no answer") for site in messages}

        def present(self):
            self.looks = getattr(self, "looks", 0) + 1
            return {"I", "II", "III"} if self.looks == 1 else {"I", "III"}

    with (
        caplog.at_level(logging.INFO),
        pytest.raises(FederationError, match=r"I, II, III, hello: did not join within 3 s"),
    ):
        host(job, Vanishing(job), tmp_path)
    assert {"waiting for I, II, III", "site II joined, then disconnected"} <= set(logged)


def test_an_error_says_that_a_missing_site_had_joined(study, tmp_path):
    job = job_of(study, "fedavg", wait=2.0)

    class Vanishing(InProcessTransport):
        def present(self):
            self.looks = getattr(self, "looks", 0) + 1
            return set(job.sites) if self.looks == 1 else {"I", "III"}

    def spoil(verb, site, answer):
        return NoReply("no answer") if site == "II" else answer

    with pytest.raises(
        FederationError, match=r"client II, .* within 2 s \(joined, then disconnected\)"
    ):
        host(job, Vanishing(job, spoil=spoil), tmp_path)


@pytest.mark.parametrize("path", ["cache"])
def test_a_job_that_names_a_path_is_refused(path, study, tmp_path):
    content = json.loads(job_of(study, "fedavg").text())
    content["row"]["task"][path] = str(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="names a path, and only sites may set paths"):
        Job.read(json.dumps(content), "here")


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(study, tiny, tmp_path):
    job = job_of(study, "fedavg")
    path = host(job, InProcessTransport(job), tmp_path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    broken = InProcessTransport(job, spoil=lambda verb, site, answer: NoReply("gone"))
    assert host(job, broken, tmp_path) == path
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    other = job_of(read_study(tiny, ["training.learning_rate=0.5"]), "fedavg")
    with pytest.raises(ConfigError, match="began with other settings"):
        host(other, InProcessTransport(other), tmp_path)
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_site_speaks_for_itself_alone(study, tmp_path):
    job = job_of(study, "fedavg")
    said = {"error": "disk full\x1b[2J" + "x" * 9999, "kind": "DataError", "where": "/srv"}

    def spoil(verb, site, answer):
        return Message({}, dict(said)) if (verb, site) == ("local_train", "II") else answer

    with pytest.raises(FederationError, match="client II, local_train, round 1: failed: disk") as e:
        host(job, InProcessTransport(job, spoil=spoil), tmp_path)
    assert "\x1b" not in str(e.value)
    assert "/srv" not in str(e.value)
    assert len(str(e.value)) < 600


@pytest.mark.parametrize(
    "change",
    [
        {"cases": {"train": 10**400}},
        {"cases": {"train": -1}},
        {"cases": {"train": True}},
        {"cases": {"elsewhere": 1}},
        {"cases": []},
        {"cases": {"train": 0}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_site_that_cannot_count_is_refused(change, study, tmp_path):
    job = job_of(study, "fedavg")

    def spoil(verb, site, answer):
        return Message({}, {**answer.facts, **change}) if site == "I" else answer

    with pytest.raises(AutoFedAvgError, match="site I, joining"):
        host(job, InProcessTransport(job, spoil=spoil), tmp_path)


def test_going_on_a_broken_site_is_left_out_where_the_quorum_allows(tiny, tmp_path):
    plan = read_study(tiny, ["quorum=2", "rounds=2", "exchange.bad_answers=drop"])
    job = job_of(plan, "fedavg")
    stopped = []

    def stop(verb, site, answer):
        stopped.append(verb)
        if stopped.count("local_train") > 4:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        host(job, InProcessTransport(job, spoil=stop), tmp_path)

    def broken(verb, site, answer):
        return Message({}, {"error": "no data"}) if site == "II" else answer

    with pytest.raises(FederationError, match="client II, evaluate"):  # the final test needs all
        host(job, InProcessTransport(job, spoil=broken), tmp_path)
    lines = Ledger(job.folder(tmp_path)).rounds()
    assert [line["answered"] for line in lines] == [["I", "II", "III"], ["I", "III"]]


def test_a_site_with_another_pytorch_is_named_in_the_run_s_log(study, tmp_path):
    job = job_of(study, "fedavg")

    def spoil(verb, site, answer):
        if (verb, site) == ("hello", "II"):
            return Message({}, {**answer.facts, "torch": "1.0.0+cpu\x1b[2J"})
        return answer

    path = host(job, InProcessTransport(job, spoil=spoil), tmp_path / "other")
    said = [line for line in (path / "log.txt").read_text().splitlines() if "PyTorch" in line]
    assert len(said) == 1
    assert "WARNING" in said[0]
    assert f"site II has PyTorch 1.0.0+cpu�[2J, and the server {torch.__version__}" in said[0]
    path = host(job, InProcessTransport(job), tmp_path / "same")
    assert "PyTorch" not in (path / "log.txt").read_text()


def test_a_site_that_left_for_good_leaves_a_hole_with_its_name(tiny, tmp_path):
    """Without the setting the final test needs all, as above."""
    given = ["quorum=2", "rounds=2", "exchange.retries=0", "exchange.test_quorum=2"]
    job = job_of(read_study(tiny, given), "n-dirichlet")
    trained = []

    def leaves(verb, site, answer):
        if (verb, site) == ("local_train", "II"):
            trained.append(verb)
        return NoReply("gone for good") if site == "II" and len(trained) > 1 else answer

    path = host(job, InProcessTransport(job, spoil=leaves), tmp_path)
    assert Ledger(path).status() == "finished"
    assert {row.site for row in Ledger(path).scores()} == {"I", "III"}
    *_, last = Ledger(path).rounds()
    tests = [event for event in last["events"] if event["call"] == "evaluate"]
    assert {(e["site"], e["what"], e["reason"]) for e in tests} == {("II", "lost", "gone for good")}
    assert len(tests) > 2  # validation, and every tested model
    (table,) = [t for t in report_tables(read_results([path]))["scores"] if t.name == "scores"]
    said = joined([table], "text")
    assert "II did not answer the final test; averages are over the others" in said
    ((_, cells),) = table.rows
    filled = dict(zip(table.heads, (cell.value is not None for cell in cells), strict=True))
    assert [filled[head] for head in table.heads[:3]] == [True, False, True], filled


@pytest.mark.parametrize("enough", [2, 3])
def test_the_final_test_still_needs_as_many_as_are_asked_for(enough, tiny, tmp_path):
    job = job_of(read_study(tiny, ["rounds=1", f"exchange.test_quorum={enough}"]), "fedavg")

    def leaves(verb, site, answer):
        tested = (tmp_path / "tiny/fedavg/seed-0/checkpoints/last-1.json").exists()
        return NoReply("gone") if tested and site in ("I", "II")[: 4 - enough] else answer

    with pytest.raises(FederationError, match=rf"client I, evaluate: .* {enough} needed"):
        host(job, InProcessTransport(job, spoil=leaves), tmp_path)


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_a_model_far_from_all_others_is_noted_by_name(factor, study, tmp_path):
    """It is averaged in: what is wrong with it nobody here can know."""
    job = job_of(study, "fedavg")

    def scale(verb, site, answer):
        if (verb, site) != ("local_train", "II"):
            return answer
        return Message({"values": answer.arrays["values"] * factor}, answer.facts)

    path = host(job, InProcessTransport(job, spoil=scale), tmp_path)
    events = [event for line in Ledger(path).rounds() for event in line["events"]]
    noted = {(event["site"], event["what"], event["call"]) for event in events}
    expected = {("II", "outlying", "local_train"), ("II", "resent", "validate_local")}
    assert noted == (expected if factor > 1 else set())  # resent: the server's is another one
    assert ("local_train of round 1: II outlying (its" in (path / "log.txt").read_text()) == bool(
        noted
    )
