"""`autofedavg serve`: listens, then renders pages until it is stopped."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autofedavg.core.errors import ConfigError, RunError, missing_extra
from autofedavg.monitor.listening import host_names, listen
from autofedavg.monitor.serve.access_check import TOKEN, Access, token_for
from autofedavg.monitor.serve.renderer import Renderer, build_report

EXPOSED = (
    "EXPOSED: everybody who reaches this machine and has the token can read the report. It is "
    "plain HTTP: others on the network can read token and page. Safer: leave out --expose and "
    "use a tunnel, ssh -L {port}:127.0.0.1:{port} {machine}"
)
Print = Callable[[str], None]


def serve(
    paths: Sequence[Path],
    *,
    show: Print,
    warn: Print,
    host: str = "127.0.0.1",
    port: int = 8765,
    expose: bool = False,
    allow_hosts: Sequence[str] = (),
    token: bool = False,
    baseline: str = "",
    every: float = 1.5,
    browse: bool = False,
    build: Callable[..., Any] = build_report,
    stop: threading.Event | None = None,
) -> None:
    """Shows the report of run folders in a browser until Ctrl-C, SIGTERM or `stop` ends it.

    `show` is called with the address as soon as it can be opened, `warn` with everything else worth
    a line, `build` to make the report. The other arguments are those of the command line.

    Raises:
        ConfigError: the address, the port or the token cannot be used.
        MissingExtra: a package of the extra `serve` is not installed.
    """
    for path in paths:
        if path.exists() and not path.is_dir():
            raise ConfigError("this is a file", where=str(path), remedy="name a run folder")
    stop, names = stop or threading.Event(), host_names(allow_hosts)
    listener, name, exposed = listen(host, port, expose)
    with listener, ExitStack() as stack:
        _end_by_signals(stop)
        secret, new = token_for(exposed or token)
        access = Access(names | host_names([name, host]), secret)
        renderer = Renderer(paths, partial(build, baseline=baseline), every, warn)
        server = _server(listener, access, renderer)
        # The main thread builds and is stopped by signals; this one answers.
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        stack.callback(thread.join, 3)
        stack.callback(setattr, server, "should_exit", True)
        port = listener.getsockname()[1]
        url = f"http://{name}:{port}/"
        inside = f"{url}?token={quote(secret, safe='')}" if secret else url
        show(inside if new else url)
        if secret and not new:
            warn(f"open {url}?token=... with the token of {TOKEN}")
        if exposed:
            warn(EXPOSED.format(port=port, machine=socket.gethostname()))
        warn("read-only; the page refreshes itself; Ctrl-C ends the server")
        if browse:
            private = stack.enter_context(tempfile.TemporaryDirectory(prefix="autofedavg-"))
            page = Path(private) / "open.html" if secret else None
            threading.Thread(target=_browse, args=(inside, page, warn), daemon=True).start()
        while not stop.wait(renderer.update()):
            if not thread.is_alive():
                raise RunError("the server has stopped by itself", remedy="start it again")


def _end_by_signals(stop: threading.Event) -> None:
    """Ends the process with code 0 on Ctrl-C and SIGTERM, also in the middle of a build."""

    def end(*_: object) -> None:
        stop.set()  # in the middle of an import, the exit may get lost
        raise SystemExit(0)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)


def _server(listener: socket.socket, access: Access, renderer: Renderer) -> Any:
    try:
        import uvicorn

        from autofedavg.monitor.serve.web_app import web_app
    except ImportError as error:
        raise missing_extra("serve", str(error.name)) from None
    app = web_app(access, f"autofedavg-{listener.getsockname()[1]}", lambda: renderer.current)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,  # it would hold the token
        proxy_headers=False,
        server_header=False,
        limit_concurrency=64,
        h11_max_incomplete_event_size=16_384,
        timeout_graceful_shutdown=1,
    )
    config.load()  # its imports; in the thread, one that a signal breaks off here could block them
    return uvicorn.Server(config)


def _browse(url: str, page: Path | None, warn: Print) -> None:
    """Opens a browser; an address with a token goes by a private page: all users see arguments."""
    if page:
        page.write_text(f'<meta http-equiv="refresh" content="0;url={escape(url)}">')
    if not webbrowser.open(page.as_uri() if page else url):
        warn("no browser could be opened: open the address yourself")
