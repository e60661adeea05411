"""The algorithm on NVIDIA FLARE: models travel as tasks, what is small as aux messages.

Nothing is decided here: the Controller carries what the server asks, the Executor hands it to the
site's desk. FLARE itself is imported only by what runs inside it.
"""

from autofedavg.engines.flare.loopback import Loopback

__all__ = ["Loopback"]
