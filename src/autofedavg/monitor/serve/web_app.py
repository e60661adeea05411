"""The report over HTTP: read-only, from memory; no path is ever formed from a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from autofedavg.monitor.serve.access_check import Access
from autofedavg.monitor.serve.renderer import Rendering, small_page

HEADERS = {
    # A page says itself what it may load; this is what only a header can say.
    "Content-Security-Policy": "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
SHOWN = ("text/", "image/", "application/json")  # by a browser; other files are downloads
ERRORS = {
    401: "Open the address that the server printed at its start: it ends with the token.",
    404: "Nothing of this name exists here.",
    405: "This server is read-only: use GET or HEAD.",
    421: "This server does not answer to that host name. Restart it with --allow-host to add it.",
    500: "This file could not be made. The server's log has the reason.",
}
log = logging.getLogger(__name__)


def web_app(access: Access, cookie: str, newest: Callable[[], Rendering]) -> Starlette:
    """The application; `cookie` is the session's name, as browsers share cookies between ports."""

    async def guard(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = _refusal(request, access, cookie) or await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def answer(request: Request) -> Response:
        shown, name = newest(), request.path_params["name"]
        if not name:
            return HTMLResponse(shown.page, headers={"ETag": f'"{shown.version}"'})
        if name == "version":
            return JSONResponse(shown.facts())
        if name not in shown.files:
            raise HTTPException(404)
        try:
            content = shown.files[name]()
        except Exception:  # one file must not take the server down, whatever the reason
            log.warning("%s could not be made", name, exc_info=True)
            raise HTTPException(500) from None
        kind = guess_type(name)[0] or "application/octet-stream"
        kept = {} if kind.startswith(SHOWN) else {"Content-Disposition": "attachment"}
        return Response(content, 200, {"Content-Security-Policy": FILE_POLICY, **kept}, kind)

    return Starlette(
        routes=[Route("/{name:path}", answer)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={HTTPException: lambda _, error: _error(error)},
    )


def _refusal(request: Request, access: Access, cookie: str) -> Response | None:
    """The answer to a request that may not see the report; None lets it pass."""
    here, _ = request.scope.get("server") or ("", None)
    if not access.knows(request.headers.get("host", ""), str(here)):
        return _error(HTTPException(421))
    offered = request.query_params.getlist("token") if access.token else []
    if len(offered) == 1 and access.opens(offered[0]):
        # Without slashes at its start, the path cannot lead to another server.
        response = RedirectResponse("/" + quote(request.scope["path"].strip("/\\")), 303)
        response.set_cookie(cookie, access.session, httponly=True, samesite="strict")
        return response
    authorization = request.headers.get("authorization", "")
    if not offered and access.admits(authorization, request.cookies.get(cookie, "")):
        return None
    if not offered and request.headers.get("sec-fetch-site") == "cross-site":
        # A click on another site carries no strict cookie; a page that reloads itself does.
        again = '<meta http-equiv="refresh" content="0">'
        return HTMLResponse(small_page("One moment", "The page opens.", head=again))
    return _error(HTTPException(401, headers={"WWW-Authenticate": 'Bearer realm="autofedavg"'}))


def _error(error: Any) -> Response:
    title = f"{error.status_code} {error.detail}"
    page = small_page(title, ERRORS.get(error.status_code, error.detail))
    return HTMLResponse(page, error.status_code, error.headers)
