"""Who may read the served report: where it listens, host names of requests, and the token."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from autofedavg.core.errors import ConfigError

TOKEN = "AUTOFEDAVG_TOKEN"  # noqa: S105 - the variable's name
SHORTEST = 16
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_IPV6 = r"\[[0-9a-f.]*(?::[0-9a-f.]*){2,8}\]"
_HOST = re.compile(rf"({_IPV6}|[^\s:@/\[\]]{{1,253}})(:[0-9]{{1,5}})?", re.IGNORECASE)


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
        found = _HOST.fullmatch(host)
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


def host_name(host: str) -> str:
    """A name or address as a Host header has it: IPv6 in brackets, without a zone."""
    bare = host.strip("[]").partition("%")[0].removeprefix("::ffff:").lower()
    return f"[{bare}]" if ":" in bare else bare


def host_names(allowed: Iterable[str]) -> frozenset[str]:
    """The names a request may use: these and the loopback's; ConfigError if one is no name."""
    for name in allowed:
        found = _HOST.fullmatch(host_name(name))
        if not found or found[2]:
            remedy = "name it without http:// and port, e.g. lab.example.org"
            raise ConfigError(f"{name!r} is not a host name", where="--allow-host", remedy=remedy)
    return frozenset([*LOOPBACK, *map(host_name, allowed)])


def listen(host: str, port: int, expose: bool) -> tuple[socket.socket, str, bool]:
    """A listening socket, the host name to show, and whether other machines can reach it.

    Raises:
        ConfigError: the address or port cannot be used, or `expose` does not fit the address.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]") or " ", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _wrong("--host", f"{host!r} is not an address of this machine ({error})") from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    exposed = not all(address.is_loopback for address in addresses)
    if exposed and not expose:
        remedy = "keep to 127.0.0.1 and use an ssh tunnel, or add --expose"
        raise _wrong("--host", f"{host} can be reached from other machines", remedy)
    if expose and not exposed:
        remedy = "name an address with --host, e.g. --host 0.0.0.0"
        raise _wrong("--expose", f"{host} cannot be reached from other machines", remedy)
    family, where = found[0][0], (str(addresses[0]), port)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(where, family=family, dualstack_ipv6=both)
    except OSError as error:
        reason = f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0).lower()}"
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise _wrong("--host", reason) from None
        remedy = "choose another with --port, or any free one with --port 0"
        raise _wrong("--port", reason, remedy) from None
    name = socket.gethostname() if addresses[0].is_unspecified else host
    return listener, host_name(name), exposed


def _wrong(where: str, what: str, remedy: str = "") -> ConfigError:
    default = "name an address of this machine, or leave it out for 127.0.0.1"
    return ConfigError(what, where=where, remedy=remedy or default)


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
