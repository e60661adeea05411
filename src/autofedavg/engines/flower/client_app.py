"""Flower's ClientApp: hands every message to the site's resident worker.

Flower starts a process for every message, so this imports neither PyTorch nor NumPy of its own
accord, keeps nothing, and is gone after one answer.
"""

from __future__ import annotations

import os

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from autofedavg.engines.flower.dispatch import ACTIONS, answer

app = ClientApp()


def handle(message: Message, context: Context) -> Message:
    """Answers a message; the worker lives as long as the process that started this one."""
    return Message(answer(message, context, os.getppid(), stays=False), reply_to=message)


for _action in ACTIONS:
    app.query(_action)(handle)
