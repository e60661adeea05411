"""Who may see a served page: names, addresses, tokens."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import ConfigError
from autofedavg.monitor.listening import host_names, listen
from autofedavg.monitor.serve.access_check import Access, token_for

ACCESS = Access(host_names(["Lab.Example"]), "a token of some length")


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8765", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "lab.example",
     "10.1.2.3:80"],
)  # fmt: skip
def test_expected_names_are_known_with_any_port(host) -> None:
    assert ACCESS.knows(host, "10.1.2.3")


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8765", "localhost.evil.example", "localhost:", "localhost:x",
     "localhost:8765:1", "a@localhost", "localhost/", " localhost", "localhost ", "10.1.2.4",
     "127.0.0.1.", "127.1", "[::1", "[]", "::1", "localhost:123456", "xn--evil", "[::2]"],
)  # fmt: skip
def test_all_other_names_are_foreign(host) -> None:
    assert not ACCESS.knows(host, "10.1.2.3")


def test_the_address_a_connection_came_to_is_a_name() -> None:
    assert ACCESS.knows("[fe80::1]:80", "fe80::1%eth0")
    assert ACCESS.knows("10.1.2.3", "::ffff:10.1.2.3")
    assert not ACCESS.knows("fe80::1", "fe80::1")


@given(st.text(max_size=300))
def test_no_text_breaks_the_gate(text) -> None:
    known = text.lower().split(":")[0] in ACCESS.names or text.lower().startswith("[::1]")
    assert ACCESS.knows(text, "not an address") <= known
    assert not ACCESS.admits(text, text)
    assert not ACCESS.opens(text)


def test_token_or_session_admit() -> None:
    assert ACCESS.admits("Bearer a token of some length", "")
    assert ACCESS.admits("bearer  a token of some length ", "")
    assert ACCESS.admits("", ACCESS.session)
    assert ACCESS.opens("a token of some length")


def test_nothing_else_admits() -> None:
    token, session = ACCESS.token, ACCESS.session
    for header in (
        f"Basic {token}",
        token,
        "Bearer",
        "Bearer ",
        f"Bearer {token}x",
        "Bearer \udc80",
    ):
        assert not ACCESS.admits(header, ""), header
    for cookie in ("", token, f"{session}x", session[:-1]):
        assert not ACCESS.admits("", cookie), cookie
    assert not ACCESS.admits(f"Bearer {session}", "")
    assert not ACCESS.opens("")


def test_without_a_token_all_enter_and_none_opens() -> None:
    access = Access(host_names([]))
    assert access.admits("", "")
    assert not access.opens("")


def test_secrets_are_not_printed() -> None:
    assert ACCESS.token not in repr(ACCESS)
    assert ACCESS.session not in repr(ACCESS)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.3.2.1"])
def test_loopback_needs_no_permission(host) -> None:
    listener, name, exposed = listen(host, 0, expose=False)
    with listener:
        assert (name, exposed) == (host, False)
        assert listener.getsockname()[0].startswith("127.")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "[2001:db8::1]"])
def test_other_addresses_need_one(host) -> None:
    with pytest.raises(ConfigError, match=r"reached from other machines; keep to 127\.0\.0\.1"):
        listen(host, 0, expose=False)


def test_an_exposed_server_goes_by_the_name_of_its_machine() -> None:
    listener, name, exposed = listen("0.0.0.0", 0, expose=True)
    with listener:
        assert (name, exposed) == (socket.gethostname().lower(), True)


def test_exposing_loopback_is_a_misunderstanding() -> None:
    with pytest.raises(ConfigError, match=r"--expose: 127\.0\.0\.1 cannot be reached"):
        listen("127.0.0.1", 0, expose=True)


@pytest.mark.parametrize("host", ["", "no such name", "x" * 300, "a..b", "\udc80"])
def test_what_is_no_address_is_told(host) -> None:
    with pytest.raises(ConfigError, match=r"--host: .* is not an address of this machine"):
        listen(host, 0, expose=True)


def test_names_as_requests_have_them() -> None:
    names = host_names(["Lab.Example", "2001:db8::2", "[2001:DB8::3]"])
    assert {"localhost", "lab.example", "[2001:db8::2]", "[2001:db8::3]"} <= names


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
