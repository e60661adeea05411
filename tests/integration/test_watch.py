"""`watch` through its public door, beside real runs; it reads and never disturbs."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from itertools import pairwise
from pathlib import Path

import pytest

from autofedavg.experiment.lock import lock_of
from autofedavg.monitor.watch import reading


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen) -> None:
    path = folder / "rounds.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def snapshot(folder: Path) -> dict:
    """Every file below a folder, with what would change if somebody wrote it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.stat()
        found[str(path)] = (about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino)
    return found


class Terminal:
    """A command in a terminal of a fixed size."""

    def __init__(self, *arguments: object, rows: int = 24, columns: int = 80) -> None:
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autofedavg", *map(str, arguments)],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**kept, "TERM": "xterm-256color"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(follower)
        self.drawn = b""

    def read(self, until: bytes | None = None, seconds: float = 120) -> str:
        """What was drawn so far, up to some text or to the end."""
        deadline = time.monotonic() + seconds
        while until is None or until not in self.drawn:
            assert time.monotonic() < deadline, self.drawn[-2000:]
            if select.select([self.leader], [], [], 0.1)[0]:
                try:
                    piece = os.read(self.leader, 65536)
                except OSError:
                    piece = b""
                if not piece:
                    assert until is None, self.drawn[-2000:]
                    break
                self.drawn += piece
        return self.drawn.decode(errors="replace")

    def end(self) -> int:
        if self.process.poll() is None and self.process.returncode is None:
            self.process.wait(timeout=30)
        os.close(self.leader)
        return self.process.returncode


def frames(text: str) -> list[list[str]]:
    """The pictures drawn on the whole screen, without colours."""
    whole = text.split("\x1b[?1049l")[0].split("\x1b[H")[1:]
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in whole]
    return [frame.replace("\r", "").split("\n") for frame in plain if frame.strip()]


def test_a_run_is_followed_to_its_end_and_not_disturbed(tiny, tmp_path, start) -> None:
    run = start(
        "run", tiny, "--only", "n-dirichlet", "--set", "rounds=8", "--out", tmp_path / "runs"
    )
    folder = tmp_path / "runs" / "tiny" / "n-dirichlet" / "seed-0"
    wait_for_rounds(folder, 2, run)
    screen = Terminal("watch", folder, "--every", "0.1")
    text = screen.read()
    assert screen.end() == 0
    run.communicate(timeout=60)
    assert run.returncode == 0
    seen = frames(text)
    assert len(seen) > 2
    assert all(len(frame) <= 24 and max(map(len, frame)) <= 80 for frame in seen)
    rounds = [int(m[1]) for frame in seen for m in re.finditer(r"round (\d+) of 8", "".join(frame))]
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[-1] == 8
    during = "\n".join(seen[0])
    assert "running" in during
    assert "killed?" not in text
    for word in ("validation dice", "best", "alpha", "beta", "III", "update_beta", "traffic"):
        assert word in during
    assert "finished" in text.split("\x1b[?1049l")[1]  # the last picture stays on the terminal


def test_a_run_that_ends_between_two_looks_is_not_taken_for_killed(copy, monkeypatch) -> None:
    folder = copy / "fedavg" / "seed-0"
    status = folder / "status.json"
    whole = status.read_text()
    status.write_text(whole.replace("finished", "running"))

    def ended(path: Path) -> str:  # the run says that it is finished, then lets its lock go
        status.write_text(whole)
        return "free"

    monkeypatch.setattr(reading, "lock_of", ended)
    seen = reading.RunReader(folder).look()
    assert (seen.state, seen.killed) == ("finished", False)
    status.write_text(whole.replace("finished", "running"))
    monkeypatch.setattr(reading, "lock_of", lambda path: "free")
    assert reading.RunReader(folder).look().killed


def test_ctrl_c_ends_the_watching_and_not_the_run(tiny, tmp_path, start, command) -> None:
    run = start("run", tiny, "--only", "fedavg", "--set", "rounds=500", "--out", tmp_path / "runs")
    home = tmp_path / "runs" / "tiny"
    wait_for_rounds(home / "fedavg" / "seed-0", 1, run)
    screen = Terminal("watch", home, "--every", "0.2")
    screen.read(until=b"validation")
    screen.process.send_signal(signal.SIGINT)
    text = screen.read()
    assert screen.end() == 0
    assert "stopped watching; the run goes on by itself" in text
    assert run.poll() is None
    assert lock_of(home / "fedavg" / "seed-0") == "held"

    once = command("watch", home / "fedavg" / "seed-0", "--once")
    assert (once.returncode, once.stderr) == (0, "")
    assert "running" in once.stdout
    assert "\x1b" not in once.stdout

    run.kill()  # nobody can write a last word now
    run.wait()
    killed = command("watch", home / "fedavg" / "seed-0")
    assert killed.returncode == 0
    assert "running, but no process holds its lock: killed?" in killed.stdout
    assert "`autofedavg resume" in killed.stdout
    said = "FedAvg, seed 0: killed, not counted; `autofedavg resume` continues it."
    assert said in command("report", home).stdout
    state = json.loads(command("watch", home, "--json").stdout)
    assert state["runs"][0]["killed"]


def test_a_finished_study_is_shown_and_nothing_is_written(tiny_home, say, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    before = snapshot(tiny_home)
    code, out, err = say("watch", tiny_home)
    assert (code, err) == (0, "")
    assert out.startswith("Tiny hospitals\n3 of 3 runs finished")
    for label in ("Local only, seed 0", "FedAvg, seed 0", "Auto-FedAvg-N-Dirichlet, seed 0"):
        assert re.search(rf"^{label} +finished +3/3", out, re.MULTILINE)
    assert f"autofedavg report {tiny_home}" in out
    assert say("watch", tiny_home / "fedavg" / "seed-0", "--once")[0] == 0
    assert snapshot(tiny_home) == before


def test_json_says_what_the_folder_says(tiny_home, say) -> None:
    folder = tiny_home / "n-dirichlet" / "seed-0"
    code, out, _ = say("watch", folder, "--json")
    assert code == 0
    state = json.loads(out)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert (state["kind"], state["state"], state["t"], state["T"]) == ("run", "finished", 3, 3)
    assert state["validation"] == [line["validation"]["mean"] for line in lines]
    score = max(state["validation"])
    assert state["best"] == {"t": state["validation"].index(score) + 1, "score": score}
    assert [site["alpha"]["mean"] for site in state["sites"]] == lines[-1]["alpha"]
    assert [site["beta"]["high"] for site in state["sites"]] == lines[-1]["beta"]
    assert {s["name"]: s["loss"] for s in state["sites"]} == {
        name: [line["loss"][name] for line in lines] for name in ("I", "II", "III")
    }
    assert {s["name"]: s["validation"] for s in state["sites"]} == lines[-1]["validation"]["sites"]
    assert state["down"] == sum(line["bytes_down"] for line in lines)
    steps = [line["calls"]["update_beta"] for line in lines]
    assert state["calls"]["update_beta"]["calls"] == sum(step["calls"] for step in steps) == 6
    gaps = sorted(b["time"] - a["time"] for a, b in pairwise(lines))
    assert state["seconds_a_round"] == pytest.approx(sum(gaps) / 2)
    assert state["log"][-1].endswith("finished")
    assert (state["learned"], state["missing"]) == (3, [])
    study = json.loads(say("watch", tiny_home, "--json")[1])
    assert [run["row"] for run in study["runs"]] == ["local-only", "fedavg", "n-dirichlet"]
    apart = {"silent"}
    assert {k: v for k, v in study["runs"][2].items() if k not in apart} == {
        k: v for k, v in state.items() if k not in apart
    }


@pytest.fixture
def copy(tiny_home, tmp_path) -> Path:
    """A copy of the finished tiny study that may be spoiled."""
    return Path(shutil.copytree(tiny_home, tmp_path / "copy"))


def test_runs_to_come_and_stopped_runs_are_told(copy, say, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shutil.rmtree(copy / "n-dirichlet")
    status = copy / "fedavg" / "seed-0" / "status.json"
    status.write_text('{"schema": 1, "state": "interrupted"}')
    _, out, _ = say("watch", copy)
    assert "1 of 3 runs finished" in out
    assert re.search(r"^Auto-FedAvg-N-Dirichlet, seed 0 +to come +0/3", out, re.MULTILINE)
    assert re.search(r"^FedAvg, seed 0 +interrupted +3/3", out, re.MULTILINE)
    assert f"autofedavg resume {copy / 'fedavg' / 'seed-0'}" in out  # the details are shown too
    status.write_text('{"schema": 1, "state": "failed", "error": "client II: lost [/bold]"}')
    _, out, _ = say("watch", copy / "fedavg" / "seed-0")
    assert "client II: lost [/bold]" in out


def test_folds_have_their_places(tiny_home, tmp_path, say) -> None:
    folder = tmp_path / "study" / "fedavg" / "fold-0" / "seed-0"
    shutil.copytree(tiny_home / "fedavg" / "seed-0", folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("[task]\n", "[task]\nfold = 0\n"))
    row = {"jobs": [[0, 0], [1, 0]], "config": {"name": "fedavg", "label": "FedAvg"}}
    study = {"name": "study", "title": "Folds", "runs": [row]}
    (tmp_path / "study" / "study.json").write_text(json.dumps(study))
    _, out, _ = say("watch", tmp_path / "study")
    assert re.search(r"^FedAvg, fold 0, seed 0 +finished +3/3", out, re.MULTILINE)
    assert re.search(r"^FedAvg, fold 1, seed 0 +to come +0/\?", out, re.MULTILINE)
    assert say("watch", tmp_path / "study" / "fedavg")[0] == 0  # any folder above runs


@pytest.mark.parametrize("missing", ["environment.json", "config.toml", "status.json"])
def test_a_folder_being_made_has_not_begun_yet(copy, say, missing) -> None:
    (copy / "fedavg" / "seed-0" / missing).unlink()
    code, out, err = say("watch", copy / "fedavg" / "seed-0")
    assert (code, err) == (0, "")
    assert "not begun yet" in out
    assert say("watch", copy)[0] == 0


def test_before_the_first_round_and_with_a_line_half_written(copy, say) -> None:
    folder = copy / "fedavg" / "seed-0"
    rounds = folder / "rounds.jsonl"
    (folder / "status.json").write_text('{"schema": 1, "state": "running"}')
    content = rounds.read_bytes()
    rounds.write_bytes(content[:-40])
    assert "round 2 of 3" in say("watch", folder)[1]
    rounds.unlink()
    assert "round 0 of 3" in say("watch", folder)[1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("status.json", '{"schema": 2, "state": "done"}', "newer version (schema 2)"),
        ("rounds.jsonl", '{"schema": 9, "t": 1}\n', "newer version (schema 9)"),
        ("rounds.jsonl", "nonsense\n", "a line is damaged"),
        ("status.json", "nonsense", "status.json: cannot be read"),
        ("environment.json", "{}", "this run folder is damaged (KeyError: 'data')"),
    ],
)
def test_what_cannot_be_read_is_an_error(copy, say, file, content, message) -> None:
    (copy / "fedavg" / "seed-0" / file).write_text(content)
    code, out, err = say("watch", copy / "fedavg" / "seed-0")
    assert (code, out) == (1, "")
    assert message in err


def test_a_damaged_run_does_not_hide_the_others_of_its_study(copy, say) -> None:
    (copy / "fedavg" / "seed-0" / "rounds.jsonl").write_text("nonsense\n")
    code, out, err = say("watch", copy, "--once")
    assert code == 0, err
    assert re.search(r"FedAvg, seed 0 +damaged", out)
    assert re.search(r"Auto-FedAvg-N-Dirichlet, seed 0 +finished", out)
    _, out, _ = say("watch", copy, "--json")
    states = {run["row"]: run for run in json.loads(out)["runs"]}
    assert "a line is damaged" in states["fedavg"]["error"]


def test_other_folders_are_refused(tmp_path, say) -> None:
    assert "nothing: no such folder; name a run" in say("watch", tmp_path / "nothing")[2]
    (tmp_path / "file").write_text("")
    assert "file: this is a file; name a run or study folder" in say("watch", tmp_path / "file")[2]
    (tmp_path / "file").unlink()
    code, _, err = say("watch", tmp_path)
    assert code == 1
    assert "neither a run folder nor a study folder" in err
    for seconds in ("0", "nan", "inf"):
        assert say("watch", tmp_path, "--every", seconds)[0] == 2


def test_a_folder_that_vanishes_ends_the_watching(copy) -> None:
    (copy / "fedavg" / "seed-0" / "status.json").write_text('{"schema": 1, "state": "running"}')
    screen = Terminal("watch", copy, "--every", "0.1")
    screen.read(until=b"validation")
    copy.rename(copy.with_name("elsewhere"))
    text = screen.read()
    assert screen.end() == 1
    assert "the folder has vanished while it was watched" in text
    assert "Traceback" not in text


def test_a_failure_while_watching_ends_it_with_1(copy) -> None:
    status = copy / "fedavg" / "seed-0" / "status.json"
    status.write_text('{"schema": 1, "state": "running"}')
    screen = Terminal("watch", copy, "--every", "0.1")
    screen.read(until=b"validation")
    status.write_text('{"schema": 1, "state": "failed", "error": "disk full"}')
    text = screen.read()
    assert screen.end() == 1
    assert "disk full" in text


EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]clinic[/] \u202e:smile:\r"


def test_names_cannot_steer_the_terminal(copy, say) -> None:
    folder = copy / "n-dirichlet" / "seed-0"
    for name in ("environment.json", "rounds.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"II"', json.dumps(EVIL)))
    config = (folder / "config.toml").read_text()
    label = f"label = {json.dumps(EVIL)}"
    (folder / "config.toml").write_text(re.sub("^label = .*$", lambda _: label, config, flags=re.M))
    (folder / "status.json").write_text(
        json.dumps({"schema": 1, "state": "failed", "error": f"client {EVIL} is gone"})
    )
    with (folder / "log.txt").open("a") as log:
        log.write(f"odd {EVIL}\n")
    _, out, _ = say("watch", folder)
    assert all(letter.isprintable() for line in out.split("\n") for letter in line)
    assert out.count("[bold red]clinic[/]") >= 3
    assert ":smile:" in out
    assert json.loads(say("watch", folder, "--json")[1])["sites"][2]["name"] == "III"
    screen = Terminal("watch", folder, "--once", columns=120)
    drawn = screen.read()
    assert screen.end() == 0
    assert "\x1b]0;" not in drawn
    assert "\x1b[2J" not in drawn
    assert "[bold red]clinic" in drawn


def test_watching_needs_nothing_heavy(tiny_home) -> None:
    code = (
        "import sys; from autofedavg import cli; code = cli._main(['watch', sys.argv[1]]);"
        "heavy = {'torch', 'numpy', 'scipy', 'monai', 'pydantic', 'safetensors'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tiny_home)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_terminals_that_know_no_unicode(tiny_home, command) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = command("watch", tiny_home / "n-dirichlet" / "seed-0", env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert "validation dice" in done.stdout
    assert done.stdout.isascii()
