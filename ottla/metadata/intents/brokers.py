"""The end of a broker's registration at an administrator's request."""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata import keys
from ottla.metadata.image import Image
from ottla.metadata.model.brokers import Broker
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Delete, Guard
from ottla.protocol.errors import ErrorCode, KafkaError

from .replicas import known_brokers


class BrokerIntents:
    """Administrators' requests about brokers."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def unregister_broker(self, broker_id: int, timeout_s: float = 30.0) -> None:
        """Deletes a broker's registration. A broker that is alive registers anew. Raises KafkaError."""
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            await self._unregister_broker(broker_id)

    async def _unregister_broker(self, broker_id: int) -> None:
        doubtful = None  # the registration that may have been deleted
        while True:
            broker = self._settling.image.brokers.get(broker_id)
            if doubtful is not None and (broker is None or broker.epoch != doubtful):
                return None
            if broker is None and broker_id in known_brokers(self._settling.image, [broker_id]):
                return None  # its registration ended with its process
            if broker is None:
                raise KafkaError(
                    ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"
                )
            key = keys.broker(broker_id)
            result = await self._settling.attempt([Guard(key, broker.revision)], [Delete(key)])
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:
                doubtful = broker.epoch
                await self._settling.until_settled(key)
            else:
                await self._settling.until(_registered_otherwise(broker))


def _registered_otherwise(known: Broker) -> Callable[[Image], bool | None]:
    def find(image: Image) -> bool | None:
        present = image.brokers.get(known.id)
        return True if present is None or present.revision != known.revision else None

    return find
