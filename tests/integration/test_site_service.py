"""A site's side of a job: its own data, and what never leaves it."""

import csv
import logging
import re

import pytest

from autofedavg import read_study, run_study
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, DataError, DivergedReply, FederationError
from autofedavg.engines.remote.server import host
from autofedavg.engines.remote.site_files import read_site_file
from autofedavg.engines.remote.site_service import SiteService
from autofedavg.experiment.folder import Ledger
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.trial_names import diverged
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.serialization import decode
from deployed import InProcessTransport, job_of
from hospitals import CANARY, SITES, build_hospitals

HELLO = Message({}, {})


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    return build_hospitals(tmp_path / "world")


def test_nothing_of_a_sites_data_leaves_it(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    assert CANARY not in job.text()
    transport = InProcessTransport(job, files)
    numbers = Layout.of(job.row.task.network()).size
    path = host(job, transport, tmp_path / "runs")
    assert Ledger(path).status() == "finished"
    assert len(transport.sent) > 20
    for message in map(
        decode, transport.sent
    ):  # models of this network, and theta: no array of images
        assert set(message.arrays) <= {"values", "counters", "theta"}
        assert {a.shape for name, a in message.arrays.items() if name == "values"} <= {(numbers,)}
        assert {a.shape for name, a in message.arrays.items() if name == "theta"} <= {(3,)}
    everything = b"".join(transport.sent)
    assert CANARY.encode() not in everything
    assert b"scan" not in everything
    assert str(tmp_path).encode() not in everything
    for file in path.rglob("*"):
        if file.is_file():
            assert CANARY.encode() not in file.read_bytes(), file


def test_names_of_cases_do_not_leave_with_the_scores_of_personal_models(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study, ["method={ name = 'ditto' }"]), "auto-fedavg")
    transport = InProcessTransport(job, files)
    path = host(job, transport, tmp_path / "runs")
    assert any("personal" in decode(sent).facts for sent in transport.sent)
    assert CANARY.encode() not in b"".join(transport.sent)
    rows = [row for row in Ledger(path).scores() if row.model == "personal-north"]
    assert {row.case for row in rows} == {"test-0001"}


def test_a_divergence_at_a_site_is_known_as_one_at_the_server(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study, ["training.learning_rate=1e30", "test=false"]), "auto-fedavg")
    said = r"^client \w+, local_train, round \d: failed: the loss is nan"
    with pytest.raises(DivergedReply, match=said):
        host(job, InProcessTransport(job, files), tmp_path / "runs")
    assert diverged(job.folder(tmp_path / "runs"))


def test_each_site_with_its_own_list_gives_the_numbers_of_one_list(hospitals, tmp_path):
    study, files = hospitals
    plan = read_study(study)
    job = job_of(plan, "auto-fedavg")
    path = host(job, InProcessTransport(job, files), tmp_path / "runs")
    alone = run_study(plan, tmp_path / "simulated") / "auto-fedavg" / "seed-0"
    kept = ("alpha", "beta", "loss", "validation")
    assert [{k: line[k] for k in kept} for line in Ledger(path).rounds()] == [
        {k: line[k] for k in kept} for line in Ledger(alone).rounds()
    ]
    theirs = [(s.model, s.site, s.metric, s.value) for s in Ledger(alone).scores()]
    assert [(s.model, s.site, s.metric, s.value) for s in Ledger(path).scores()] == theirs


def test_numbers_stand_for_cases_and_the_site_keeps_the_key(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    path = host(job, InProcessTransport(job, files), tmp_path / "runs")
    said = {score.case for score in Ledger(path).scores() if score.site == "north"}
    assert not list(files["north"].parent.glob("*cases*"))
    (table,) = (tmp_path / "state" / "north").glob("cases-test-*.csv")
    assert [oct(p.stat().st_mode & 0o777) for p in (table, table.parent)] == ["0o600", "0o700"]
    with table.open(newline="") as handle:
        key = {row["number"]: row["case"] for row in csv.DictReader(handle)}
    assert said == set(key)
    assert all(CANARY in case for case in key.values())


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (lambda home: (home / "list.csv").unlink(), "DataError"),
        (lambda home: next(home.glob("scan*")).write_bytes(b"no image"), "DataError"),
        (lambda home: (home / "autofedavg.toml").write_text("task = 1"), "ConfigError"),
        (lambda home: (home / "autofedavg.toml").write_text("[task]\nfold = '1'"), "ConfigError"),
        (
            lambda home: (home / "list.csv").write_text(
                (home / "list.csv").read_text().replace("north,", "elsewhere,")
            ),
            "DataError",
        ),
    ],
)
def test_a_site_without_its_data_says_so_without_names(break_it, kind, hospitals, tmp_path, caplog):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    break_it(files["north"].parent)
    with caplog.at_level(logging.ERROR):
        said = SiteService(job.text(), "north", files["north"]).answer("hello", HELLO)
    assert said.facts["error"].startswith(kind)
    assert CANARY not in said.facts["error"]
    assert CANARY in caplog.text  # the site's own log names the file
    with pytest.raises(ConfigError, match=f"site north, joining: it cannot take part: {kind}"):
        host(job, InProcessTransport(job, files), tmp_path / "runs")
    assert Ledger(job.folder(tmp_path / "runs")).status() == "failed"


MISTAKES = {
    "thread = 2": "thread is not a setting of the site's file; did you mean threads?",
    "rounds = 2": "rounds is not a setting of the site's file; choose from: allow_outside, device",
    "privacy = { epsilo = 1 }": "privacy.epsilo is not a setting of the site's file; did you mean",
    'device = "gpu"': "device = 'gpu' cannot be used: ",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_in_the_sites_file_is_one_line_of_its_log(line, hospitals, caplog):
    study, files = hospitals
    file = files["north"]
    kept = [known for known in file.read_text().splitlines() if not known.startswith("device")]
    file.write_text("\n".join([line, *kept]))
    job = job_of(read_study(study), "auto-fedavg")
    with caplog.at_level(logging.ERROR):
        said = SiteService(job.text(), "north", file).answer("hello", HELLO)
    assert said.facts["error"] == "ConfigError; see this site's own log"
    (record,) = caplog.records
    assert not record.exc_info
    assert record.getMessage().startswith(f"north: hello: {file}: {MISTAKES[line]}")
    assert "--device" not in caplog.text
    assert "a run" not in caplog.text
    if line.startswith("device"):
        assert record.getMessage().endswith('; set device to "cpu", "cuda" or "cuda:1" there')


def test_what_nobody_foresaw_is_logged_with_its_traceback(hospitals, caplog, monkeypatch):
    study, files = hospitals
    monkeypatch.setattr("autofedavg.engines.remote.site_service.read_site_file", lambda _: 1 / 0)
    job = job_of(read_study(study), "auto-fedavg")
    said = SiteService(job.text(), "north", files["north"]).answer("hello", HELLO)
    assert said.facts["error"] == "ZeroDivisionError in hello; see this site's own log"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info


def test_other_data_than_the_run_was_begun_with_is_refused(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    path = host(job, InProcessTransport(job, files), tmp_path / "runs")
    RunFolder(path).set_status("running")  # as if it had been killed
    rows = (files["west"].parent / "list.csv").read_text().splitlines()
    (files["west"].parent / "list.csv").write_text("\n".join(rows[:-1]))
    for old in files["west"].parent.glob("list.split*"):
        old.unlink()
    with pytest.raises(DataError, match="site west, joining: the splits of its data are not those"):
        host(job, InProcessTransport(job, files), tmp_path / "runs")
    assert Ledger(path).status() == "failed"


def test_a_stranger_and_an_unknown_request_are_refused(hospitals):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    said = SiteService(job.text(), "east", files["north"]).answer("hello", HELLO)
    assert said.facts["error"] == f"east is not a site of this job: {', '.join(SITES)}"
    service = SiteService(job.text(), "north", files["north"])
    assert service.answer("format_disk", HELLO).facts["error"] == "unknown request 'format_disk'"
    said = service.answer("evaluate", HELLO).facts["error"]
    assert said == "evaluate belongs to a round, 1 to 2, and was asked for none"
    bare = Message({}, {"t": 2, "split": "test"})
    assert service.answer("evaluate", bare).facts["error"].startswith("KeyError in evaluate")


def test_a_site_sets_paths_and_nothing_else(tmp_path):
    file = tmp_path / "autofedavg.toml"
    file.write_text('device = "cpu"\nthreads = 2\n[task]\ndatalist = "mine.csv"\n')
    assert read_site_file(file).task == {"datalist": str(tmp_path / "mine.csv")}
    file.write_text("thread = 2\n")
    with pytest.raises(ConfigError, match="did you mean threads"):
        read_site_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_site_file(tmp_path / "missing.toml")
    assert read_site_file(None).device == "cpu"


def test_a_site_that_comes_back_with_other_data_refuses(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    transport = InProcessTransport(job, files)
    seen = []

    def come_back(verb, site, answer):
        seen.append(verb)
        if seen.count("evaluate") == 3:  # after the first round
            home = files["north"].parent
            rows = (home / "list.csv").read_text().splitlines()
            (home / "list.csv").write_text("\n".join(rows[:-1]))
            for old in home.glob("list.split*"):
                old.unlink()
            transport.services["north"] = SiteService(job.text(), "north", files["north"])
        return answer

    transport.spoil = come_back
    with pytest.raises(FederationError, match=r"client north.* not those it joined this run with"):
        host(job, transport, tmp_path / "runs")


def test_a_jobs_word_does_not_lead_out_of_a_sites_folder(hospitals):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    assert job.row.task.allow_outside
    home = files["north"].parent
    moved = next(home.glob("scan*"))
    moved.rename(home.parent / moved.name)
    listed = (home / "list.csv").read_text()
    (home / "list.csv").write_text(listed.replace(moved.name, f"../{moved.name}"))
    service = SiteService(job.text(), "north", files["north"])
    assert service.answer("hello", HELLO).facts["error"].startswith("DataError")
    files["north"].write_text("allow_outside = true\n" + files["north"].read_text())
    service = SiteService(job.text(), "north", files["north"])
    assert "error" not in service.answer("hello", HELLO).facts


def test_a_stranger_s_model_does_not_spoil_the_recorded_score(hospitals, tmp_path):
    """Whatever a site was made to keep in between: it validates the model that the server has."""
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    clean = Ledger(host(job, InProcessTransport(job, files), tmp_path / "clean")).rounds()

    def replace_own(verb, site, answer):
        if verb == "local_train" and site == "west":
            client_state = transport.services["north"]._client.client_state
            client_state.keep_own(client_state.own().clone())
            client_state.own().values.zero_()
        return answer

    transport = InProcessTransport(job, files, replace_own)
    spoilt = Ledger(host(job, transport, tmp_path / "spoilt")).rounds()
    scores = [[line["validation_local"] for line in lines] for lines in (clean, spoilt)]
    assert scores[0] == scores[1]
    assert {event["what"] for line in spoilt for event in line["events"]} == {"resent"}


def joined(service: SiteService) -> Message:
    """A model of the job's network, and the site has said hello."""
    assert "error" not in service.answer("hello", HELLO).facts
    return Message(
        arrays_of(service._client.trainer.layout.read(service._client.trainer.network)), {}
    )


ATTACKS = [
    ("evaluate", {"t": 1, "split": "train"}, "evaluate of round 1 .* with {'split': 'train'}"),
    ("evaluate", {"t": 1, "split": "test"}, "evaluate of round 1 .* with {'split': 'test'}"),
    ("evaluate", {"split": "validation"}, "belongs to a round, 1 to 2"),
    ("evaluate", {"t": 3, "split": "test"}, "belongs to a round, 1 to 2"),
    (
        *("differentiate", {"t": 1, "s": 1, "data": "train", "mode": "train"}),
        r"differentiate of round 1 is not asked for by this job \(auto-fedavg\)",
    ),
    ("class_counts", {"t": 1}, "class_counts of round 1 is not asked for"),
    ("local_train", {"t": 1, "T": 2, "passes": 99}, "with {'passes': 99}"),
]


@pytest.mark.parametrize(("verb", "facts", "why"), ATTACKS, ids=lambda a: str(a)[:30])
def test_what_the_job_does_not_ask_for_is_refused_and_logged(verb, facts, why, hospitals, caplog):
    study, files = hospitals
    service = SiteService(job_of(read_study(study), "auto-fedavg").text(), "north", files["north"])
    model = joined(service)
    said = service.answer(verb, Message(model.arrays, facts))
    assert not said.arrays
    assert list(said.facts) == ["error"]
    assert re.search(why, said.facts["error"])
    assert f"north refuses: {said.facts['error']}" in caplog.text
    good = {"t": 1, "split": "validation"}
    assert service.answer("evaluate", Message(model.arrays, good)).facts["scores"]


def test_test_cases_stay_closed_until_training_is_over(hospitals):
    study, files = hospitals
    text = job_of(read_study(study), "auto-fedavg").text()
    service = SiteService(text, "north", files["north"])
    model = joined(service)
    train, test = ({"t": 1, "T": 2}, {"t": 2, "split": "test"})
    assert service.answer("local_train", Message(model.arrays, train)).arrays
    said = service.answer("evaluate", Message(model.arrays, test)).facts["error"]
    assert said == "evaluate of round 2 on test cases: round 2 has not been trained here yet"
    assert service.answer("local_train", Message(model.arrays, {"t": 2, "T": 2})).arrays
    assert service.answer("evaluate", Message(model.arrays, test)).facts["scores"]
    restarted = SiteService(text, "north", files["north"])  # cannot know, and so trains no more
    assert restarted.answer("evaluate", Message(model.arrays, test)).facts["scores"]
    said = restarted.answer("local_train", Message(model.arrays, train)).facts["error"]
    assert "after the final test of this job, which ends training" in said


def test_a_run_whose_test_alone_is_left_resumes_over_new_and_old_services(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    asked = []

    def stop(verb, site, answer):
        asked.append((verb, site))
        if asked.count(("evaluate", "west")) > 3:  # two rounds, and the first model's test
            raise KeyboardInterrupt
        return answer

    first = InProcessTransport(job, files, stop)
    with pytest.raises(KeyboardInterrupt):
        host(job, first, tmp_path / "runs")
    assert Ledger(job.folder(tmp_path / "runs")).rounds()[-1]["t"] == 2
    again = InProcessTransport(job, files)
    again.services["north"] = first.services["north"]  # its process outlives the server's
    assert Ledger(host(job, again, tmp_path / "runs")).status() == "finished"


def digests(service: SiteService) -> tuple[str, str]:
    said = service.answer("hello", HELLO).facts
    return said["split_sha256"], said["content_sha256"]


def test_digests_of_private_names_cannot_be_checked_against_a_guess(hospitals, monkeypatch):
    """Whoever knows the very names, splits and files cannot find them in what a site says."""
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    service = SiteService(job.text(), "north", files["north"])
    sent = digests(service)
    about = read_site_file(files["north"]).placed(job.row.task, "").describe()
    assert not set(sent) & {about["split_sha256"], about["content_sha256"]}
    assert [len(digest) for digest in sent] == [64, 64]
    assert digests(SiteService(job.text(), "north", files["north"])) == sent  # after a restart
    files["north"].write_text('state = "elsewhere"\n' + files["north"].read_text())
    moved = digests(SiteService(job.text(), "north", files["north"]))
    assert not set(moved) & set(sent)
    assert (files["north"].parent / "elsewhere" / "north" / "secret").stat().st_size == 32
    monkeypatch.setattr(type(job.row.task), "private_names", False)  # published: sites can compare
    plain = digests(SiteService(job.text(), "north", files["north"]))
    assert plain == (about["split_sha256"], about["content_sha256"])


def test_a_run_on_private_data_is_resumed_by_the_kept_secret(hospitals, tmp_path):
    study, files = hospitals
    job = job_of(read_study(study), "auto-fedavg")
    path = host(job, InProcessTransport(job, files), tmp_path / "runs")
    RunFolder(path).set_status("running")  # as if it had been killed
    host(job, InProcessTransport(job, files), tmp_path / "runs")
    assert Ledger(path).status() == "finished"
    RunFolder(path).set_status("running")
    (tmp_path / "state" / "west" / "secret").unlink()
    with pytest.raises(DataError, match="site west, joining: the splits of its data are not those"):
        host(job, InProcessTransport(job, files), tmp_path / "runs")
