"""One log directory: its lock, whose it is, how it was left, what its checkpoints said; which one is next."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import uuid4

from . import names
from .checkpoints import Offsets, encode_uuid, read_properties, take_clean_marker, write_properties
from .directory_services import DirectoryServices

UNKNOWN_EPOCH = -1
_VERSION = "1"  # of meta.properties; Kafka's earlier one was ZooKeeper's, without a node id


class ForeignDirectory(OSError):
    """A log directory belongs to another cluster or another broker, or is in use by another process."""


class Home:
    """`clean`: the last stop was a clean one, of the broker epoch `stopped_epoch`."""

    __slots__ = ("clean", "compacted", "lock", "log_starts", "path", "recovery_points", "services", "stopped_epoch")

    def __init__(self, path: str, services: DirectoryServices) -> None:
        self.path = path
        self.services = services
        self.clean = False
        self.stopped_epoch = UNKNOWN_EPOCH
        self.recovery_points: Offsets = {}
        self.log_starts: Offsets = {}
        self.compacted: Offsets = {}
        self.lock: object = None

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Makes sure that it is this broker's, and marks a new one as that. Raises ForeignDirectory, OSError."""
        disk = self.services.disk
        properties = read_properties(disk, self.path)
        version = properties.get("version", _VERSION)
        if version != _VERSION:
            raise ForeignDirectory(
                errno.EINVAL,
                f"{self.path}/{names.META_PROPERTIES} is of version {version}, and this broker knows only {_VERSION}",
            )
        wanted = {"cluster.id": cluster_id, "node.id": str(node_id)}
        for name, value in wanted.items():
            stored = properties.get(name, properties.get("broker.id", value) if name == "node.id" else value)
            if stored != value:
                raise ForeignDirectory(
                    errno.EINVAL, f"log directory {self.path} has {name}={stored}, this broker {name}={value}"
                )
        if not properties:
            properties = {"version": _VERSION, **wanted, "directory.id": encode_uuid(uuid4())}
            write_properties(disk, self.path, properties)

    def take_marker(self) -> None:
        """Learns how it was left, and consumes the marker that says so. Raises OSError."""
        epoch = take_clean_marker(self.services.disk, self.path)
        self.clean = epoch is not None
        self.stopped_epoch = UNKNOWN_EPOCH if epoch is None else epoch


def common_epoch(homes: Iterable[Home]) -> int:
    """The broker epoch that ended with a clean stop of all of them, or UNKNOWN_EPOCH."""
    epochs = {home.stopped_epoch for home in homes}
    return epochs.pop() if len(epochs) == 1 else UNKNOWN_EPOCH


def emptiest(homes: Sequence[Home], count: int, held: Iterable[str]) -> list[Home]:
    """Where `count` new partitions go: each to the log directory that has the fewest by then, of what all `held`."""
    if len(homes) == 1:
        return [*homes] * count
    counts = Counter(held)
    chosen = []
    for _ in range(count):
        home = min(homes, key=lambda home: counts[home.path])
        counts[home.path] += 1
        chosen.append(home)
    return chosen
