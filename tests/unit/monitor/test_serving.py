"""The server over real sockets: what it shows, to whom, and how it ends."""

import http.client
import logging
import re
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import ConfigError, MissingExtra
from autofedavg.monitor import listening
from autofedavg.monitor.serve import serving
from autofedavg.monitor.serve.serving import serve

SECRET = "a-token-that-nobody-guesses"
FILES = {
    "tables/scores.csv": lambda: b"row,avg\n",
    "figures/alpha.svg": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "figures/alpha.pdf": lambda: b"%PDF",
    "cases/S\u00e3o Paulo.csv": lambda: b"case\n",
    "broken.txt": lambda: 1 / 0,
}


@dataclass
class Plain:
    examples: object = None
    problem: str | None = None
    files: dict = field(default_factory=lambda: FILES)

    def page(self, script=""):
        return f"<main id=report>the page</main><script>{script}</script>"


@contextmanager
def served(runs: Path, **how):
    """A server in a thread: its address, and its warnings."""
    stop, ready, shown, said = threading.Event(), threading.Event(), [], []
    build = how.pop("build", lambda paths, **_: Plain())

    def show(text):
        shown.append(text)
        ready.set()

    how = {"port": 0, **how}
    thread = threading.Thread(
        target=lambda: serve([runs], show=show, warn=said.append, build=build, stop=stop, **how)
    )
    thread.start()
    try:
        assert ready.wait(10)
        yield shown[0], said
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    run = home / "fedavg" / "seed-0"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("")
    (run / "status.json").write_text('{"state": "running"}')
    (home / "secret.txt").write_text("not to be seen")
    return home


@pytest.fixture(scope="module")
def url(runs):
    with served(runs) as (url, _):
        wait_for_page(url)
        yield url


@pytest.fixture(autouse=True, scope="module")
def _no_token_in_the_environment():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AUTOFEDAVG_TOKEN", raising=False)
        yield


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(url: str, path: str = "/", method: str = "GET", **headers) -> Answer:
    """A request whose path is sent as it is."""
    port = urlsplit(url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        with connection.getresponse() as response:
            return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def say_raw(url: str, said: bytes) -> bytes:
    """Sends bytes and reads until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=15) as plug:
        heard = b""
        try:
            plug.sendall(said)
            while part := plug.recv(65536):
                heard += part
        except ConnectionError:
            pass
        return heard


def wait_for_page(url: str, **headers) -> None:
    until = time.monotonic() + 10
    while b"the page" not in ask(url, **headers).body:
        assert time.monotonic() < until
        time.sleep(0.02)


# --- what is shown ------------------------------------------------------------------------------


def test_page_version_and_files(url) -> None:
    page = ask(url)
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    version = ask(url, "/version")
    assert re.fullmatch(
        rb'{"version":"[0-9a-f]{8}-2","state":"running","built":"[0-9T:+-]{25}","problem":null}',
        version.body,
    )
    assert version.headers["Content-Type"] == "application/json"
    assert page.headers["ETag"].strip('"').encode() in version.body
    table = ask(url, "/tables/scores.csv")
    assert (table.status, table.body) == (200, b"row,avg\n")
    assert table.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert ask(url, "/figures/alpha.svg").headers["Content-Type"] == "image/svg+xml"
    pdf = ask(url, "/figures/alpha.pdf")
    assert pdf.headers["Content-Type"] == "application/pdf"
    assert pdf.headers["Content-Disposition"] == "attachment"
    assert ask(url, "/cases/S%C3%A3o%20Paulo.csv").body == b"case\n"
    assert ask(url, "/tables/scores.csv?x=1").status == 200


@pytest.mark.parametrize("path", ["/", "/version", "/tables/scores.csv", "/nothing", "/broken.txt"])
def test_every_answer_is_guarded(url, path) -> None:
    headers = ask(url, path).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Server"] is None
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert headers["Set-Cookie"] is None


def test_an_svg_cannot_run_scripts(url) -> None:
    policy = ask(url, "/figures/alpha.svg").headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    assert policy.endswith("sandbox")


def test_head_has_the_headers_and_no_body(url) -> None:
    for path in ("/", "/version", "/tables/scores.csv", "/nothing"):
        head, get = ask(url, path, "HEAD"), ask(url, path)
        assert head.status == get.status
        assert head.body == b""
        assert head.headers["Content-Length"] == str(len(get.body))


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "ODD"]
)
def test_it_is_read_only(url, method) -> None:
    answer = ask(url, "/", method)
    assert answer.status == 405
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize(
    "path",
    [
        "/..", "/../", "/../../etc/passwd", "/tables/../secret.txt", "/tables/../tables/scores.csv",
        "/%2e%2e/secret.txt", "/%2e%2e%2fsecret.txt", "/..%2fsecret.txt", "/%252e%252e/secret.txt",
        "/tables%5c..%5csecret.txt", "/tables/..\\secret.txt", "/secret.txt", "/./version",
        "//etc/passwd", "//tables//scores.csv", "/etc/passwd", "//evil.example/", "/tables",
        "/tables/", "/tables/scores.csv/", "/tables/scores.csv%00", "/tables/scores.csv%00.svg",
        "/%00", "/%ff%fe", "/Tables/Scores.csv", "/version/", "/version%20", "/index.html",
        "file:///etc/passwd", "http://evil.example/", "*", "tables/scores.csv", "secret.txt",
        "/fedavg/seed-0/config.toml", "/live/refresh.js",
    ],
)  # fmt: skip
def test_what_is_not_in_the_table_is_not_found(url, path) -> None:
    answer = ask(url, path, Host="localhost")
    assert answer.status == 404
    assert b"Nothing of this name exists here" in answer.body
    assert b"not to be seen" not in answer.body


@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=80))
def test_any_path_is_one_of_the_names_or_not_found(url, path) -> None:
    said = f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    heard = say_raw(url, said.encode("latin-1"))
    known = {"", "version", *FILES}
    allowed = (b"200", b"500") if path.lstrip("/").partition("?")[0] in known else (b"404", b"400")
    assert heard.split(b" ")[1] in allowed


def test_a_file_that_cannot_be_made_is_told_and_the_rest_goes_on(url, caplog) -> None:
    answer = ask(url, "/broken.txt")
    assert answer.status == 500
    assert b"ZeroDivisionError" not in answer.body
    assert "broken.txt could not be made" in caplog.text
    assert ask(url).status == 200


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000,
    ],
    ids=["short", "tls", "no host", "old", "two hosts", "empty host", "long"],
)  # fmt: skip
def test_what_is_no_request_shows_nothing(url, said) -> None:
    heard = say_raw(url, said)
    assert b"the page" not in heard
    assert b"200" not in heard.split(b"\r\n")[0]
    assert ask(url).status == 200


# --- to whom it is shown ------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8765"])
def test_loopback_names_are_served(url, host) -> None:
    assert ask(url, Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("path", ["/", "/version", "/tables/scores.csv", "/nothing"])
def test_foreign_names_are_refused(url, host, path) -> None:
    answer = ask(url, path, Host=host)
    assert answer.status == 421
    assert b"--allow-host" in answer.body


def test_a_further_name_can_be_allowed(runs) -> None:
    with served(runs, allow_hosts=["lab.example"]) as (url, _):
        assert ask(url, Host="lab.example").status == 200
        assert ask(url, Host="evil.example").status == 421


@pytest.fixture(params=["on this machine", "exposed"], scope="module")
def guarded(request, runs):
    """A server with a token: its address without, and the token."""
    exposed = {"host": "0.0.0.0", "expose": True}
    with served(runs, **exposed if request.param == "exposed" else {"token": True}) as (url, said):
        token = parse_qs(urlsplit(url).query)["token"][0]
        wait_for_page(url, Authorization=f"Bearer {token}")
        yield url, token, said


def test_without_the_token_nothing_is_shown(guarded) -> None:
    url, token, _ = guarded
    for path in ("/", "/version", "/tables/scores.csv", "/nothing"):
        for headers in (
            {}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"},
            {"Cookie": f"autofedavg-{urlsplit(url).port}=wrong"}, {"Cookie": f"token={token}"},
        ):  # fmt: skip
            answer = ask(url, path, **headers)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="autofedavg"'
            assert answer.headers["Set-Cookie"] is None
            assert b"the page" not in answer.body
    for query in ("token=", "token=wrong", f"token={token}x", f"token={token}&token={token}",
                  f"Token={token}", "&".join("abcdefghijk")):  # fmt: skip
        assert ask(url, f"/?{query}").status == 401


def test_the_name_is_checked_with_the_token_too(guarded) -> None:
    url, token, _ = guarded
    assert ask(url, f"/?token={token}", Host="evil.example").status == 421


def test_the_token_is_exchanged_for_a_cookie(guarded) -> None:
    url, token, _ = guarded
    answer = ask(url, f"/?token={token}")
    assert answer.status == 303
    assert answer.headers["Location"] == "/"
    cookie, *rest = answer.headers["Set-Cookie"].split("; ")
    assert set(rest) == {"Path=/", "HttpOnly", "SameSite=strict"}
    assert token not in answer.headers["Set-Cookie"]
    assert ask(url, Cookie=cookie).status == 200
    assert ask(url, "/tables/scores.csv", Cookie=f"other=1; {cookie}").status == 200
    assert ask(url, Authorization=f"Bearer {token}").status == 200
    deep = ask(url, f"/tables/scores.csv?token={token}")
    assert deep.headers["Location"] == "/tables/scores.csv"


@pytest.mark.parametrize(
    "path", ["//evil.example", "/%2f/evil.example", "/\\evil.example", "/%5cevil.example"]
)
def test_no_redirect_leads_away(guarded, path) -> None:
    url, token, _ = guarded
    location = ask(url, f"{path}?token={token}").headers["Location"]
    assert re.match(r"/(?![/\\])", location)


def test_a_click_on_another_site_is_asked_to_come_again(guarded) -> None:
    url, *_ = guarded
    answer = ask(url, Sec_Fetch_Site="cross-site")
    assert answer.status == 200
    assert b"the page" not in answer.body
    assert b'http-equiv="refresh" content="0"' in answer.body
    assert ask(url, "/?token=wrong", Sec_Fetch_Site="cross-site").status == 401
    assert ask(url, Sec_Fetch_Site="same-origin").status == 401


def test_the_token_of_the_environment_is_not_printed(runs, monkeypatch) -> None:
    monkeypatch.setenv("AUTOFEDAVG_TOKEN", SECRET)
    with served(runs) as (url, said):
        assert ask(url).status == 401
        assert ask(url, Authorization=f"Bearer {SECRET}").status == 200
        assert ask(url, f"/?token={SECRET}").status == 303
    assert SECRET not in url + "".join(said)
    assert "with the token of AUTOFEDAVG_TOKEN" in said[0]


def test_nothing_logs_the_token(guarded, caplog) -> None:
    url, token, _ = guarded
    caplog.set_level(logging.DEBUG)
    ask(url, f"/?token={token}")
    ask(url, f"/nothing?token={token}", "ODD")
    say_raw(url, f"GET /?token={token} HTTP/1.1 {token}\r\n\r\n".encode())
    assert token not in caplog.text


def test_exposing_is_said_aloud(runs) -> None:
    with served(runs, host="0.0.0.0", expose=True) as (url, said):
        pass
    assert "plain HTTP" in said[0]
    assert f"ssh -L {urlsplit(url).port}:127.0.0.1:{urlsplit(url).port} " in said[0]


# --- starting and ending ------------------------------------------------------------------------


def test_a_port_in_use_is_told(url, runs) -> None:
    port = urlsplit(url).port
    with pytest.raises(ConfigError, match=f"port {port} of .* already in use; choose another with"):
        serve([runs], port=port, show=print, warn=print)


@pytest.mark.parametrize("name", ["http://lab.example", "lab.example:80", "10.0.0.1:80", "a b", ""])
def test_a_name_that_could_never_match_is_told(runs, name) -> None:
    with pytest.raises(ConfigError, match=r"--allow-host: .* is not a host name; name it without"):
        serve([runs], port=0, allow_hosts=[name], show=print, warn=print)


def test_an_address_of_another_machine_is_told(runs) -> None:
    with pytest.raises(ConfigError, match=r"port 8765 of 192\.0\.2\.1: .*name an address of"):
        serve([runs], host="192.0.2.1", expose=True, show=print, warn=print)


def test_a_port_of_the_system_is_told(runs, monkeypatch) -> None:
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(listening.socket, "create_server", refuse)
    with pytest.raises(ConfigError, match=r"--port: .* port 80 of 127\.0\.0\.1: permission denied"):
        serve([runs], port=80, show=print, warn=print)


def test_a_file_is_no_run_folder(runs) -> None:
    with pytest.raises(ConfigError, match=r"secret\.txt: this is a file; name a run folder"):
        serve([runs / "secret.txt"], port=0, show=print, warn=print)


def test_without_the_extra_the_error_names_it(runs, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"uvicorn .*pip install 'autofedavg\[serve\]'"):
        serve([runs], port=0, show=print, warn=print)


def test_the_port_is_free_again_afterwards(runs) -> None:
    with served(runs) as (url, _):
        ask(url)
    with served(runs, port=urlsplit(url).port) as (again, _):
        assert again == url


def test_over_the_other_protocol(runs) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with served(runs, host="::1") as (url, _):
        connection = http.client.HTTPConnection("::1", urlsplit(url).port, timeout=10)
        connection.request("GET", "/version")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("token", [False, True])
def test_a_browser_is_opened_and_the_token_is_no_argument(runs, monkeypatch, token) -> None:
    opened = []

    def browse(target):
        page = Path(target.removeprefix("file://"))
        seen = (page.read_text(), page.parent.stat().st_mode) if token else ("", 0)
        opened.append((target, *seen))
        return False

    monkeypatch.setattr(serving.webbrowser, "open", browse)
    with served(runs, token=token, browse=True) as (url, said):
        until = time.monotonic() + 5
        while not any("no browser" in text for text in said):
            assert time.monotonic() < until
            time.sleep(0.02)
    target, content, mode = opened[0]
    if token:
        assert url.partition("token=")[2] not in target
        assert f"url={url}" in content
        assert mode & 0o077 == 0
        assert not Path(target.removeprefix("file://")).exists(), "it is gone afterwards"
    else:
        assert target == url
