"""Reads and writes the files that say to which cluster, broker or topic a directory belongs, and whether its last stop
was clean.

`ottla.storage.identity` has the files' formats. `meta.properties` and the marker of a clean stop are replaced
atomically.
"""

from __future__ import annotations

import errno
from uuid import UUID

from ottla.storage import names
from ottla.storage.identity import (
    parse_clean_marker,
    parse_properties,
    parse_topic_id,
    render_clean_marker,
    render_properties,
    render_topic_id,
)

from .disk import Disk, File


def read_properties(disk: Disk, directory: str) -> dict[str, str]:
    """The properties in `meta.properties`; empty without the file. Raises OSError, also where the file isn't text."""
    path = f"{directory}/{names.META_PROPERTIES}"
    if not disk.exists(path):
        return {}
    try:
        return parse_properties(disk.read(path))
    except UnicodeDecodeError as error:
        raise OSError(errno.EINVAL, f"{path} isn't text: {error}") from error


def write_properties(disk: Disk, directory: str, properties: dict[str, str]) -> None:
    """Replaces `meta.properties`."""
    disk.write_atomically(f"{directory}/{names.META_PROPERTIES}", render_properties(properties))


def take_clean_marker(disk: Disk, directory: str) -> int | None:
    """The broker epoch (−1: unknown) that ended with a clean stop; None without the marker of a clean stop. Removes the
    marker."""
    path = f"{directory}/{names.CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return None
    epoch = parse_clean_marker(disk.read(path))
    disk.remove(path)
    disk.fsync_directory(directory)
    return epoch


def write_clean_marker(disk: Disk, directory: str, broker_epoch: int) -> None:
    """Marks a clean stop. The caller has synced everything else in the directory."""
    disk.write_atomically(f"{directory}/{names.CLEAN_SHUTDOWN}", render_clean_marker(broker_epoch))


def read_topic_id(disk: Disk, partition_directory: str) -> UUID | None:
    """The topic id in `partition.metadata`; None where there is no file. Raises ValueError where it is damaged."""
    path = f"{partition_directory}/{names.PARTITION_METADATA}"
    if not disk.exists(path):
        return None
    try:
        return parse_topic_id(disk.read(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_topic_id_unsynced(disk: Disk, partition_directory: str, topic_id: UUID) -> File:
    """Writes `partition.metadata` into a new directory; the caller syncs the file before it creates any other file
    there.

    The caller syncs the file because a loss of power could otherwise leave half of it: then the topic id of the records
    would be unknown. The file's name needs no sync of its own: the segments' names are added later to the same
    directory, whose changes survive in order. That saves one sync for each of thousands of logs.
    """
    file = disk.open(f"{partition_directory}/{names.PARTITION_METADATA}", create=True)
    file.pwrite(render_topic_id(topic_id), 0)
    return file
