"""One log directory: its lock, the broker that it belongs to, whether its last stop was clean, and its checkpoints as
of the start."""

from __future__ import annotations

import errno
from uuid import uuid4

from ottla.storage import names
from ottla.storage.checkpoints import Offsets
from ottla.uuids import uuid_text

from .directory_services import DirectoryServices
from .identity import read_properties, take_clean_marker, write_properties

UNKNOWN_EPOCH = -1
_VERSION = "1"  # of meta.properties; version 0 was written by Kafka with ZooKeeper, and has no node id


class ForeignDirectory(OSError):
    """A log directory belongs to another cluster or another broker, or is in use by another process."""


class Home:
    """A log directory. `clean` says whether its last stop was a clean one; `stopped_epoch` is the broker epoch that
    this stop ended."""

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
        """Checks that the log directory belongs to this broker; a new directory is claimed for the broker. Raises
        ForeignDirectory, OSError."""
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
            properties = {"version": _VERSION, **wanted, "directory.id": uuid_text(uuid4())}
            write_properties(disk, self.path, properties)

    def take_marker(self) -> None:
        """Finds out whether the last stop was clean, and removes the marker that says so. Raises OSError."""
        epoch = take_clean_marker(self.services.disk, self.path)
        self.clean = epoch is not None
        self.stopped_epoch = UNKNOWN_EPOCH if epoch is None else epoch
