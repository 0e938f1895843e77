"""The part of a broker that enforces quotas, for tests of other parts: no client has a limit."""

from __future__ import annotations

from typing import Any

from ottla.broker.throttling import Throttling
from ottla.settings.config import BrokerConfig


def without_quotas() -> Throttling:
    """A `Throttling` that charges nothing."""
    config = BrokerConfig.from_sources("node.id=0\nlog.dirs=/x\nlisteners=PLAINTEXT://127.0.0.1:9092")
    spawn: Any = None
    return Throttling(config, lambda: 0.0, spawn)
