"""Says what follows where an authorizer runs, and clients of some listener have no names. Pure.

Over a listener of the protocol PLAINTEXT each client, also another broker, is User:ANONYMOUS; and over one of the
protocol SSL that asks for no certificates. That is wanted in few clusters, and is often left from the time before the
authorizer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.settings.config import BrokerConfig
from ottla.settings.consistency import principals
from ottla.settings.listeners import Endpoint

ANONYMOUS = "User:ANONYMOUS"


def warnings(config: BrokerConfig) -> Iterator[str]:
    """A sentence on each listener whose clients can do little, because they have no names."""
    if not config.get_str("authorizer.class.name") or ANONYMOUS in principals(config.get_str("super.users")):
        return
    without_acl = config.get_bool("allow.everyone.if.no.acl.found")
    what = f"what ACLs allow {ANONYMOUS}" + (" and what no ACL is about" if without_acl else "")
    for endpoint in config.listeners.opened:
        if not _nameless(config, endpoint):
            continue
        if endpoint.listener == config.listeners.inter_broker:
            yield (
                f"listener {endpoint.listener}: brokers are {ANONYMOUS} to one another, which is no super user: they"
                " can't replicate without the right CLUSTER_ACTION on the cluster. Let brokers log in, or show"
                f" certificates, or add {ANONYMOUS} to super.users while that isn't so"
            )
        else:
            yield (
                f"listener {endpoint.listener}: its clients are {ANONYMOUS}, which is no super user: they may only do"
                f" {what}"
            )


def _nameless(config: BrokerConfig, endpoint: Endpoint) -> bool:
    asks = config.for_listener(endpoint.listener, "ssl.client.auth")
    return endpoint.protocol == "PLAINTEXT" or (endpoint.protocol == "SSL" and asks == "none")
