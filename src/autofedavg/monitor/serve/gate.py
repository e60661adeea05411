"""Who may see the page: the names it is asked by, and the token."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autofedavg.core.errors import ConfigError

TOKEN = "AUTOFEDAVG_TOKEN"  # noqa: S105 - the variable's name
SHORTEST = 16
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s:@/\[\]]{1,253})(:[0-9]{1,5})?", re.IGNORECASE)


@dataclass(frozen=True)
class Gate:
    """Decides about a request.

    A page of another site can make a browser ask this server under that site's own name (DNS
    rebinding). So the name in a request must be one that is expected. Its port may be another
    one, as at the near end of an ssh tunnel; no foreign page can make up the name.

    Args:
        names: accepted names and addresses, lower case, without a port.
        token: what a visitor has to know; None where everybody may come in.
    """

    names: frozenset[str]
    token: str | None = field(default=None, repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def knows(self, hosts: Sequence[str], here: str) -> bool:
        """Whether a request is for this server.

        Args:
            hosts: its Host headers.
            here: the address of this machine that the connection came to.
        """
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if not found:
            return False
        name = found[1].lower()
        return name in self.names or _address(name) == _address(here)

    def admits(self, authorizations: Iterable[str], cookies: Iterable[str], cookie: str) -> bool:
        """Whether a request carries the token, or the cookie it was exchanged for."""
        if self.token is None:
            return True
        for header in authorizations:
            scheme, _, offered = header.partition(" ")
            if scheme.lower() == "bearer" and self.opens(offered.strip()):
                return True
        pairs = (part.strip().partition("=") for header in cookies for part in header.split(";"))
        return any(name == cookie and _same(value, self.session) for name, _, value in pairs)

    def opens(self, offered: str) -> bool:
        """Whether this is the token."""
        return self.token is not None and _same(offered, self.token)


def _same(one: str, other: str) -> bool:
    kind = "surrogatepass"
    return hmac.compare_digest(one.encode(errors=kind), other.encode(errors=kind))


def _address(text: str) -> object:
    """An address in its one spelling; anything that is none is equal to nothing."""
    try:
        found = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return object()
    return getattr(found, "ipv4_mapped", None) or found


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    family: socket.AddressFamily
    address: str
    exposed: bool

    def names(self, allowed: Sequence[str] = ()) -> frozenset[str]:
        """The names a request may use.

        Raises:
            ConfigError: one of those allowed could never be that of a request.
        """
        for name in allowed:
            _refuse_no_name(name)
        own = {_bracketed(self.host), *map(_bracketed, allowed)}
        if self.everywhere:
            own.add(socket.gethostname())
        return LOOPBACK | {name.lower() for name in own}

    @property
    def everywhere(self) -> bool:
        return ipaddress.ip_address(self.address).is_unspecified

    def url(self, port: int) -> str:
        host = socket.gethostname() if self.everywhere else _bracketed(self.host)
        return f"http://{host}:{port}/"


def address_of(host: str, expose: bool) -> Address:
    """Where a host name leads.

    Raises:
        ConfigError: there is no such name, or it leads away from this machine and that was not
            asked for.
    """
    bare = host.strip("[]")
    try:
        found = socket.getaddrinfo(bare or " ", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host!r} is no address of this machine ({error})",
            where="--host",
            remedy="leave it out for 127.0.0.1",
        ) from None
    family, address = found[0][0], str(found[0][4][0])
    inside = all(ipaddress.ip_address(str(at[4][0]).partition("%")[0]).is_loopback for at in found)
    if not inside and not expose:
        raise ConfigError(
            f"{host} can be reached from other machines",
            where="--host",
            remedy="keep to 127.0.0.1 and use an ssh tunnel, or add --expose",
        )
    if inside and expose:
        raise ConfigError(
            f"{host} cannot be reached from other machines",
            where="--expose",
            remedy="name an address with --host, e.g. --host 0.0.0.0",
        )
    return Address(bare, family, address.partition("%")[0], not inside)


def token_for(needed: bool) -> tuple[str | None, bool]:
    """The token, and whether it was made here: one from the environment is always asked for.

    Raises:
        ConfigError: the one in the environment is too easy to guess, or cannot be sent.
    """
    given = os.environ.get(TOKEN, "")
    if given:
        if len(given) < SHORTEST or not re.fullmatch(r"[\x21-\x7e]+", given):
            raise ConfigError(
                f"the token needs {SHORTEST} or more plain characters, without spaces",
                where=TOKEN,
                remedy="unset it: one is made then",
            )
        return given, False
    return (secrets.token_urlsafe(32), True) if needed else (None, False)


def _refuse_no_name(name: str) -> None:
    found = _HOST.fullmatch(_bracketed(name))
    if not found or (":" in name and not isinstance(_address(name), ipaddress.IPv6Address)):
        raise ConfigError(
            f"{name!r} is no host name",
            where="--allow-host",
            remedy="without http:// and port, e.g. lab.example.org",
        )


def _bracketed(host: str) -> str:
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare else bare
