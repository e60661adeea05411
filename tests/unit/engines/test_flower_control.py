"""The `flwr` command from the loopback's side, with a script in its place."""

import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from autofedavg.core.errors import RunError
from autofedavg.engines.flower import loopback as control
from autofedavg.engines.flower.loopback import Control, Outcome


@pytest.fixture
def flwr(tmp_path):
    """(a Control, what its command prints next, how the command was called)."""
    script, answer, called = tmp_path / "flwr", tmp_path / "answer", tmp_path / "called"
    script.write_text(f'#!/bin/sh\necho "$@" >> {called}\nsleep 0.01\n. {answer}\n')
    script.chmod(0o755)
    home = {"FLWR_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    made = Control("127.0.0.1:1", str(tmp_path / "ca.pem"), home)

    def prints(what: object) -> Control:
        text = what if isinstance(what, str) else f"cat <<'END'\n{json.dumps(what)}\nEND"
        answer.write_text(text)
        return made

    return prints, lambda: called.read_text().splitlines()


def test_commands_and_what_they_mean(flwr, tmp_path):
    prints, called = flwr
    prints({"success": True, "node-id": 5}).register(tmp_path / "key.pub", "north")
    assert prints({"success": True, "run-id": "17"}).submit(tmp_path / "app") == 17
    ended = {"status": "finished:completed", "status-details": ""}
    for found, outcome in [
        ({"status": "running", "status-details": ""}, None),
        (ended, Outcome(17, True, "completed")),
        ({**ended, "status": "finished:failed", "status-details": "oh"}, Outcome(17, False, "oh")),
    ]:
        assert prints({"success": True, "runs": [found]}).outcome(17) == outcome
    asked = "list loopback --run-id 17 --format json"
    assert called() == [
        f"supernode register {tmp_path}/key.pub loopback --name north --format json",
        f"run {tmp_path}/app loopback --format json",
        *[asked] * 3,
    ]
    config = tomllib.loads((tmp_path / "home" / "config.toml").read_text())["superlink"]
    assert config["loopback"]["address"] == "127.0.0.1:1"
    assert config["loopback"]["root-certificates"] == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"success": False, "error-message": "Run ID not found."}, "Run ID not found"),
        ("echo broken >&2; exit 1", "broken"),
        ("echo '[]'", r"\[\]"),
        ("sleep 30", "no reply within 0.5 s"),
    ],
    ids=["refused", "crashed", "other JSON", "late"],
)
def test_a_command_that_fails_is_named_with_its_reason(flwr, monkeypatch, answer, says):
    prints, _ = flwr
    monkeypatch.setattr(control, "PATIENCE", 0.5)
    with pytest.raises(RunError, match=f"SuperLink 127.0.0.1:1.*`flwr list` failed: .*{says}"):
        prints(answer).outcome(3)


def test_flowers_commands_are_those_of_this_python(tmp_path):
    found = shutil.which("python", path=control.flower_variables(tmp_path)["PATH"])
    assert Path(found).parent == Path(sys.executable).parent
