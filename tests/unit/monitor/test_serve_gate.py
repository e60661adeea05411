"""Who may see a served page: names, addresses, tokens."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import ConfigError
from autofedavg.monitor.serve.gate import Gate, address_of, token_for

GATE = Gate(frozenset({"localhost", "127.0.0.1", "[::1]", "lab.example"}), "a token of some length")


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8765", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "lab.example",
     "10.1.2.3:80"],
)  # fmt: skip
def test_expected_names_are_known_with_any_port(host) -> None:
    assert GATE.knows([host], "10.1.2.3")


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8765", "localhost.evil.example", "localhost:", "localhost:x",
     "localhost:8765:1", "a@localhost", "localhost/", " localhost", "localhost ", "10.1.2.4",
     "127.0.0.1.", "127.1", "[::1", "[]", "::1", "localhost:123456", "xn--evil", "[::2]"],
)  # fmt: skip
def test_all_other_names_are_foreign(host) -> None:
    assert not GATE.knows([host], "10.1.2.3")


def test_one_name_is_needed_and_no_more() -> None:
    assert not GATE.knows([], "127.0.0.1")
    assert not GATE.knows(["localhost", "localhost"], "127.0.0.1")


def test_the_address_a_connection_came_to_is_a_name() -> None:
    assert GATE.knows(["[fe80::1]:80"], "fe80::1%eth0")
    assert GATE.knows(["10.1.2.3"], "::ffff:10.1.2.3")
    assert not GATE.knows(["fe80::1"], "fe80::1")


@given(st.text(max_size=300))
def test_no_text_breaks_the_gate(text) -> None:
    known = text.lower().split(":")[0] in GATE.names or text.lower().startswith("[::1]")
    assert GATE.knows([text], "not an address") <= known
    assert not GATE.admits([text], [text], "cookie")
    assert not GATE.opens(text)


def test_token_or_session_admit() -> None:
    assert GATE.admits(["Bearer a token of some length"], [], "c")
    assert GATE.admits(["bearer  a token of some length "], [], "c")
    assert GATE.admits([], [f"x=1; c={GATE.session}; y"], "c")
    assert GATE.admits([], ["x=1", f"c={GATE.session}"], "c")
    assert GATE.opens("a token of some length")


def test_nothing_else_admits() -> None:
    token, session = GATE.token, GATE.session
    for header in (
        f"Basic {token}",
        token,
        "Bearer",
        "Bearer ",
        f"Bearer {token}x",
        "Bearer \udc80",
    ):
        assert not GATE.admits([header], [], "c"), header
    for cookie in (f"d={session}", "c=", f"c={token}", f"c={session}x", session, "c"):
        assert not GATE.admits([], [cookie], "c"), cookie
    assert not GATE.admits([f"Bearer {session}"], [], "c")
    assert not GATE.opens("")


def test_without_a_token_all_enter_and_none_opens() -> None:
    gate = Gate(frozenset({"localhost"}))
    assert gate.admits([], [], "c")
    assert not gate.opens("")


def test_secrets_are_not_printed() -> None:
    assert GATE.token not in repr(GATE)
    assert GATE.session not in repr(GATE)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.3.2.1"])
def test_loopback_needs_no_permission(host) -> None:
    address = address_of(host, expose=False)
    assert not address.exposed
    assert address.url(80) == f"http://{host}:80/"
    assert host in address.names()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "[2001:db8::1]"])
def test_other_addresses_need_one(host) -> None:
    with pytest.raises(ConfigError, match=r"reached from other machines; keep to 127\.0\.0\.1"):
        address_of(host, expose=False)
    assert address_of(host, expose=True).exposed


def test_exposing_loopback_is_a_misunderstanding() -> None:
    with pytest.raises(ConfigError, match=r"--expose: 127\.0\.0\.1 cannot be reached"):
        address_of("127.0.0.1", expose=True)


@pytest.mark.parametrize("host", ["", "no such name", "x" * 300, "a..b", "\udc80"])
def test_what_is_no_address_is_told(host) -> None:
    with pytest.raises(ConfigError, match=r"--host: .* is no address of this machine"):
        address_of(host, expose=True)


def test_names_of_an_exposed_server() -> None:
    everywhere = address_of("0.0.0.0", expose=True)
    names = everywhere.names(["Lab.Example", "2001:db8::2"])
    assert {"localhost", "lab.example", "[2001:db8::2]", socket.gethostname().lower()} <= names
    assert everywhere.url(81) == f"http://{socket.gethostname()}:81/"
    one = address_of("2001:db8::1", expose=True)
    assert "[2001:db8::1]" in one.names()
    assert socket.gethostname().lower() not in one.names() - {"localhost"}
    assert one.url(81) == "http://[2001:db8::1]:81/"


def test_a_token_is_made_where_one_is_needed(monkeypatch) -> None:
    monkeypatch.delenv("AUTOFEDAVG_TOKEN", raising=False)
    assert token_for(needed=False) == (None, False)
    token, made = token_for(needed=True)
    assert made
    assert len(token) >= 43
    assert token != token_for(needed=True)[0]


def test_a_token_of_the_environment_is_always_asked_for(monkeypatch) -> None:
    monkeypatch.setenv("AUTOFEDAVG_TOKEN", "sixteen-letters!")
    assert token_for(needed=False) == ("sixteen-letters!", False)


@pytest.mark.parametrize("token", ["fifteen-letters", "with a space in it", "schlüssel-schlüssel"])
def test_a_poor_token_is_refused_and_not_repeated(monkeypatch, token) -> None:
    monkeypatch.setenv("AUTOFEDAVG_TOKEN", token)
    with pytest.raises(ConfigError, match="AUTOFEDAVG_TOKEN: the token needs 16 or more") as told:
        token_for(needed=True)
    assert token not in str(told.value)
