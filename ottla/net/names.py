"""The basic values of a client: addresses, partitions, special timestamps, isolation levels, transactions. Pure."""

from __future__ import annotations

from typing import NamedTuple

LATEST, EARLIEST = -1, -2  # timestamps that ListOffsets takes for the ends of a log
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Address(NamedTuple):
    """The address at which a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TopicPartition(NamedTuple):
    """A partition's name: the topic, and the index of the partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndTimestamp(NamedTuple):
    """A result of ListOffsets. Both are −1 if no record matched the timestamp."""

    offset: int
    timestamp: int


class Transaction(NamedTuple):
    """A transaction's identity while it is open: its transactional id, and the producer id and epoch that write it."""

    transactional_id: str
    producer_id: int
    epoch: int


class TransactionalIdState(NamedTuple):
    """What the coordinator says of a transactional id: its state by Kafka's name, and its current producer."""

    state: str
    producer_id: int
    epoch: int


def parse_bootstrap(text: str) -> list[Address]:
    """Addresses from `host:port,host:port`. Raises ValueError, which names the entry that isn't an address."""
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = entry.split("://")[-1].rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"'{entry}' is no broker address: host:port is needed, for example localhost:9092")
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("no broker address given: host:port is needed, for example localhost:9092")
    return addresses
