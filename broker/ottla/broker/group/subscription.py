"""Decodes the topics that the members of a `consumer` group subscribe to from the members' metadata. Pure.

The broker needs the topics only to decide which committed offsets may be deleted or expire. Version 0 of the consumer
protocol's subscription (int16 version, array of topics, user data) is a prefix of every later version.

Source: Kafka's ConsumerProtocol, ClassicGroup.computeSubscribedTopics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER = "consumer"

_short = struct.Struct(">h")
_int = struct.Struct(">i")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The union of the subscribed topics; None where a subscription can't be decoded."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(_topics(subscription))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return frozenset(topics)


def _topics(subscription: bytes) -> list[str]:
    (version,) = _short.unpack_from(subscription)
    (count,) = _int.unpack_from(subscription, 2)
    if version < 0 or count < 0:
        raise ValueError("not a subscription")
    position, topics = 6, []
    for _ in range(count):
        (length,) = _short.unpack_from(subscription, position)
        end = position + 2 + length
        if length < 0 or end > len(subscription):
            raise ValueError("the subscription ends inside a topic")
        topics.append(subscription[position + 2 : end].decode())
        position = end
    return topics
