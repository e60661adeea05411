"""Where a local server listens, and the host names that lead to it."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterable

from autofedavg.core.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:@/\[\]]{1,253})(:[0-9]{1,5})?", re.IGNORECASE)


def host_name(host: str) -> str:
    """A name or address as a Host header has it: IPv6 in brackets, without a zone."""
    bare = host.strip("[]").partition("%")[0].removeprefix("::ffff:").lower()
    return f"[{bare}]" if bare.count(":") > 1 else bare


def host_names(allowed: Iterable[str]) -> frozenset[str]:
    """The names a request may use: these and the loopback's; ConfigError if one is no name."""
    for name in allowed:
        found = HOST.fullmatch(host_name(name))
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
    both = found[0][0] == socket.AF_INET6 and socket.has_dualstack_ipv6()
    where = (str(addresses[0]), port)
    try:
        listener = socket.create_server(where, family=found[0][0], dualstack_ipv6=both)
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
