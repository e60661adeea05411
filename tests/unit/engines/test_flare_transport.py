"""What FLARE's server says of a job that FLARE has ended."""

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message as CellMessage

from autofedavg.core.errors import RunError
from autofedavg.engines.flare.transport import FlareTransport
from autofedavg.federation.messages import Message

SITES = ("north", "south", "west")


def transport_of(peers) -> FlareTransport:
    """The transport of a job that was stopped; `peers` are connected to the server, or an error."""

    def asked(targets, **_):
        if isinstance(peers, Exception):
            raise peers
        reply = CellMessage({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, peers)
        return dict.fromkeys(targets, reply)

    cell = SimpleNamespace(core_cell=SimpleNamespace(broadcast_request=asked))
    clients = [SimpleNamespace(name=name, get_fqcn=lambda name=name: name) for name in SITES]
    engine = SimpleNamespace(
        get_clients=lambda: clients, get_cell=lambda: cell, send_aux_request=lambda **_: {}
    )
    context = SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "job")
    stopped = Signal()
    stopped.trigger("its process ended")
    return FlareTransport(None, context, stopped, SITES)


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        (["north.job", "west.job", "south"], "south is no longer present: a site's process may "),
        (["west.job"], "north and south are no longer present: a site's process may have ended"),
        ([], "none of its sites is present any more: a site's process may have ended"),
        (["north.job", "south.job", "west.job"], "the job was stopped; docs/how-to/lost-sites.md"),
        (RuntimeError("no cell"), "the job was stopped; docs/how-to/lost-sites.md"),
    ],
    ids=["one", "two", "all", "none", "unknown"],
)
def test_a_stopped_job_names_the_sites_that_are_gone_and_one_remedy(peers, said) -> None:
    with pytest.raises(RunError) as caught:
        transport_of(peers).ask("hello", {name: Message({}, {}) for name in SITES}, 1.0)
    text = str(caught.value)
    assert text.startswith("FLARE: the job was stopped")
    assert said in text
    assert text.endswith("; docs/how-to/lost-sites.md says how the run continues")
    assert "submit it again" not in text  # on one machine, `resume` does
