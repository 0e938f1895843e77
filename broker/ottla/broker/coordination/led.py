"""A partition of an internal topic that this broker leads, and what is coordinated in it.

What is coordinated is a core: pure state that follows the partition's records. It and the view of what shows of it live
for as long as this broker leads the partition without a break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.broker.coordination.committed_view import CommittedView, Unshown
from ottla.broker.coordination.replay import Replayed, ReplayPartition
from ottla.protocol.errors import KafkaError

Encoded = tuple[bytes, bytes | None]  # a record's key and value


class Core(Replayed, Protocol):
    """The state of one partition. What is written of it changes by records alone: those that are read back and those
    that were appended. What isn't written (who waits, deadlines) is lost with the leadership."""

    def appended(self, changes: Sequence[Any], base_offset: int) -> None:
        """`changes` were written, one record each from `base_offset` on; they are not committed yet."""

    @property
    def unshown(self) -> Unshown:
        """What was written and doesn't show yet, because it isn't committed."""


C = TypeVar("C", bound=Core)


class Gathered(NamedTuple):
    """Changes for the next append, encoded, and who waits for the offset that they get."""

    changes: Sequence[Any]
    encoded: Sequence[Encoded]
    written: asyncio.Future[int]

    def fail(self, error: KafkaError) -> None:
        """Tells whoever waits for it, if anybody still does."""
        if not self.written.done():
            self.written.set_exception(error)


@dataclass(slots=True, eq=False)
class Led(Generic[C]):
    """One partition. `gathered` is what came in one turn of the event loop."""

    partition: ReplayPartition
    leader_epoch: int
    core: C
    view: CommittedView
    loading: bool = True
    failures: int = 0  # of loads, one after the other
    last_appended: int = -1
    gathered: list[Gathered] = field(default_factory=list)
