"""Flower: SuperLink and SuperNodes carry the messages."""

from autofedavg.engines.flower.loopback import Loopback

__all__ = ["Loopback"]
