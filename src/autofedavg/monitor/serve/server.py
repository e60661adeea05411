"""The page over HTTP: read only, from memory, one small table of names.

No path of the file system is ever formed from a request: what is not a name in the table is
not found.
"""

from __future__ import annotations

import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from autofedavg.monitor.serve.gate import Address, Gate
from autofedavg.monitor.serve.pages import note_page, passing_page
from autofedavg.monitor.serve.press import Edition

HEAD = 16_384  # bytes of a request, at most
ASKING, ANSWERING = 10.0, 60.0  # seconds a visitor has to ask, and to take the answer
VISITORS = 32  # connections at a time
HTML = "text/html; charset=utf-8"
KINDS = {
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".tex": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
# The page says itself what it may load; this is what only a header can say, or says again.
PAGE_POLICY = "base-uri 'none'; form-action 'none'; object-src 'none'; frame-ancestors 'none'"
FILE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Connection": "close",
}
SAID = {
    HTTPStatus.BAD_REQUEST: "This request cannot be understood.",
    HTTPStatus.UNAUTHORIZED: "Open the address that was printed when the server was started: it "
    "ends with the token.",
    HTTPStatus.NOT_FOUND: "There is nothing of this name here.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This server only shows: GET and HEAD.",
    HTTPStatus.MISDIRECTED_REQUEST: "This server does not go by that name. Who started it can "
    "add the name with --allow-host.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The request is too long.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "This could not be made. The server's log has the reason.",
}
log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """Listens, and answers from the newest edition.

    Args:
        address: where to listen.
        port: 0 for any that is free.
        gate: who may see the page.
        newest: the edition to show.

    Raises:
        OSError: the port cannot be had.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, address: Address, port: int, gate: Gate, newest: Callable[[], Edition]
    ) -> None:
        self.address_family = address.family
        self.gate, self.newest = gate, newest
        self._places = threading.BoundedSemaphore(VISITORS)
        super().__init__((address.address, port), Handler)

    @property
    def cookie(self) -> str:
        """The cookie's name: browsers share cookies between the ports of a machine."""
        return f"autofedavg-{self.server_port}"

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks the name service who we are, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(b"HTTP/1.1 503 Busy\r\nRetry-After: 5\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection broke off", exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """One request of one visitor; the connection ends with the answer."""

    server: Server
    protocol_version = "HTTP/1.1"
    # What `send_error` needs when not even the first line could be read.
    command, path, requestline, request_version = "", "", "", "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Patience(self.connection))

    def handle(self) -> None:
        try:
            super().handle()
        except LineTooLong:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if not self.server.gate.knows(hosts, self.connection.getsockname()[0]):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        path, _, query = self.path.partition("?")
        if self._enters(path, query):
            self._show(path)

    do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

    def _enters(self, path: str, query: str) -> bool:
        """Whether the visitor may see the page; if not, an answer has been sent."""
        gate = self.server.gate
        if gate.token is None:
            return True
        offered = _token(query)
        if offered is not None and gate.opens(offered):
            cookie = f"{self.server.cookie}={gate.session}; Path=/; HttpOnly; SameSite=Strict"
            clean = {"Location": _clean(path), "Set-Cookie": cookie}
            self._answer(HTTPStatus.SEE_OTHER, HTML, b"", clean)
            return False
        asked = self.headers.get_all
        if offered is None and gate.admits(
            asked("Authorization", []), asked("Cookie", []), self.server.cookie
        ):
            return True
        if self.headers.get("Sec-Fetch-Site") == "cross-site" and offered is None:
            # A link on another site leads here: its click never carries the cookie.
            self._answer(HTTPStatus.OK, HTML, passing_page())
        else:
            self.send_error(HTTPStatus.UNAUTHORIZED)
        return False

    def _show(self, path: str) -> None:
        edition = self.server.newest()
        name = unquote(path, errors="replace").removeprefix("/")
        if path == "/":
            self._answer(HTTPStatus.OK, HTML, edition.page, {"ETag": f'"{edition.version}"'})
        elif path == "/version":
            self._answer(HTTPStatus.OK, KINDS[".json"], json.dumps(edition.facts()).encode())
        elif path.startswith("/") and name in edition.files:
            self._show_file(name, edition.files[name])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _show_file(self, name: str, make: Callable[[], bytes]) -> None:
        try:
            content = make()
        # It is a visitor's request that fails, whatever the reason; the server goes on.
        except Exception:
            log.warning("%s could not be made", name, exc_info=True)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        kind = KINDS.get(PurePosixPath(name).suffix)
        extra = {} if kind else {"Content-Disposition": "attachment"}
        self._answer(HTTPStatus.OK, kind or "application/octet-stream", content, extra)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A small page. What http.server would say of the request is left out: it may be secret."""
        status = HTTPStatus(code)
        extra: dict[str, str] = {}
        if status == HTTPStatus.NOT_IMPLEMENTED:  # a method that has no function here
            status = HTTPStatus.METHOD_NOT_ALLOWED
            extra["Allow"] = "GET, HEAD"
        if status == HTTPStatus.UNAUTHORIZED:
            extra["WWW-Authenticate"] = 'Bearer realm="autofedavg"'
        text = SAID.get(status, SAID[HTTPStatus.BAD_REQUEST])
        self._answer(status, HTML, note_page(f"{status.value} {status.phrase}", text), extra)

    def _answer(
        self, status: HTTPStatus, kind: str, content: bytes, extra: Mapping[str, str] | None = None
    ) -> None:
        self.close_connection = True
        self.connection.settimeout(ANSWERING)
        headers = {
            "Date": self.date_time_string(),
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": PAGE_POLICY if kind == HTML else FILE_POLICY,
            **ALWAYS,
            **(extra or {}),
        }
        log.debug("%s %.200r: %d", self.command, self.path.partition("?")[0], status)
        if self.request_version != "HTTP/0.9":
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: what http.server would log has the whole request in it, token and all."""


class _Patience(io.RawIOBase):
    """Reads a request that is neither too long nor too slow in coming."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._room = connection, HEAD
        self._until = time.monotonic() + ASKING

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not come in time")
        if self._room <= 0:
            raise LineTooLong("request")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        self._room -= count
        return count


def _token(query: str) -> str | None:
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=8).get("token", [])
    except ValueError:
        return None
    return found[0] if len(found) == 1 else None


def _clean(path: str) -> str:
    """The path again, in a spelling that cannot lead to another server."""
    return "/" + quote(unquote(path, errors="replace").strip("/\\"))
