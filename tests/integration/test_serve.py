"""`serve` as a process of its own, over real run folders."""

import http.client
import json
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from slow_motion import resting, rounds_of


def ask(url: str, path: str = "/", method: str = "GET", **headers) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as response:
            return response.status, response.read().decode()
    finally:
        connection.close()


def version(url: str, **headers) -> dict:
    return json.loads(ask(url, "/version", **headers)[1])


def wait_for(what, seconds: float = 90):
    """What becomes true within the time."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def rounds_shown(url: str) -> list[int]:
    return [int(t) for t in re.findall(r"round (\d+) of \d+", ask(url)[1])]


@pytest.fixture
def finished(tiny_home, tmp_path) -> Path:
    """A finished study that may be spoiled."""
    return Path(shutil.copytree(tiny_home, tmp_path / "finished"))


def contents(home: Path) -> dict:
    """All that is in a folder, with its times."""
    return {path: path.stat().st_mtime_ns for path in [home, *home.rglob("*")]}


def test_started_first_it_shows_a_run_from_its_first_round_to_its_end(
    tiny, tmp_path, start, serving
) -> None:
    server, url = serving(tmp_path / "runs" / "tiny")
    assert "No report yet" in ask(url)[1]
    assert version(url)["state"] == "waiting"
    run = start("run", tiny, "--only", "fedavg", "--set", "rounds=999", "--out", tmp_path / "runs")
    folder = tmp_path / "runs/tiny/fedavg/seed-0"
    with resting(run, folder, 1):
        first = wait_for(lambda: rounds_shown(url))
        state = wait_for(lambda: (now := version(url))["state"] == "running" and now)
    with resting(run, folder, max(first) + 1):
        later = wait_for(lambda: [t for t in rounds_shown(url) if t > max(first)])
        assert version(url)["version"] != state["version"]
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    wait_for(lambda: version(url)["state"] == "finished")
    assert max(rounds_shown(url)) == rounds_of(folder) >= max(later)
    assert version(url)["problem"] is None
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=20)
    assert server.returncode == 0
    assert out == "", "nothing but the address goes to stdout"
    assert "Traceback" not in err
    with socket.create_server(("127.0.0.1", urlsplit(url).port)):
        pass  # the port is free


def test_it_is_read_only_and_knows_its_names(finished, serving) -> None:
    before = contents(finished)
    server, url = serving(finished)
    wait_for(lambda: rounds_shown(url))
    for method in ("POST", "PUT", "DELETE"):
        assert ask(url, "/", method)[0] == 405
    assert ask(url, Host="evil.example")[0] == 421
    for path in ("/../study.json", "/%2e%2e/study.json", "/study.json", "//etc/passwd", "/%00"):
        assert ask(url, path)[0] == 404
    assert version(url)["state"] == "finished"
    assert ask(url, "/tables/scores.csv")[1].startswith("row,")
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 0
    assert contents(finished) == before


def test_a_folder_that_is_spoiled_keeps_the_last_page_and_one_that_is_mended_renews_it(
    finished, serving
) -> None:
    _, url = serving(finished)
    good = wait_for(lambda: rounds_shown(url))
    about = finished / "fedavg" / "seed-0" / "environment.json"
    whole = about.read_text()
    about.write_text(whole[:100])
    problem = wait_for(lambda: version(url)["problem"])
    assert "environment.json" in problem
    assert rounds_shown(url) == good
    about.write_text(whole)
    wait_for(lambda: version(url)["problem"] is None)
    assert rounds_shown(url)


def test_other_machines_need_the_token(finished, serving) -> None:
    server, url = serving(finished, "--host", "0.0.0.0", "--expose", "--allow-host", "lab.example")
    assert urlsplit(url).hostname == socket.gethostname().lower()
    token = parse_qs(urlsplit(url).query)["token"][0]
    assert ask(url)[0] == 401
    assert ask(url, "/?token=wrong")[0] == 401
    assert ask(url, Authorization="Bearer wrong")[0] == 401
    inside = {"Authorization": f"Bearer {token}"}
    wait_for(lambda: "round 3 of 3" in ask(url, **inside)[1])
    assert ask(url, f"/?token={token}")[0] == 303
    assert ask(url, Host="lab.example", **inside)[0] == 200
    assert ask(url, Host="evil.example", **inside)[0] == 421
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=20)
    assert server.returncode == 0
    assert "EXPOSED" in err
    assert "plain HTTP" in err
    assert token not in out + err


def test_a_token_of_the_environment_stays_there(finished, serving) -> None:
    secret = "known-to-those-who-need-it"
    server, url = serving(finished, AUTOFEDAVG_TOKEN=secret)
    assert ask(url)[0] == 401
    assert ask(url, Authorization=f"Bearer {secret}")[0] == 200
    server.send_signal(signal.SIGTERM)
    assert secret not in url + "".join(server.communicate(timeout=20))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_even_while_it_begins(finished, serving, number) -> None:
    server, _ = serving(finished)
    server.send_signal(number)
    out, err = server.communicate(timeout=30)
    assert (server.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_the_address_is_there_before_the_heavy_imports(finished, serving) -> None:
    begun = time.monotonic()
    _, url = serving(finished)
    assert ask(url)[0] == 200
    assert time.monotonic() - begun < 5


def test_usage_errors(say, finished, tmp_path, serving) -> None:
    code, _, err = say("serve", finished, "--host", "0.0.0.0")
    assert code == 2
    assert "--host: 0.0.0.0 can be reached from other machines; keep to 127.0.0.1" in err
    code, _, err = say("serve", finished, "--expose")
    assert code == 2
    assert "name an address with --host" in err
    _, url = serving(finished)
    code, _, err = say("serve", finished, "--port", urlsplit(url).port)
    assert code == 2
    assert "already in use; choose another with --port, or any free one with --port 0" in err
    code, _, err = say("serve", finished / "study.json")
    assert code == 2
    assert "this is a file; name a run folder" in err
    assert say("serve", finished, "--port", 70000)[0] == 2
    assert say("serve", finished, "--every", 0)[0] == 2
    assert say("serve")[0] == 2
