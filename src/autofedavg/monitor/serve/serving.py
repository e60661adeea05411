"""`autofedavg serve`: listens, then makes pages until it is stopped."""

from __future__ import annotations

import errno
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from autofedavg.core.errors import ConfigError, RunError
from autofedavg.monitor.serve.gate import TOKEN, Address, Gate, address_of, token_for
from autofedavg.monitor.serve.press import Build, Press, build_late
from autofedavg.monitor.serve.server import Server

Say = Callable[[str], None]


@dataclass(frozen=True)
class Door:
    """Where and to whom the page is shown.

    Attributes:
        host: address or name to listen on.
        port: 0 for any that is free.
        expose: whether an address that other machines reach is meant.
        allow_hosts: further names the page may be asked for by.
        token: ask for a token on this machine, too.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    expose: bool = False
    allow_hosts: tuple[str, ...] = ()
    token: bool = False


def serve(
    paths: Sequence[Path],
    door: Door,
    *,
    tell: Say,
    say: Say,
    baseline: str = "",
    every: float = 1.5,
    browse: bool = False,
    build: Build = build_late,
    stop: threading.Event | None = None,
) -> None:
    """Shows the report of run folders in a browser until it is stopped.

    Args:
        paths: run folders, or folders above them; they need not exist yet.
        door: where, and to whom.
        tell: is given the address, as soon as it can be opened.
        say: is given all else.
        baseline: row to test against; the study's when empty.
        every: seconds between two looks at the folders.
        browse: whether to open a browser.
        build: makes the report.
        stop: ends it when set; Ctrl-C does, too.

    Raises:
        ConfigError: the address, the port or the token cannot be used.
    """
    for path in paths:
        if path.exists() and not path.is_dir():
            raise ConfigError("this is a file", where=str(path), remedy="name a run folder")
    stop = stop or threading.Event()
    address = address_of(door.host, door.expose)
    token, made = token_for(address.exposed or door.token)
    gate = Gate(address.names(door.allow_hosts), token)
    press = Press([path.absolute() for path in paths], build, baseline, every, say)
    with (
        _stopped_by_signals() as stopped,
        _listening(address, door.port, gate, press) as (server, thread),
        ExitStack() as more,
    ):
        url = address.url(server.server_port)
        inside = f"{url}?token={quote(token, safe='')}" if token else url
        tell(inside if made else url)
        _explain(url, address.exposed, bool(token and not made), say)
        if browse:
            more.enter_context(_browsing(inside, bool(token), say))
        rest = press.look()
        while not (stopped() or stop.wait(rest)):
            if not thread.is_alive():
                raise RunError("the server has ended by itself", remedy="start it again")
            rest = press.look()


class _Stop(BaseException):
    """Ctrl-C or SIGTERM.

    Not KeyboardInterrupt: one that passes through `exec`, which dataclasses use when they are
    imported, makes Python end by SIGINT whatever is done about it later.
    """


@contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """Ends the block on Ctrl-C and SIGTERM, which is how a server is meant to end.

    An interrupt that comes at an odd moment, as in the middle of an import, may be turned into
    another error and get lost; so it is remembered, too.
    """
    came = []

    def interrupt(_number: int, _frame: object) -> None:
        came.append(True)
        raise _Stop

    watched = (signal.SIGINT, signal.SIGTERM)
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, interrupt) for number in watched} if main else {}
    try:
        yield lambda: bool(came)
    except _Stop:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listening(
    address: Address, port: int, gate: Gate, press: Press
) -> Iterator[tuple[Server, threading.Thread]]:
    try:
        server = Server(address, port, gate, lambda: press.current)
    except OSError as error:
        raise _cannot_listen(address, port, error) from None
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield server, thread
        finally:
            server.shutdown()
            thread.join()


def _cannot_listen(address: Address, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        remedy = "choose another with --port, or any free one with --port 0"
        return ConfigError(f"port {port} is in use", where="--port", remedy=remedy)
    if error.errno == errno.EACCES:
        remedy = "choose one above 1023"
        return ConfigError(f"port {port} is not yours to use", where="--port", remedy=remedy)
    return ConfigError(
        f"cannot listen on {address.host} ({error.strerror})",
        where="--host",
        remedy="name an address of this machine, or leave it out for 127.0.0.1",
    )


def _explain(url: str, exposed: bool, given: bool, say: Say) -> None:
    if given:
        say(f"open {url}?token=... with the token of {TOKEN}")
    if exposed:
        port = url.rstrip("/").rpartition(":")[2]
        say(
            "EXPOSED: whoever reaches this machine and has the token can read the report. It is "
            "plain HTTP: on the way, token and page can be read. Safer: leave out --expose and use"
            f" a tunnel, ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"
        )
    say("read-only; refreshes itself as rounds arrive; Ctrl-C ends it")


@contextmanager
def _browsing(url: str, secret: bool, say: Say) -> Iterator[None]:
    """Opens a browser; a token goes by a private file, since all users see arguments."""

    def go(target: str) -> None:
        if not webbrowser.open(target):
            say("no browser could be opened: open the address yourself")

    with tempfile.TemporaryDirectory(prefix="autofedavg-") as folder:
        if secret:
            page = Path(folder) / "open.html"
            page.write_text(
                '<!doctype html><meta charset="utf-8"><title>autofedavg</title>'
                f'<meta http-equiv="refresh" content="0;url={escape(url)}">'
            )
            url = page.as_uri()
        threading.Thread(target=go, args=(url,), daemon=True).start()
        yield
