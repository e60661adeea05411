"""What the log says while sites join."""

import logging
import time

import pytest

from autofedavg.engines.remote import joining
from autofedavg.engines.remote.joining import Attendance


class Transport:
    """An engine whose word on who is connected a test gives."""

    def __init__(self, *here):
        self.here = list(here)

    def present(self):
        return self.here.pop(0) if len(self.here) > 1 else self.here[0]


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.message for record in caplog.records]


def test_a_site_that_had_joined_and_is_gone_is_named_and_so_is_its_return(said):
    here = Attendance(Transport({"I"}, {"I", "II"}, {"I"}, {"I"}, {"I", "II"}), ["I", "II", "III"])
    here.look()
    here.look()
    assert said() == ["waiting for I, II, III"]  # III, which never came, is not gone
    here.look()
    here.look()
    assert here.left == {"II"}
    assert said()[1:] == ["site II joined, then disconnected"]  # once
    here.look()
    assert here.left == set()
    assert said()[2:] == ["site II is back"]


def test_who_is_waited_for_is_said_again_when_it_changes_and_after_a_while(said, monkeypatch):
    here = Attendance(Transport(None), ["I", "II"])  # an engine that cannot tell
    here.look()
    del here.missing["I"]
    here.look()
    assert said() == ["waiting for I, II", "waiting for II"]
    here.missing["II"] = "is not in\x1b this job"
    here.look()
    assert said()[2:] == ["waiting for II (is not in\N{REPLACEMENT CHARACTER} this job)"]
    monkeypatch.setattr(joining, "LOG_EVERY", 0.0)
    here.look()
    assert said()[3:] == said()[2:3]
    del here.missing["II"]
    here.look()
    assert len(said()) == 4


def test_it_looks_while_somebody_waits_and_no_longer(said, monkeypatch):
    monkeypatch.setattr(joining, "LOOK_EVERY", 0.01)
    with Attendance(Transport({"I"}, set()), ["I"]) as here:
        until = time.monotonic() + 20
        while not here.left and time.monotonic() < until:
            time.sleep(0.01)
    assert said()[-1] == "site I joined, then disconnected"
    assert not here._thread.is_alive()
