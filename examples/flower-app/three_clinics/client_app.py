"""What a clinic does."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from autofedavg.engines.flower.dropin import learn_weights
from three_clinics.task import Net, load_data, loss_of, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Trains the global model on the clinic's cases."""
    network = Net()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(str(context.node_config["site"]))
    loss = train(network, loader)
    metrics = MetricRecord({"loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.query("autofedavg")
def weights(message: Message, context: Context) -> Message:
    """Learns the aggregation weights on the clinic's validation cases."""
    site = str(context.node_config["site"])
    _, validation = load_data(site)
    return learn_weights(
        message, context, network=Net(), loss=loss_of, batches=validation, site=site
    )
