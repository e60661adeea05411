"""What a clinic does."""

from __future__ import annotations

import nvflare.client as flare
from network import Net, load_data, loss_of, train

from autofedavg.engines.flare.dropin import answer_with


def main() -> None:
    """Trains the global model on the clinic's cases, round after round."""
    flare.init()
    loader, validation = load_data(flare.get_site_name())
    network = Net()
    answer_with(network=network, loss=loss_of, batches=validation)
    while flare.is_running():
        received = flare.receive()
        network.load_state_dict(received.params)
        loss = train(network, loader)
        steps = {"NUM_STEPS_CURRENT_ROUND": len(loader)}
        flare.send(flare.FLModel(params=network.state_dict(), metrics={"loss": loss}, meta=steps))


if __name__ == "__main__":
    main()
