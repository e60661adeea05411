"""How many clients fit on a GPU."""

from itertools import islice

import pytest

from autofedavg.engines.simulator.room import ALONE, MOST, Room

GB = 10**9


class Pretended:
    """A GPU whose first client takes some memory when its step is recorded."""

    def __init__(self, takes: int, free: int) -> None:
        self.states, self._free = iter([5 * GB, 5 * GB + takes]), free

    def held(self) -> int:
        return next(self.states)

    def free(self) -> int:
        return self._free


@pytest.mark.parametrize(
    ("takes", "free", "clients", "fit"),
    [
        (2 * GB, 100 * GB, 4, 4),
        (2 * GB, 1000 * GB, 40, MOST),
        (2 * GB, 19 * GB, 4, 3),
        (2 * GB, 8 * GB, 4, 1),
        (2 * GB, 0, 4, 1),
        (-GB, 13 * GB, 8, 5),
    ],
)
def test_a_further_client_gets_room_for_three_recordings(takes, free, clients, fit, caplog) -> None:
    room = Room(clients, GB, Pretended(takes, free))
    with caplog.at_level("INFO", logger="autofedavg"):
        found = [room() for _ in range(ALONE + 3)]
    assert found == [1] * ALONE + [fit] * 3
    (line,) = caplog.messages
    assert line.startswith(f"{fit} of {clients} clients take their steps side by side")


def test_nothing_is_said_before_it_is_known(caplog) -> None:
    room = Room(4, GB, Pretended(GB, GB))
    with caplog.at_level("INFO", logger="autofedavg"):
        assert list(islice(iter(room, None), ALONE)) == [1] * ALONE
    assert not caplog.messages
