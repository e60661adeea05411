"""`autofedavg export` and `allow`: jobs for an administrator, kits that may run them."""

import json
import tomllib

import pytest

from autofedavg.engines.flare.export import CONTROLLER, EXECUTOR, JOB_FILE
from autofedavg.engines.remote.job import Job
from hospitals import CANARY, build_hospitals

SETTLED = """
[study]
name = "consortium"

[base.task]
name = "datalist"
datalist = "/nowhere/list.csv"
image_channels = 1

[base.task.classes]
tumour = [1]

[base.task.pipeline]
spacing = [1.0, 1.0, 1.0]
normalise = "zscore"
window = [0.0, 1.0]
roi = [32, 32, 32]
channels = [4, 8]
strides = [[2, 2, 2]]

[[run]]
name = "auto-fedavg"
method = { name = "auto-fedavg" }
"""


def text_of(engine: str, folder) -> str:
    if engine == "flare":
        return (folder / "app" / "config" / JOB_FILE).read_text()
    app = tomllib.loads((folder / "pyproject.toml").read_text())
    return app["tool"]["flwr"]["app"]["config"]["job"]


@pytest.mark.parametrize("engine", ["flare", "flower"])
def test_a_job_of_settings_alone(engine, say, tiny, tmp_path):
    how = ("--only", "n-dirichlet", "--out", tmp_path / "job", "--wait", 90, "--threads", 2)
    code, out, _ = say("export", engine, tiny, *how)
    assert code == 0
    assert out == f"job: {tmp_path / 'job'}\n"
    job = Job.read(text_of(engine, tmp_path / "job"), "here")
    assert (job.study, job.row.name, job.seed) == ("tiny", "n-dirichlet", 0)
    assert (job.sites, job.wait, job.threads) == (("I", "II", "III"), 90.0, 2)
    code, _, said = say("export", engine, tiny, *how)
    assert code == 2
    assert "it is there already" in said


def test_a_job_for_data_that_is_at_hand_nowhere(say, tmp_path):
    (tmp_path / "study.toml").write_text(SETTLED)
    how = ("--only", "auto-fedavg", "--out", tmp_path / "job")
    code, _, said = say("export", "flare", tmp_path / "study.toml", *how)
    assert code == 3
    assert "no such data list" in said
    code, _, said = say("export", "flare", tmp_path / "study.toml", *how, "--sites", "a, b,c")
    assert code == 0, said
    job = Job.read(text_of("flare", tmp_path / "job"), "here")
    assert job.sites == ("a", "b", "c")
    assert "nowhere" not in job.text()


def test_what_is_left_to_data_that_is_not_at_hand_is_named(say, tmp_path):
    (tmp_path / "study.toml").write_text(SETTLED.replace("image_channels = 1\n", ""))
    how = ("--only", "auto-fedavg", "--out", tmp_path / "job", "--sites", "a,b")
    code, _, said = say("export", "flare", tmp_path / "study.toml", *how)
    assert code == 2
    assert "leaves settings to data that is not at hand" in said


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (("--sites", "I,I,II"), 2, "is there twice"),
        (("--sites", "A B,../x"), 2, "cannot be a site's name"),
        (("--sites", "A,B,C"), 2, "the sites are I, II, III, not A, B, C"),
        (("--seed", "-3"), 2, "-3"),
        (("--wait", "0"), 2, "0"),
        (("--fold", "1"), 2, "has none"),
    ],
    ids=str,
)
def test_what_cannot_be_a_job_is_refused(more, code, says, say, tiny, tmp_path):
    told = say("export", "flare", tiny, "--only", "fedavg", "--out", tmp_path / "job", *more)
    assert told[0] == code
    assert says in told[2]
    assert not (tmp_path / "job").exists()


def test_an_unknown_engine_or_row_is_refused(say, tiny, tmp_path):
    code, _, said = say("export", "flar", tiny, "--only", "fedavg", "--out", tmp_path / "job")
    assert (code, "did you mean flare" in said) == (2, True)
    code, _, said = say("export", "flare", tiny, "--only", "fedav", "--out", tmp_path / "job")
    assert (code, "did you mean fedavg" in said) == (2, True)


def test_a_job_names_no_path_of_whoever_made_it(say, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    study, _ = build_hospitals(tmp_path / f"world-{CANARY}")
    code, _, said = say(
        "export", "flare", study, "--only", "auto-fedavg", "--out", tmp_path / "job", "--json"
    )
    assert code == 0, said
    for file in (tmp_path / "job").rglob("*"):
        assert not file.is_file() or CANARY not in file.read_text()


@pytest.mark.parametrize(
    ("kit", "wanted"), [("fed_server.json", CONTROLLER), ("fed_client.json", EXECUTOR)]
)
def test_allow_puts_our_class_on_a_kits_list_and_keeps_logs_at_the_site(kit, wanted, say, tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "startup" / kit).write_text("{}")
    given = {"class_allow_list": ["nvflare.x"], "allow_log_streaming": True, "more": 1}
    (tmp_path / "local" / "resources.json.default").write_text(json.dumps(given))
    for _ in range(2):
        code, out, _ = say("allow", tmp_path)
        assert (code, out) == (0, f"allowed: {wanted}\n")
    made = json.loads((tmp_path / "local" / "resources.json").read_text())
    assert made["class_allow_list"] == ["nvflare.x", wanted]
    assert made["more"] == 1
    assert made["allow_log_streaming"] is (wanted == CONTROLLER)


@pytest.mark.parametrize("content", ["[]", "{", '{"class_allow_list": 3}'])
def test_what_is_no_kit_is_not_touched(content, say, tmp_path):
    code, _, said = say("allow", tmp_path)
    assert code == 2
    assert "no startup kit" in said
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text("{}")
    (tmp_path / "local" / "resources.json").write_text(content)
    code, _, said = say("allow", tmp_path)
    assert code == 1
    assert "cannot be read" in said
    assert (tmp_path / "local" / "resources.json").read_text() == content
