"""Where clients are told that a broker listens. Pure: settings and open ports come in.

`advertised.listeners` says it at the start, as in Kafka. Addresses that are known only later, of a load balancer or a
node's port, come by `ottla.listener.addresses`, a setting of this one broker that changes while it runs. A listener
that neither of them names is open, and nobody is sent there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.metadata.model import Endpoint
from ottla.settings.config import BrokerConfig

ADDRESSES = "ottla.listener.addresses"


def advertised(config: BrokerConfig, ports: Mapping[str, int], machine: str) -> dict[str, Endpoint]:
    """By the listener's name. `ports` are those that were opened, `machine` is this one's own name."""
    opened = {endpoint.listener: endpoint for endpoint in config.listeners.opened}
    told: dict[str, Endpoint] = {}
    for endpoint in config.listeners.advertised:
        host = endpoint.host or opened[endpoint.listener].host or machine
        port = endpoint.port or ports[endpoint.listener]
        told[endpoint.listener] = Endpoint(endpoint.listener, host, port, endpoint.protocol)
    for entry in config.get_list(ADDRESSES):
        name, _, address = entry.partition("://")
        host, _, number = address.rpartition(":")
        listener = name.upper()
        if listener in opened:
            told[listener] = Endpoint(listener, host.strip("[]"), int(number), opened[listener].protocol)
    return told
