"""A Flower app with a network and a training loop of its own."""
