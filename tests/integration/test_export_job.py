"""`autofedavg export` and `allow`: jobs for an administrator, kits that may run them."""

import json
import tomllib
from pathlib import Path

import pytest

from autofedavg.engines.flare.allow import FILES, OTHERS
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
    assert "output folder already exists" in said


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
    assert "settings of the study depend on data that is not on this machine" in said


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (("--sites", "I,I,II"), 2, "is listed twice"),
        (("--sites", "A B,../x"), 2, "is not a valid site name"),
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


KITS = [("fed_server.json", CONTROLLER), ("fed_client.json", EXECUTOR)]


def a_kit(folder, kind: str, **files) -> Path:
    (folder / "startup").mkdir()
    (folder / "local").mkdir()
    (folder / "startup" / kind).write_text("{}")
    given = {"class_allow_list": ["nvflare.x"], "allow_log_streaming": True, "more": 1}
    for name, content in {"resources.json.default": given, **files}.items():
        (folder / "local" / name).write_text(json.dumps(content))
    return folder / "local"


def rights_in(local) -> dict:
    return json.loads((local / "authorization.json").read_text())["permissions"]


@pytest.mark.parametrize(("kit", "wanted"), KITS)
def test_allow_puts_our_class_on_a_kits_list_and_keeps_logs_at_the_site(kit, wanted, say, tmp_path):
    local = a_kit(tmp_path, kit)
    for _ in range(2):
        code, out, _ = say("allow", tmp_path)
        assert (code, out.splitlines()[0]) == (0, f"allowed: {wanted}")
    made = json.loads((local / "resources.json").read_text())
    assert made["class_allow_list"] == ["nvflare.x", wanted]
    assert made["more"] == 1
    assert made["allow_log_streaming"] is (wanted == CONTROLLER)
    doors = list(local.glob("*__p_resources.json"))
    assert len(doors) == (wanted == EXECUTOR)
    assert ("closed: to messages of other sites\n" in out) == (wanted == EXECUTOR)
    for door in doors:
        (part,) = json.loads(door.read_text())["components"]
        assert part["path"] == "autofedavg.engines.flare.access.SiteAccessCheck"


@pytest.mark.parametrize("kit", [kit for kit, _ in KITS])
def test_allow_takes_code_and_files_from_every_role(kit, say, tmp_path):
    theirs = {
        "format_version": "1.0",
        "permissions": {
            "project_admin": "any",
            "org_admin": {"view": "any", "shell_commands": "o:site", "byoc": "none"},
            "lead": {"submit_job": "any", "view": ["o:site"], " BYOC ": "any", "cat": "n:lee"},
            "guest": "none",
            "member": {"view": "any"},
        },
    }
    local = a_kit(tmp_path, kit, **{"authorization.json.default": theirs})
    code, out, _ = say("allow", tmp_path)
    assert code == 0
    whom = "lead, org_admin, project_admin"
    assert f"denied: code in jobs, and files of this kit ({whom}; other rules: FLARE's)" in out
    made = rights_in(local)
    admin = made.pop("project_admin")
    denied = {"byoc", "shell_commands", "server-predeployed-flwr"}
    assert {right for right, who in admin.items() if who == "none"} == denied
    assert {admin[right] for right in admin.keys() - denied} == {"any"}
    assert {"submit_job", "manage_job", "download_job", "view", "operate"} <= admin.keys()
    assert made == {
        "org_admin": {"view": "any", "shell_commands": "none", "byoc": "none"},
        "lead": {"submit_job": "any", "view": ["o:site"], " BYOC ": "none", "cat": "none"},
        "guest": "none",
        "member": {"view": "any"},
    }
    assert json.loads((local / "authorization.json.default").read_text()) == theirs


def test_allow_keeps_a_kits_own_rules_and_says_so(say, tmp_path):
    own = {"format_version": "1.0", "permissions": {"ward": {"view": "o:site", "byoc": "any"}}}
    local = a_kit(
        tmp_path,
        "fed_client.json",
        **{"authorization.json": own, "authorization.json.default": {"permissions": {"x": "any"}}},
    )
    _, out, _ = say("allow", tmp_path)
    assert "(ward; other rules: the kit's own)" in out
    assert rights_in(local) == {"ward": {"view": "o:site", "byoc": "none"}}
    _, out, _ = say("allow", tmp_path, "--json")
    assert json.loads(out) == {"allowed": EXECUTOR, "policy": "the kit's own", "denied": []}
    _, out, _ = say("allow", tmp_path)
    assert "(nobody had the right; other rules: the kit's own)" in out


def test_a_kit_without_rules_gets_some(say, tmp_path):
    local = a_kit(tmp_path, "fed_client.json")
    _, out, _ = say("allow", tmp_path)
    assert "(project_admin; other rules: none)" in out
    assert rights_in(local)["project_admin"]["byoc"] == "none"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"permissions": {"lead": 3}}'])
def test_rules_that_cannot_be_read_leave_a_kit_as_it_was(content, say, tmp_path):
    local = a_kit(tmp_path, "fed_client.json")
    (local / "authorization.json").write_text(content)
    before = sorted(local.iterdir())
    code, _, said = say("allow", tmp_path)
    assert code == 1
    assert "authorization.json: cannot be read" in said
    assert sorted(local.iterdir()) == before


def test_every_right_that_flare_knows_is_kept_or_denied():
    flare = pytest.importorskip("nvflare.apis.fl_constant", reason="needs the extra `flare`")
    security = pytest.importorskip("nvflare.security.security")
    names = vars(flare.AdminCommandNames)
    known = {name for key, name in names.items() if key.isupper()}
    alone = known - security.COMMAND_CATEGORIES.keys()
    known = alone | set(security.COMMAND_CATEGORIES.values())
    assert known - {"shell_commands"} == set(OTHERS)
    shell = {c for c, kind in security.COMMAND_CATEGORIES.items() if kind == "shell_commands"}
    assert {"shell_commands", *shell} == set(FILES)


@pytest.mark.parametrize("content", ["[]", "{", '{"class_allow_list": 3}'])
def test_what_is_no_kit_is_not_touched(content, say, tmp_path):
    code, _, said = say("allow", tmp_path)
    assert code == 2
    assert "not a startup kit" in said
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text("{}")
    (tmp_path / "local" / "resources.json").write_text(content)
    code, _, said = say("allow", tmp_path)
    assert code == 1
    assert "cannot be read" in said
    assert (tmp_path / "local" / "resources.json").read_text() == content
