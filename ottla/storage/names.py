"""The names of files and directories in a log directory. Pure.

The names are Kafka's, so that Kafka and Ottla can use each other's log directories. Source: Kafka's LogFileUtils,
UnifiedLog and LocalLog.
"""

from __future__ import annotations

import re
from uuid import UUID

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
PRODUCER_SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, LOG)  # the log is last: without it, others are ignored

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
FUTURE_DIRECTORY = "-future"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
COMPACTED_OFFSETS = "cleaner-offset-checkpoint"
LINEAGE = "ottla-lineage-checkpoint"

_DIRECTORY_NAME_MAX = 255
_partition = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]+)\Z")  # other names would break the lines of checkpoints
_renamed = re.compile(r"(.+)-(\d+)\.([0-9a-f]{32})-(delete|stray|future)\Z")
_offset = re.compile(r"(\d{20})(\.[a-z.]+)\Z")


def offset_name(offset: int, suffix: str) -> str:
    """The name of a segment's file: the offset with 20 digits, and the suffix."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """(offset, suffixes) of a segment's file; None for any other file."""
    match = _offset.match(name)
    return (int(match[1]), match[2]) if match else None


def partition_name(topic: str, index: int) -> str:
    """The name of a partition's directory."""
    return f"{topic}-{index}"


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """(topic, index) of a partition's directory; None for a renamed directory and for any other name."""
    if _renamed.match(name):
        return None
    match = _partition.match(name)
    return (match[1], int(match[2])) if match else None


def renamed_partition_index(name: str) -> int | None:
    """The index of a partition from its renamed directory's name, in which the topic may be truncated; None for any
    other name."""
    match = _renamed.match(name)
    return int(match[2]) if match else None


def renamed_partition_name(topic: str, index: int, suffix: str, unique: UUID) -> str:
    """The directory of a partition that is being moved, waits for deletion, or was set aside: at most 255 characters.
    `unique` distinguishes it from other directories of the same partition."""
    tail = f"-{index}.{unique.hex}{suffix}"
    return topic[: _DIRECTORY_NAME_MAX - len(tail)] + tail
