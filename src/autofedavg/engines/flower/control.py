"""The SuperLink's Control API: registering sites, submitting a run, asking how it went."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError


@dataclass(frozen=True)
class Outcome:
    """How a run ended, as Flower sees it."""

    run: int
    well: bool
    details: str


class Control:
    """A SuperLink, from its administrator's side.

    Args:
        address: host and port.
        authority: the certificate that vouches for it.
        variables: of the environment Flower is used in.
    """

    def __init__(self, address: str, authority: Path, variables: Mapping[str, str]) -> None:
        os.environ.update({k: v for k, v in variables.items() if k in _OURS})
        self._address, self._authority = address, authority

    def register(self, public_key: bytes, name: str) -> None:
        """Lets the owner of a key in, under a name."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        key = load_ssh_public_key(public_key)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise RunError("a site's key is not one that Flower takes", where=f"site {name}")
        with self._client() as client:
            client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))

    def submit(self, app: Path) -> int:
        """Starts a run of an app; its number."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own use of pathspec
            content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._client() as client:
            response = client.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        if not response.HasField("run_id"):
            raise RunError("Flower's SuperLink did not take the run", where=str(app))
        return int(response.run_id)

    def outcome(self, run: int) -> Outcome | None:
        """How a run ended, or None while it has not."""
        import httpx
        from flwr.proto.control_pb2 import ListRunsRequest

        try:
            with self._client() as client:
                found = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
        except RunError as error:
            cause = error.__cause__
            if isinstance(cause, httpx.TransportError):
                return None  # it is being started again
            if not isinstance(cause, httpx.HTTPStatusError) or cause.response.status_code != 404:
                raise
            return Outcome(run, False, "the SuperLink was started anew and forgot the run")
        if found.status.status != "finished":
            return None
        well = found.status.sub_status == "completed"
        return Outcome(run, well, found.status.details or found.status.sub_status)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        try:
            with ControlHttpClient.from_server_address(
                server_address=self._address,
                insecure=False,
                root_certificates=self._authority.read_bytes(),
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            ) as client:
                yield client
        except RunError:
            raise
        except Exception as error:
            raise RunError(
                f"Flower's SuperLink refused ({type(error).__name__}: {error})",
                where=self._address,
            ) from error


_OURS = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")
