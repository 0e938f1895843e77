"""The small files of a log directory: offset checkpoints, identity, the marker of a clean stop, topic ids.

All are text files and are replaced atomically. Source: Kafka's OffsetCheckpointFile ("version, count, topic partition
offset" lines), MetaProperties (version 1), CleanShutdownFileHandler, PartitionMetadataFile.
"""

from __future__ import annotations

import errno
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from uuid import UUID

from . import names
from .disk import Disk, File

Offsets = dict[tuple[str, int], int]  # (topic, partition) → offset


def render_offsets(offsets: Iterable[tuple[str, int, int]]) -> bytes:
    """The bytes of a checkpoint with these (topic, partition, offset)."""
    lines = [f"{topic} {index} {offset}" for topic, index, offset in offsets]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def parse_offsets(text: bytes) -> Offsets:
    """The offsets in a checkpoint's bytes. Raises ValueError where `text` isn't a checkpoint."""
    if not text:
        return {}
    lines = text.decode().split("\n")
    if lines[0] != "0":
        raise ValueError(f"version {lines[0]!r} of an offset checkpoint")
    if len(lines) < 3 or lines[-1]:
        raise ValueError("an offset checkpoint ends inside a line")
    count = int(lines[1])
    offsets: Offsets = {}
    for line in lines[2 : 2 + count]:
        topic, index, offset = line.split(" ")
        offsets[topic, int(index)] = int(offset)
    if len(lines) < 2 + count:
        raise ValueError(f"{len(lines) - 2} of {count} offsets")
    return offsets


def read_offsets(disk: Disk, directory: str, name: str) -> Offsets:
    """The offsets of a checkpoint file of a log directory; empty without the file. Raises ValueError where it is
    damaged."""
    path = f"{directory}/{name}"
    return parse_offsets(disk.read(path)) if disk.exists(path) else {}


def read_properties(disk: Disk, directory: str) -> dict[str, str]:
    """The properties in `meta.properties`; empty without the file. Raises OSError, also where the file isn't text."""
    path = f"{directory}/{names.META_PROPERTIES}"
    if not disk.exists(path):
        return {}
    found = {}
    try:
        text = disk.read(path).decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EINVAL, f"{path} isn't text: {error}") from error
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            found[name.strip()] = value.strip()
    return found


def write_properties(disk: Disk, directory: str, properties: dict[str, str]) -> None:
    """Replaces `meta.properties`."""
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    disk.write_atomically(f"{directory}/{names.META_PROPERTIES}", text.encode())


def take_clean_marker(disk: Disk, directory: str) -> int | None:
    """The broker epoch (−1: unknown) that ended with a clean stop; None without the marker of one. Removes the
    marker."""
    path = f"{directory}/{names.CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return None
    try:
        epoch = int(json.loads(disk.read(path)).get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):  # Kafka up to 3.6 left the file empty
        epoch = -1
    disk.remove(path)
    disk.fsync_directory(directory)
    return epoch


def write_clean_marker(disk: Disk, directory: str, broker_epoch: int) -> None:
    """Marks a clean stop. The caller has synced everything else in the directory."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    disk.write_atomically(f"{directory}/{names.CLEAN_SHUTDOWN}", text.encode())


def encode_uuid(value: UUID) -> str:
    """Kafka's text of a UUID: URL-safe base64 without padding."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    """The UUID of Kafka's text. Raises ValueError where `text` isn't one."""
    return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def read_topic_id(disk: Disk, partition_directory: str) -> UUID | None:
    """The topic id in `partition.metadata`; None where there is no file. Raises ValueError where it is damaged."""
    path = f"{partition_directory}/{names.PARTITION_METADATA}"
    if not disk.exists(path):
        return None
    fields = dict(line.split(": ", 1) for line in disk.read(path).decode().splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError(f"{path} isn't Kafka's partition.metadata, version 0")
    return decode_uuid(fields["topic_id"])


def write_topic_id_unsynced(disk: Disk, partition_directory: str, topic_id: UUID) -> File:
    """Writes `partition.metadata` into a new directory; the caller syncs the file before it creates any other file
    there.

    If a loss of power left half of the file, the records' topic id would be unknown. The file's name needs no sync of
    its own: the segments' names are added later to the same directory, whose changes survive in order. That saves one
    sync for each of thousands of logs.
    """
    file = disk.open(f"{partition_directory}/{names.PARTITION_METADATA}", create=True)
    file.pwrite(f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode(), 0)
    return file
