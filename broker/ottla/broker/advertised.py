"""The addresses that a broker advertises to clients. Pure: the settings and the opened ports are arguments.

`advertised.listeners` names the addresses that are known at the start, as in Kafka. An address that is known only
later, such as a load balancer's or a node port's, is set in `ottla.listener.addresses`, a setting of this one broker
that may change while the broker runs. A listener that neither setting names is open, but isn't advertised to any
client.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.metadata.model.brokers import Endpoint
from ottla.settings.config import BrokerConfig

ADDRESSES = "ottla.listener.addresses"


def advertised(config: BrokerConfig, ports: Mapping[str, int], machine: str) -> dict[str, Endpoint]:
    """The advertised endpoints by the listener's name. `ports` are the ports that were opened, by the listener's name,
    and `machine` is the host name of this machine."""
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
