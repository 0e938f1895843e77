"""Asks each broker whether an administrator throttles replicas by hand.

`kafka-reassign-partitions` and `ottla` set rates on single brokers, before or while they name throttled replicas in a
topic's settings, and reset both when all replicas are copied. The operator sets one rate for all brokers. So if a
broker has a rate of its own, the throttled replicas in topics' settings may be the administrator's, even if none of
them is being moved yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.net.admin import BROKER, DESCRIBE_CONFIGS, ask, settings_wanted
from ottla.net.peer import Peer
from ottla.net.streams import Connect
from ottla.operator.kafka_loads import ANSWER_S_MAX
from ottla.operator.objects import OPERATOR
from ottla.operator.plan.topic import THROTTLE_RATES
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.settings.description import Source


async def ask_throttled_by_hand(addresses: Mapping[int, tuple[str, int]], connect: Connect) -> bool:
    """Whether any of the brokers has a rate of its own. `addresses`: broker → its host and port. A broker that doesn't
    answer counts as one with a rate."""
    asked = (_has_rate(broker, host, port, connect) for broker, (host, port) in addresses.items())
    return any(await asyncio.gather(*asked))


async def _has_rate(broker: int, host: str, port: int, connect: Connect) -> bool:
    peer = Peer(connect, host, port, OPERATOR)
    message = settings_wanted(BROKER, [str(broker)], THROTTLE_RATES)
    try:
        (result,) = (await ask(peer, DESCRIBE_CONFIGS, message, ANSWER_S_MAX)).results
    except (OSError, ProtocolError):
        return True
    finally:
        peer.close()
    if result.error_code != ErrorCode.none:
        return True
    return any(entry.config_source == Source.DYNAMIC_BROKER for entry in result.configs)
