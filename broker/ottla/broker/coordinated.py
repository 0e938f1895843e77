"""What the coordinator holds of one partition of `__consumer_offsets`, and what it counts.

The core and the view of its offsets live for as long as this broker leads the partition without a break. `commits` are
those of one turn of the event loop.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ottla.broker.committed_view import CommittedView
from ottla.broker.group.effects import Limits
from ottla.broker.group.shard import Change, GroupShard, encode
from ottla.broker.group_replay import ReplayPartition
from ottla.protocol.errors import ErrorCode, KafkaError

Encoded = tuple[bytes, bytes | None]  # a record's key and value


class Settings(Protocol):
    """The broker's settings by name."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(slots=True)
class GroupCounters:
    """Plain counters, collected at scrape."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0
    unreadable_records: int = 0
    errors: int = 0


class Commit(NamedTuple):
    """The changes of one OffsetCommit, encoded, and who waits for the offset that they get."""

    changes: list[Change]
    encoded: list[Encoded]
    written: asyncio.Future[int]

    def fail(self, error: KafkaError) -> None:
        """Tells whoever waits for it, if anybody still does."""
        if not self.written.done():
            self.written.set_exception(error)


@dataclass(slots=True, eq=False)
class Shard:
    """A partition of `__consumer_offsets` that this broker leads."""

    partition: ReplayPartition
    leader_epoch: int
    core: GroupShard
    view: CommittedView
    loading: bool = True
    failures: int = 0  # of loads, one after the other
    last_appended: int = -1
    commits: list[Commit] = field(default_factory=list)  # for the next append


def limits_of(settings: Settings) -> Limits:
    """The settings that the cores obey."""
    return Limits(
        group_min_session_timeout_ms=settings["group.min.session.timeout.ms"],
        group_max_session_timeout_ms=settings["group.max.session.timeout.ms"],
        group_initial_rebalance_delay_ms=settings["group.initial.rebalance.delay.ms"],
        group_max_size=settings["group.max.size"],
        offset_metadata_max_bytes=settings["offset.metadata.max.bytes"],
        offsets_retention_ms=settings["offsets.retention.minutes"] * 60_000,
    )


def encoded_records(changes: Sequence[Change]) -> list[Encoded]:
    """The records of `changes`. Raises KafkaError where a text is too long for one (clients may send such)."""
    try:
        return [encode(change) for change in changes]
    except struct.error:
        raise KafkaError(ErrorCode.unknown_server_error, "a group's id or a text of its members is too long") from None
