"""The port by which a shard serves a group, whatever the group's type. Pure.

A shard has the groups of one partition of `__consumer_offsets`, and their offsets (`shard.py`).
By this port a shard lists, deletes and expires its groups, asks them whether a client may commit, and wakes them at
their deadlines. Only the APIs of the classic protocol require a type: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and
DescribeGroups require a `classic.ClassicGroup`.

Source: Kafka's Group.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from ottla.protocol.errors import ErrorCode

from .effects import Effects, Now, Store
from .records import GroupKey

FROM_COMMIT = -1


class GroupType(Enum):
    """The types of groups in Kafka; values are the names that ListGroups shows."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class Group(Protocol):
    """One group of a shard. Two `Group` objects are equal only if they are the same object, because timers keep groups
    as keys."""

    def __hash__(self) -> int: ...

    @property
    def group_id(self) -> str:
        """The group's id, which is unique within its shard."""

    @property
    def type(self) -> GroupType:
        """The group's type, which never changes: a group of another type with the same id is another object."""

    @property
    def protocol_type(self) -> str:
        """The protocol type that ListGroups shows; empty for a group that only keeps offsets."""

    @property
    def state_name(self) -> str:
        """The state, as ListGroups shows it."""

    @property
    def is_dead(self) -> bool:
        """Whether the group was deleted, or this broker no longer coordinates it."""

    # --- time and leadership ---

    @property
    def wake_ms(self) -> int:
        """The time at which `time_passed` is to be called, in ms of the steady clock; NEVER_MS without a deadline. It
        isn't later than the next deadline."""

    def time_passed(self, now: Now) -> Effects:
        """Handles every deadline that is due, and sets `wake_ms` to the next one."""

    def loaded(self, now: Now) -> Effects:
        """Begins all sessions and time-outs anew, because this broker is the group's new coordinator."""

    def unload(self, error: ErrorCode) -> Effects:
        """Answers `error` to all waiting requests: this broker is no longer the coordinator, or the group was
        deleted."""

    def stored(self, store: Store, error: ErrorCode, now: Now) -> Effects:
        """Called when the metadata in `store`, one of the group's effects, was committed or, with an `error`,
        wasn't."""

    # --- offsets ---

    def commit(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> ErrorCode:
        """NONE if this client may commit offsets, else the error that it gets. `generation` is the member's generation
        or epoch, −1 for a client that isn't a member."""

    def commit_in_transaction(self, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """NONE if this client may commit offsets in a transaction, else the error that it gets; the parameters are as
        in `commit`."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the group may still need its offsets of `topic`, because a member may read the topic."""

    @property
    def offset_deletion_error(self) -> ErrorCode:
        """NONE if OffsetDelete may delete the offsets of topics to which no member subscribes, else the error."""

    @property
    def retention_begins_ms(self) -> int | None:
        """When the retention time of offsets begins, in ms since 1970. FROM_COMMIT if the retention time of each offset
        begins with its commit; None if no offset expires."""

    # --- deletion ---

    @property
    def deletion_error(self) -> ErrorCode:
        """NONE if the group may be deleted, because it has no members; else the error."""

    def record_keys(self) -> Iterable[GroupKey]:
        """The keys of the group's own records, in the order in which their tombstones delete the group."""
