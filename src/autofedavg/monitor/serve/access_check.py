"""Who may read the served report: host names of requests, and the token."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, field

from autofedavg.core.errors import ConfigError
from autofedavg.monitor.listening import HOST, host_name

TOKEN = "AUTOFEDAVG_TOKEN"  # noqa: S105 - the variable's name
SHORTEST = 16


@dataclass(frozen=True)
class Access:
    """Decides which requests are answered.

    Another site can point its own name at this machine and let a visitor's browser read from here
    (DNS rebinding). So the name in a request must be an expected one. Its port may be any, as at
    the near end of an ssh tunnel. Without a token everybody is admitted.
    """

    names: frozenset[str]
    token: str | None = field(default=None, repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)  # cookie

    def knows(self, host: str, here: str) -> bool:
        """Whether the Host header names this server; `here` is the address that was reached."""
        found = HOST.fullmatch(host)
        return found is not None and found[1].lower() in {*self.names, host_name(here)}

    def opens(self, offered: str) -> bool:
        """Whether this is the token."""
        return self.token is not None and _same(offered, self.token)

    def admits(self, authorization: str, cookie: str) -> bool:
        """Whether a request carries the token or the cookie, or needs neither."""
        scheme, _, offered = authorization.partition(" ")
        bearer = scheme.lower() == "bearer" and self.opens(offered.strip())
        return self.token is None or bearer or _same(cookie, self.session)


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(errors="replace"), other.encode())


def token_for(needed: bool) -> tuple[str | None, bool]:
    """The token, and whether it is new; one from the environment is always required.

    Raises:
        ConfigError: the token of the environment is too short, or not plain text.
    """
    given = os.environ.get(TOKEN, "")
    if not given:
        return (secrets.token_urlsafe(32), True) if needed else (None, False)
    if len(given) < SHORTEST or not re.fullmatch(r"[\x21-\x7e]+", given):
        reason = f"the token needs {SHORTEST} or more plain characters, without spaces"
        raise ConfigError(reason, where=TOKEN, remedy="unset it to let the server make one")
    return given, False
