"""A partition of an internal topic that this broker leads, with the coordinator's state for it.

The coordinator's state is an object with the protocol `Core`: it is derived from the partition's records, and does no
I/O. A `CommittedView` tells the core which of these records readers may see, because they are committed. Both objects
live for as long as this broker leads the partition without a break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.broker.coordination.committed_view import CommittedView, Unshown
from ottla.broker.coordination.replay import Replayed, ReplayPartition
from ottla.broker.verification import Guard
from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.protocol.errors import KafkaError

Encoded = tuple[bytes, bytes | None]  # a record's key and value


class Core(Replayed, Protocol):
    """The coordinator's state for one partition. The part that is stored in records changes only by records, replayed
    or appended. The other part (waiting requests, deadlines) is lost when this broker stops leading the partition."""

    def appended(self, changes: Sequence[Any], base_offset: int, producer_id: int) -> None:
        """Applies `changes`, which were appended, one record each from `base_offset` on; they may not be committed
        yet. With a `producer_id` ≥ 0 they belong to a transaction, and `decided` applies the transaction's marker."""

    @property
    def unshown(self) -> Unshown:
        """The appended records that aren't visible yet."""


C = TypeVar("C", bound=Core)


class Transaction(NamedTuple):
    """The transaction to which a batch belongs: its producer, and the guard that was taken before the transaction's
    coordinator was asked. The guard is NOT_NEEDED if the transaction has begun in the partition already, and None if
    there is no transaction."""

    producer_id: int
    producer_epoch: int
    guard: Guard | None


NO_TRANSACTION = Transaction(NO_PRODUCER_ID, -1, None)


class Gathered(NamedTuple):
    """Changes for the next append, their encoded records, and a future whose result is the batch's last offset."""

    changes: Sequence[Any]
    encoded: Sequence[Encoded]
    written: asyncio.Future[int]

    def fail(self, error: KafkaError) -> None:
        """Fails the future with `error`, unless it is done or cancelled."""
        if not self.written.done():
            self.written.set_exception(error)


@dataclass(slots=True, eq=False)
class Led(Generic[C]):
    """One partition of an internal topic that this broker leads. `gathered` are the changes that came in this iteration
    of the event loop, and aren't appended yet."""

    partition: ReplayPartition
    leader_epoch: int
    core: C
    view: CommittedView
    loading: bool = True
    failures: int = 0  # failed loads in a row
    last_appended: int = -1
    gathered: list[Gathered] = field(default_factory=list)
