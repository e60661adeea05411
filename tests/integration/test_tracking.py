"""`--track` through its public door; read back with TensorBoard's and MLflow's own readers."""

import json
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autofedavg.core.errors import RunError
from autofedavg.core.evaluation import summarise
from autofedavg.experiment.folder import Ledger
from autofedavg.experiment.selection import Seen
from autofedavg.monitor.trackers.points import round_points, site_names
from autofedavg.monitor.trackers.tracker import Tracker

ROW = ["--only", "n-dirichlet"]


Series = dict[str, list[tuple[int, float]]]


def expected(folder: Path) -> Series:
    """Every series as the run folder has it, worked out here from the reference's description."""
    series: Series = {}
    ledger = Ledger(folder)
    lines = ledger.rounds()
    for line in lines:
        for name, value in in_round(line).items():
            if value is not None:
                series.setdefault(name, []).append((line["t"], float(value)))
    if ledger.status() == "finished":
        summary = summarise(ledger.scores(), "dice")
        columns = {c: getattr(summary, c) for c in ("global_test_avg", "local_avg", "local_gen")}
        for name, value in {**summary.by_site, **columns}.items():
            if value is not None:
                series[f"test/{name}"] = [(lines[-1]["t"], value)]
    return series


def in_round(line: dict) -> dict:
    seconds = {call: cost["seconds"] for call, cost in line["calls"].items()}
    groups = {
        "validation": {**line["validation"]["sites"], "mean": line["validation"]["mean"]},
        "validation_local": line["validation_local"],
        "loss": line["loss"],
        "test_every": _tested(line.get("test", {"sites": {}, "mean": None})),
        "traffic": {"down": line["bytes_down"], "up": line["bytes_up"]},
        "seconds": {**seconds, "all": sum(seconds.values())},
    }
    told = line.get("learning_loss", {}).values()
    if any(len(losses) > 1 for losses in told):  # two or three: a quarter of them is one
        ends = {"first": 0, "last": -1}
        groups["learning_loss"] = {
            end: statistics.fmean(losses[at] for losses in told) for end, at in ends.items()
        }
    for letter in ("alpha", "beta"):
        weights = dict(zip(("I", "II", "III"), line[letter] or (), strict=False))
        layered = any(isinstance(weight, list) for weight in weights.values())
        kinds = {"": statistics.fmean, "_low": min, "_high": max} if layered else {"": float}
        for kind, summed in kinds.items():
            groups[letter + kind] = {site: summed(weight) for site, weight in weights.items()}
    found = {f"{g}/{name}": value for g, values in groups.items() for name, value in values.items()}
    return {**found, "learned": line["learned"], "answered": len(line["answered"])}


def _tested(scores: dict) -> dict:
    return {**scores["sites"], "mean": scores["mean"]}


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def tensorboard(folder: Path) -> Series:
    """All scalars of a run that is finished; the mark that says so is left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    there = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    there.Reload()
    found = {
        tag: [(event.step, event.value) for event in there.Scalars(tag)]
        for tag in there.Tags()["scalars"]
    }
    assert len(found.pop("finished", [0])) == 1
    return found


def mlflow_runs(store: Path) -> list:
    """(run, series) of all runs in a local store."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(store))
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return [
        (
            run,
            {
                key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
        )
        for run in found
    ]


def rounded(series: Series) -> Series:
    return {name: [(t, float32(value)) for t, value in points] for name, points in series.items()}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory) -> Path:
    """The tiny study, layer-wise row added, run with both trackers in a process of its own."""
    from tests_tiny import TINY

    folder = tmp_path_factory.mktemp("tracked")
    layered = '[[run]]\nname = "l-softmax"\nmethod = { name = "auto-fedavg", S = 1, '
    layered += 'weights = "layer", constraint = "softmax", t0 = 2 }\n'
    (folder / "tiny.toml").write_text(TINY + layered)
    done = subprocess.run(
        [
            sys.executable, "-W", "error", "-m", "autofedavg", "run", folder / "tiny.toml",
            "--out", folder / "runs", "--track", "tensorboard", "--track", "mlflow",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"run folder: {folder / 'runs' / 'tiny'}\n"
    assert {path.name for path in folder.iterdir()} == {"tiny.toml", "runs"}  # nothing beside
    return folder / "runs" / "tiny"


@pytest.mark.parametrize("row", ["local-only", "fedavg", "n-dirichlet", "l-softmax"])
def test_tensorboard_holds_every_number_of_the_folder(tracked, row) -> None:
    there = tensorboard(tracked / "tensorboard" / row / "seed-0")
    assert there == rounded(expected(tracked / row / "seed-0"))
    assert "validation/mean" in there or row == "local-only"
    assert ("alpha_low/I" in there) == (row == "l-softmax")


def test_tensorboard_holds_settings_and_environment_as_text(tracked) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    there = EventAccumulator(str(tracked / "tensorboard" / "fedavg" / "seed-0"))
    there.Reload()
    words = {}
    for tag in there.Tags()["tensors"]:
        words[tag] = there.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert '    name = "fedavg"  # study' in words["config.toml/text_summary"]
    assert '"torch":' in words["environment.json/text_summary"]


def test_mlflow_holds_every_number_of_the_folder(tracked) -> None:
    runs = mlflow_runs(tracked / "mlruns")
    assert sorted(run.info.run_name for run, _ in runs) == [
        "fedavg/seed-0", "l-softmax/seed-0", "local-only/seed-0", "n-dirichlet/seed-0",
    ]  # fmt: skip
    for run, series in runs:
        folder = tracked / run.info.run_name
        assert series == expected(folder)
        assert run.info.status == "FINISHED"
        lines = Ledger(folder).rounds()
        assert run.info.start_time == int(1000 * lines[0]["time"])
        about = json.loads((folder / "environment.json").read_text())
        assert run.data.tags["autofedavg.versions.torch"] == about["versions"]["torch"]
        assert run.data.tags["autofedavg.data.split_sha256"] == about["data"]["split_sha256"]
        assert run.data.tags["autofedavg.folder"] == str(folder)
        assert run.data.params["training.iterations"] == "2"
        assert run.data.params["method.name"] in run.info.run_name + "auto-fedavg"


def test_scores_of_the_last_round_do_not_hide_those_of_the_end(tiny, tmp_path, say) -> None:
    """`test_every` scores the last round's model, the end the selected ones: both are logged."""
    both = ["--track", "tensorboard", "--track", "mlflow"]
    often = ["--set", "test_every=3", "--only", "fedavg"]
    code, _, err = say("run", tiny, *often, "--out", tmp_path, *both)
    assert code == 0, err
    home = tmp_path / "tiny"
    wanted = expected(home / "fedavg" / "seed-0")
    assert [t for t, _ in wanted["test_every/II"]] == [t for t, _ in wanted["test/II"]] == [3]
    ((_, series),) = mlflow_runs(home / "mlruns")
    assert series == wanted
    assert tensorboard(home / "tensorboard" / "fedavg" / "seed-0") == rounded(wanted)


def test_runs_at_the_same_time_do_not_mix(tiny, tmp_path, say) -> None:
    code, _, err = say(
        "run", tiny, "--only", "fedavg", "--only", "n-dirichlet", "--at-once", "2",
        "--out", tmp_path, "--track", "tensorboard", "--track", "mlflow",
    )  # fmt: skip
    assert code == 0, err
    home = tmp_path / "tiny"
    for run, series in (runs := mlflow_runs(home / "mlruns")):
        assert series == expected(home / run.info.run_name)
        assert run.info.status == "FINISHED"
        there = tensorboard(home / "tensorboard" / run.info.run_name)
        assert there == rounded(expected(home / run.info.run_name))
    assert len(runs) == 2


def test_one_that_fails_beside_others_is_told(tiny_home) -> None:
    closed = []

    class Kept:
        last, complete = 0, False

        def __init__(self, source, first) -> None:
            self.name = source.name

        def write(self, t, time, points) -> None:
            self.last = t

        def close(self, state="") -> None:
            closed.append((self.name, state))

    tracker = Tracker("kept", Kept)
    runs = [tracker.beside() for _ in range(2)]
    for run, row in zip(runs, ("fedavg", "n-dirichlet"), strict=True):
        folder = tiny_home / row / "seed-0"
        run.started(None, 0, 1, 2, folder)
        run.round(Seen(1, 3, None, None, ()))
    runs[0].failed(tiny_home / "fedavg" / "seed-0", RunError("too bad"))
    assert closed == [("fedavg/seed-0", "failed")]
    tracker.stopped("interrupted")
    assert closed[1:] == [("n-dirichlet/seed-0", "interrupted")]


def test_a_tracker_that_fails_is_not_tried_anew_for_every_run(tiny_home, caplog) -> None:
    opened = []

    def gone(source, first):
        opened.append(source.name)
        raise OSError("nobody there")

    tracker = Tracker("gone", gone)
    for row in ("fedavg", "n-dirichlet"):
        run = tracker.beside()
        run.started(None, 0, 1, 2, tiny_home / row / "seed-0")
        run.round(Seen(1, 3, None, None, ()))
        run.finished(tiny_home / row / "seed-0")
    assert opened == ["fedavg/seed-0"]
    assert sum("tracking stopped" in record.getMessage() for record in caplog.records) == 1


def test_run_folders_are_as_without_trackers(tracked, tiny_home) -> None:
    for row in ("fedavg", "n-dirichlet"):
        mine, other = tracked / row / "seed-0", tiny_home / row / "seed-0"
        assert {p.name for p in mine.iterdir()} == {p.name for p in other.iterdir()}
        for name in ("scores.csv", "checkpoints/last-3.safetensors", "config.toml"):
            assert (mine / name).read_bytes() == (other / name).read_bytes()


def test_resume_of_what_is_finished_adds_nothing_and_mends_what_is_missing(
    tracked, tmp_path, say
) -> None:
    home = Path(shutil.copytree(tracked, tmp_path / "tiny"))
    events = home / "tensorboard"
    before = sorted(path for path in events.rglob("*") if path.is_file())
    both = ["--track", "tensorboard", "--track", "mlflow"]
    assert say("resume", home, *both)[0] == 0
    assert sorted(path for path in events.rglob("*") if path.is_file()) == before
    shutil.rmtree(events / "fedavg")  # as if the run had been begun without a tracker
    assert say("resume", home, *both)[0] == 0
    for row in ("fedavg", "n-dirichlet"):
        there = tensorboard(events / row / "seed-0")
        assert there == rounded(expected(home / row / "seed-0"))
    runs = mlflow_runs(home / "mlruns")
    assert len(runs) == 4
    assert all(series == expected(home / run.info.run_name) for run, series in runs)


def test_killed_and_resumed_leaves_no_gap_and_no_double_point(tiny, tmp_path, start, say) -> None:
    folder = tmp_path / "runs" / "tiny" / "n-dirichlet" / "seed-0"
    both = ["--track", "tensorboard", "--track", "mlflow"]
    first = ["run", tiny, *ROW, "--set", "rounds=30", "--out", tmp_path / "runs", *both]
    rounds = folder / "rounds.jsonl"
    for target in (2, 5):
        process = start(*(first if target == 2 else ["resume", folder, *both]))
        while not rounds.exists() or rounds.read_bytes().count(b"\n") < target:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        time.sleep(0.02 * target)  # inside or behind the writing of a tracker
        process.kill()
        process.wait()
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("rounds = 30", "rounds = 9"))
    assert say("resume", folder, *both) == (0, f"run folder: {folder}\n", "")
    wanted = expected(folder)
    assert [t for t, _ in wanted["validation/mean"]] == list(range(1, 10))
    home = tmp_path / "runs" / "tiny"
    assert tensorboard(home / "tensorboard" / "n-dirichlet" / "seed-0") == rounded(wanted)
    ((run, series),) = mlflow_runs(home / "mlruns")
    assert series.keys() == wanted.keys()
    for name, points in series.items():
        # Seconds of a round that was logged and then computed anew are those of the first time.
        if not name.startswith("seconds/"):
            assert points == wanted[name]
        assert [t for t, _ in points] == [t for t, _ in wanted[name]]
    assert run.info.status == "FINISHED"


def test_ctrl_c_is_told_to_mlflow_and_resume_goes_on_with_the_same_run(
    tiny, tmp_path, start, say
) -> None:
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    process = start(
        "run", tiny, "--only", "fedavg", "--set", "rounds=500", "--out", tmp_path / "runs",
        "--track", "mlflow",
    )  # fmt: skip
    logged = tmp_path / "runs" / "tiny" / "mlruns"
    while not list(logged.rglob("seconds/all")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    ((run, series),) = mlflow_runs(logged)
    assert run.info.status == "KILLED"
    last = len(series["loss/I"])
    config = folder / "config.toml"
    shorter = config.read_text().replace("rounds = 500", f"rounds = {last + 2}")
    config.write_text(shorter)
    assert say("resume", folder, "--track", "mlflow")[0] == 0
    ((again, series),) = mlflow_runs(logged)
    assert again.info.run_id == run.info.run_id
    assert again.info.status == "FINISHED"
    assert series == expected(folder)


def test_torn_events_and_half_a_round_are_mended(tracked, tmp_path, say) -> None:
    """What a kill in the middle of writing leaves, made by hand at every place of the last file."""
    home = Path(shutil.copytree(tracked, tmp_path / "tiny"))
    folder, events = (
        home / "n-dirichlet" / "seed-0",
        home / "tensorboard" / "n-dirichlet" / "seed-0",
    )
    (file,) = events.iterdir()
    whole = file.read_bytes()
    for share in (0.15, 0.5, 0.73, 0.93, 0.96, 0.99):
        for other in events.iterdir():
            other.unlink()
        file.write_bytes(whole[: int(share * len(whole))])
        assert say("resume", home, "--track", "tensorboard")[0] == 0
        assert tensorboard(events) == rounded(expected(folder)), share
    runs = {run.info.run_name: run.info for run, _ in mlflow_runs(home / "mlruns")}
    mine = runs["n-dirichlet/seed-0"]
    metrics = home / "mlruns" / mine.experiment_id / mine.run_id / "metrics"
    for name in ("seconds/all", "traffic/up"):  # the last of a round are missing
        path = metrics / name
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for path in metrics.glob("test/*"):
        path.unlink()
    about = metrics.parent / "meta.yaml"
    about.write_text(about.read_text().replace("status: 3", "status: 1"))
    assert say("resume", home, "--track", "mlflow")[0] == 0
    for run, series in mlflow_runs(home / "mlruns"):
        assert run.info.status == "FINISHED"
        assert series == expected(home / run.info.run_name)


def test_a_tracker_that_fails_is_a_warning_and_the_run_goes_on(
    tiny, tmp_path, say, monkeypatch, caplog
) -> None:
    home = tmp_path / "runs" / "tiny"
    home.mkdir(parents=True)
    (home / "tensorboard").write_text("in the way")
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9"
    )  # nobody listens there
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, _, err = say(
        "run", tiny, "--only", "fedavg", "--only", "n-dirichlet", "--out", tmp_path / "runs",
        "--track", "tensorboard", "--track", "mlflow",
    )  # fmt: skip
    assert code == 0
    warnings = [
        r.getMessage() for r in caplog.records if r.name.startswith("autofedavg.monitor.trackers")
    ]
    assert len(warnings) == 2  # one of each, for two runs of three rounds
    assert all("tracking stopped" in line and "the run goes on" in line for line in warnings)
    assert warnings[0].startswith("tensorboard: ")
    assert warnings[1].startswith("mlflow: ")
    assert "Traceback" not in err
    logged = (home / "fedavg" / "seed-0" / "log.txt").read_text()
    assert "tracking stopped" in logged
    assert "secret" not in logged + err  # a log is passed on with its run folder
    for row in ("fedavg", "n-dirichlet"):
        assert Ledger(home / row / "seed-0").status() == "finished"
    (home / "tensorboard").unlink()
    assert say("resume", home, "--track", "tensorboard")[0] == 0
    for row in ("fedavg", "n-dirichlet"):
        there = tensorboard(home / "tensorboard" / row / "seed-0")
        assert there == rounded(expected(home / row / "seed-0"))


def test_a_tracker_that_fails_in_the_middle_is_a_warning_too(
    tiny, tmp_path, say, monkeypatch, caplog
) -> None:
    from autofedavg.monitor.trackers.tensorboard import TensorBoardLog

    write = TensorBoardLog.write

    def full(self, t, time, points):
        if t == 2:
            raise OSError(28, "No space left on device")
        write(self, t, time, points)

    monkeypatch.setattr(TensorBoardLog, "write", full)
    code, *_ = say("run", tiny, *ROW, "--out", tmp_path, "--track", "tensorboard")
    assert code == 0
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "tensorboard: tracking stopped (OSError: [Errno 28] No space left on device); the run goes "
        "on, and a later `resume --track tensorboard` copies what is missing"
    ]
    monkeypatch.undo()
    assert say("resume", tmp_path / "tiny", "--track", "tensorboard")[0] == 0
    there = tensorboard(tmp_path / "tiny" / "tensorboard" / "n-dirichlet" / "seed-0")
    assert there == rounded(expected(tmp_path / "tiny" / "n-dirichlet" / "seed-0"))


NO_NETWORK = """
import os, socket, sys
for name in ("CI", "PYTEST_CURRENT_TEST", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
    os.environ.pop(name, None)
def refused(*arguments, **options):
    open(sys.argv[1], "a").write(repr(arguments[:2]) + "\\n")
    raise OSError("no network")
socket.getaddrinfo = refused
socket.socket.connect = lambda self, address: refused(address)
socket.socket.connect_ex = lambda self, address: refused(address)
"""
RUN = (
    NO_NETWORK
    + """
from autofedavg import cli
code = cli._main(sys.argv[2:])
import time; time.sleep(1.5)
sys.exit(code)
"""
)
BARE = (
    NO_NETWORK
    + """
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
client = mlflow.MlflowClient(tracking_uri=sys.argv[2])
client.create_run(client.create_experiment("x"))
import time; time.sleep(1.5)
"""
)


def outside(code: str, calls: Path, *arguments: object) -> str:
    """What a process tried to reach, with every connection refused."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(calls), *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return calls.read_text() if calls.exists() else ""


def test_nothing_goes_to_a_network(tiny, tmp_path) -> None:
    asked = outside(
        RUN, tmp_path / "calls", "run", tiny, "--only", "fedavg", "--out", tmp_path / "runs",
        "--set", "rounds=1", "--workers", 1, "--track", "mlflow", "--track", "tensorboard",
    )  # fmt: skip
    assert "mlflow" not in asked
    assert asked == ""


def test_the_test_above_would_see_telemetry(tmp_path) -> None:
    asked = outside(BARE, tmp_path / "calls", tmp_path / "mlruns")
    if not asked:
        pytest.skip("this version of MLflow reports nothing at its start")
    assert "telemetry" in asked


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("tensorbord", "'tensorbord' is not a known tracker; did you mean tensorboard?"),
        ("wandb", "'wandb' is not a known tracker; choose from: mlflow, tensorboard"),
    ],
)
def test_unknown_trackers_are_refused_before_any_work(
    tiny, tmp_path, say, tracker, message
) -> None:
    code, _, err = say("run", tiny, "--out", tmp_path / "runs", "--track", tracker)
    assert code == 2
    assert message in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_a_missing_package_is_told_with_its_extra(
    tiny, tmp_path, say, monkeypatch, tracker
) -> None:
    from autofedavg.monitor.trackers import tracker as tracking

    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    code, _, err = say("run", tiny, "--out", tmp_path / "runs", "--track", tracker)
    assert code == 2
    assert f"pip install 'autofedavg[{tracker}]'" in err
    assert not (tmp_path / "runs").exists()


ODD = ["a/b", "a:b", "..", "[x]", "mean", "", " ", "ä b", "x" * 300, "all", "\x1b[2J", "a_b"]


def test_odd_names_of_sites_reach_both_trackers(tmp_path) -> None:
    from autofedavg.monitor.trackers.mlflow import MlflowLog
    from autofedavg.monitor.trackers.tensorboard import TensorBoardLog
    from autofedavg.monitor.trackers.tracked_run import TrackedRun

    folder = tmp_path / "run"
    folder.mkdir()
    values = {site: k / 7 for k, site in enumerate(sorted(ODD))}
    line = {
        "t": 1, "time": 5.0, "alpha": list(values.values()), "beta": None, "learned": False,
        "loss": values, "validation": {"mean": 0.25, "sites": values}, "validation_local": values,
        "calls": {}, "bytes_down": 1, "bytes_up": 2, "answered": sorted(ODD),
    }  # fmt: skip
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "config.toml").write_text('name = "odd"\n')
    data = {"cases": {site: {} for site in ODD}, "data": "odd"}
    (folder / "environment.json").write_text(json.dumps({"data": data, "metric": "dice"}))
    source = TrackedRun(folder)
    names = site_names(sorted(ODD))
    assert len(set(names.values())) == len(ODD)
    points = round_points(line, names)
    assert len(points) == 1 + 4 * len(ODD) + 5
    for log in (TensorBoardLog(source, 1), MlflowLog(source, 1)):
        log.write(1, 5.0, points)
        log.close()
    there = tensorboard(folder / "tensorboard")
    assert there == {name: [(1, float32(value))] for name, value in points.items()}
    ((_, series),) = mlflow_runs(folder / "mlruns")
    assert series == {name: [(1, value)] for name, value in points.items()}


def test_the_loss_of_learning_is_told_at_both_ends_of_a_call() -> None:
    line = {
        "alpha": None, "beta": None, "learned": True, "loss": {}, "validation": None,
        "validation_local": {}, "calls": {}, "bytes_down": 1, "bytes_up": 2, "answered": [],
    }  # fmt: skip
    told = {"learning_loss": {"A": [4.0, 3.0, 2.0, 1.0], "B": [2.0, 1.0, 1.0, 0.5]}}
    points = round_points(line | told, {})
    assert (points["learning_loss/first"], points["learning_loss/last"]) == (3.0, 0.75)
    assert not any("learning" in name for name in round_points(line, {}))
