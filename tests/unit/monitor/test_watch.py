"""The dashboard's parts: reading piece by piece, who holds a lock, what fits a terminal."""

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from autofedavg.core.errors import RunError, printable
from autofedavg.experiment.folder import Ledger, Rounds
from autofedavg.experiment.folder_writer import Busy, RunFolder
from autofedavg.experiment.lock import lock_of
from autofedavg.monitor.watch.glyphs import BLOCKS, bar, buckets, curve, trend
from autofedavg.monitor.watch.sections import Section, fitted
from autofedavg.monitor.watch.state import BestRound, RunState, SiteState, StudyState, WeightRange
from autofedavg.monitor.watch.terminal import Dashboard

scores = st.none() | st.floats(-1e6, 1e6)


@given(st.lists(scores, max_size=400), st.integers(1, 90), st.integers(1, 8))
def test_a_curve_fits_its_frame_and_shows_its_highest(values, width, height) -> None:
    drawn = curve(values, width, height)
    assert len(drawn) == height
    assert {len(line) for line in drawn} == {min(len(values), width)}
    assert set("".join(drawn)) <= set(BLOCKS)
    gaps = [all(value is None for value in values[a:b]) for a, b in buckets(len(values), width)]
    assert [mark == " " for mark in drawn[-1]] == gaps


@given(st.integers(1, 500), st.integers(1, 90))
def test_every_round_has_its_column(count, width) -> None:
    places = buckets(count, width)
    assert [i for a, b in places for i in range(a, b)] == list(range(count))


def test_bars_and_trends() -> None:
    assert bar(0.25, 8) == "██      "
    assert bar(7.0, 3) == "███"
    assert trend([1.0, 0.9, 0.8, 0.5, 0.4, 0.3]) == "falls"
    assert trend([0.3, None, 0.3, 0.301]) == "level"
    assert trend([0.1, 0.4]) == "rises"
    assert trend([0.7, 0.65, 0.6]) == "falls"
    assert trend([0.1]) == ""


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=9), st.integers(1, 120))
def test_sections_fit_and_the_most_important_are_kept(wanted, height) -> None:
    sections = [
        Section(least, least + more, rank, lambda _, height, rank=rank: Text(f"{rank}\n" * height))
        for rank, (least, more) in enumerate(wanted)
    ]
    file = io.StringIO()
    Console(file=file, width=20, height=height).print(fitted(sections, height))
    shown = [line.strip() for line in file.getvalue().splitlines()]
    assert len(shown) <= height
    room = height
    for rank, (least, more) in enumerate(wanted):
        got = shown.count(str(rank))
        assert least <= got <= least + more if least <= room else got == 0
        room -= least if got else 0
    if sum(least + more for least, more in wanted) <= height:
        assert all(shown.count(str(rank)) == sum(pair) for rank, pair in enumerate(wanted))


lines = st.lists(st.dictionaries(st.sampled_from("ab"), st.integers()), min_size=1, max_size=6)


@given(lines, st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(0, 5), lines)
def test_looking_piece_by_piece_reads_what_reading_at_once_does(
    tmp_path_factory, before, cuts, kept, after
) -> None:
    folder = tmp_path_factory.mktemp("rounds")
    path = folder / "rounds.jsonl"
    eye = Rounds(path)
    assert eye.look() == []
    stamped = [{"t": t, "time": t / 7, **line} for t, line in enumerate(before)]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in stamped)
    with path.open("ab", buffering=0) as handle:
        for cut in cuts:
            handle.write(content[:cut])
            content = content[cut:]
            assert eye.look() == Ledger(folder).rounds()
        handle.write(content)
    assert eye.look() == stamped
    # Killed and resumed: the file is replaced by a shorter one, and grows again.
    kept_lines = stamped[:kept]
    again = [{"t": t, "time": 1000 + t, **line} for t, line in enumerate(after, len(kept_lines))]
    part = folder / "rounds.jsonl.part"
    part.write_text("".join(json.dumps(line) + "\n" for line in [*kept_lines, *again]))
    part.replace(path)
    assert eye.look() == [*kept_lines, *again]


def test_a_damaged_line_and_a_newer_version_are_told(tmp_path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"t": 1}\n{"t": \n')
    with pytest.raises(RunError, match="a line is damaged"):
        Rounds(path).look()
    path.write_text('{"schema": 2, "t": 1}\n')
    with pytest.raises(RunError, match=r"newer version \(schema 2\); update autofedavg"):
        Rounds(path).look()


def test_looking_at_a_lock_never_keeps_a_run_from_taking_it(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    seen, stop = set(), threading.Event()

    def look() -> None:
        while not stop.wait(0.001):
            seen.add(lock_of(tmp_path))

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(300):
            with folder.lock():  # fails if anybody else keeps it
                time.sleep(0.001)
            time.sleep(0.001)
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()
    assert seen == {"held", "free"}


def test_a_lock_is_seen_while_it_is_held(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    with folder.lock():
        assert [lock_of(tmp_path) for _ in range(3)] == ["held"] * 3
        with pytest.raises(Busy), folder.lock():
            pass
    assert lock_of(tmp_path) == "free"


@pytest.mark.process
def test_a_killed_process_holds_nothing(tmp_path) -> None:
    code = (
        "import sys, time; from pathlib import Path;"
        "from autofedavg.experiment.folder_writer import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"held\n"
        assert lock_of(tmp_path) == "held"
        run.kill()
    assert lock_of(tmp_path) == "free"


def test_what_cannot_be_locked_is_unknown(tmp_path) -> None:
    os.mkfifo(tmp_path / ".lock")
    assert lock_of(tmp_path) == "unknown"


def test_no_lock_file_is_a_free_folder(tmp_path) -> None:
    assert lock_of(tmp_path) == "free"


def a_run(K: int, rounds: int = 30, seed: int = 0, **changes) -> RunState:
    """A layer-wise run of many sites."""
    losses = tuple(1 / t for t in range(1, rounds + 1))
    known = tuple(
        SiteState(
            f"clinic {k}", k != 7, WeightRange(k / 1000, k / 2000, k / 500),
            WeightRange(k, k, k + 1), 0.5, 0.6, losses,
        )
        for k in range(K)
    )  # fmt: skip
    values = {
        "state": "running", "lock": "held", "method": "auto-fedavg", "metric": "dice",
        "t": rounds, "T": 300, "seconds_a_round": 65.0, "seconds_left": 17550.0, "silent": 3.0,
        "validation": tuple(0.5 - 1 / t for t in range(2, rounds + 2)),
        "best": BestRound(rounds, 0.47),
        "learned": rounds - 2, "sites": known, "missing": ("clinic 7",), "down": 10**9, "up": 10**6,
        "calls": {"local_train": {"calls": 3, "seconds": 2.0, "down": 5, "up": 6}},
        "log": tuple(f"2026-11-15 18:42:2{n},213 INFO autofedavg.run: line {n}" for n in range(8)),
        **changes,
    }  # fmt: skip
    return RunState(Path(f"runs/x/seed-{seed}"), "x", "Row", seed, None, **values)


def drawn(state, width: int, height: int, fitting: bool = True) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, markup=False, highlight=False)
    console.print(Dashboard(state, fitting=fitting))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (40, 12), (200, 60)])
def test_forty_sites_fit_every_terminal_with_what_matters_most(width, height) -> None:
    shown = drawn(a_run(40), width, height)
    assert len(shown) <= height
    assert max(map(len, shown)) <= width
    text = "\n".join(shown)
    assert "round 30 of 300" in text
    assert "missing: clinic 7" in text or width < 60
    assert "validation dice 46.8 in round 30" in text
    if height >= 20:
        assert "clinic 39" in text  # the largest weight
        assert "clinic 7 " in text  # did not answer
    hidden = 40 - sum(line.startswith("clinic ") for line in shown)
    assert (f"and {hidden} more sites" in text) == (0 < hidden < 40)


def test_a_large_terminal_shows_everything() -> None:
    shown = drawn(a_run(30), 200, 60)
    text = "\n".join(shown)
    assert sum(line.startswith("clinic ") for line in shown) == 30
    assert sum("█" in line and "clinic" not in line and "round" not in line for line in shown) == 6
    assert "about 4 h 52 min left" in text
    assert all(word in text for word in ("local_train", "line 0", "line 7", "traffic", "best"))


def test_without_a_limit_all_sites_and_lines_are_shown() -> None:
    text = "\n".join(drawn(a_run(40), 80, 24, fitting=False))
    assert all(f"clinic {k} " in text for k in range(40))
    assert "18:42:20 line 0" in text
    assert "weights last learned in round 28" in text
    assert "0.039 (0.02-0.08)" in text


def test_a_large_study_fits_with_what_goes_on_first() -> None:
    over = {"state": "finished", "lock": "free"}
    runs = [a_run(3, 5, n, silent=100.0 - n, **over) for n in range(60)]
    runs += [a_run(3, 7, 60, state="failed", lock="free", error="no luck"), a_run(3, 9, 61)]
    runs += [RunState(Path(f"w/seed-{n}"), "w", "Waiting", n, 2, T=300) for n in range(40)]
    study = StudyState(Path("runs/x"), "Many", tuple(runs))
    shown = drawn(study, 80, 24)
    assert len(shown) <= 24
    words = [line.split() for line in shown]
    assert "60 of 102 runs finished" in shown[1]
    assert ["Row,", "seed", "61", "running", "9/300", "40.0", "47.0", "in", "9"] in words
    assert ["Row,", "seed", "60", "failed", "7/300", "37.5", "47.0", "in", "7"] in words
    assert ["Row,", "seed", "59", "finished"] in [line[:4] for line in words]  # the newest of them
    listed = sum(line[3:4] == ["finished"] for line in words)
    assert f"and {100 - listed} more: {60 - listed} finished, 40 to come" in shown
    assert "round 9 of 300" in "\n".join(shown)  # the details are those of the run that goes on
    assert study.seconds_left == (293 + 291 + 40 * 300) * 65.0
    assert len(drawn(study, 80, 24, fitting=False)) > 110


@given(st.text(alphabet=st.characters(), max_size=30))
def test_nothing_that_steers_a_terminal_is_printed(name) -> None:
    site = SiteState(name, True, WeightRange(0.5, 0.5, 0.5))
    state = a_run(
        0, 2, sites=(site,), missing=(name,), state="failed", error=name, log=(name,), metric=name
    )
    text = "\n".join(drawn(state, 80, 24))
    assert all(letter.isprintable() for line in text.split("\n") for letter in line)
    assert len(printable(name)) == len(name)


def test_what_stopped_says_how_to_go_on() -> None:
    killed = "\n".join(drawn(a_run(3, lock="free"), 80, 24))
    assert "killed?" in killed
    assert "no process holds its lock" in killed
    assert "autofedavg resume runs/x/seed-0" in killed
    assert "about" not in killed  # no time left is promised
    quiet = "\n".join(drawn(a_run(3, lock="unknown", silent=720.0), 80, 24))
    assert "silent for 12 min" in quiet
    failed = "\n".join(drawn(a_run(3, state="failed", error="disk full\n" * 9), 80, 24))
    assert failed.count("disk full") == 4
    assert "testing the models" in "\n".join(drawn(a_run(3, 300), 80, 24))


def test_time_left_counts_the_longer_rounds_in_which_weights_are_learned() -> None:
    """Nine rounds of one second and one of twenty: 2.9 seconds a round, not the median's one."""
    from autofedavg.monitor.watch.reading import _pace

    now, lines = 0.0, [{"time": 0.0, "learned": False}]
    for t in range(1, 51):
        now += 20.0 if t % 10 == 0 else 1.0
        lines.append({"time": now, "learned": t % 10 == 0})
    assert _pace(lines) == pytest.approx(2.9)
    assert _pace(lines[:1]) is None
