"""Elections of leaders, and moves of replicas, at administrators' requests."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.metadata import keys
from ottla.metadata.model.partitions import NO_LEADER, Election, Partition, Reassignment
from ottla.metadata.reassignment import check_cancellable, check_target
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Guard, Put
from ottla.protocol.errors import ErrorCode, KafkaError

from .replicas import known_brokers


class PartitionIntents:
    """Administrators' requests about single partitions."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def elect_leader(self, topic: str, index: int, unclean: bool, timeout_s: float) -> None:
        """Requests the election of the preferred replica, or (`unclean`) of any live one, and waits for the election.

        Raises KafkaError.
        """
        known = self._settling.image.topics.get(topic)
        if known is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such topic as {topic}")
        partition = known.partitions.get(index)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}")
        if partition.leader >= 0 and (unclean or partition.leader == partition.replicas[0]):
            raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
        preferred = partition.replicas[0]
        if not unclean and not (
            preferred in partition.isr and self._runs(preferred) and preferred not in self._settling.image.drained
        ):
            raise _not_elected(unclean)
        if unclean and not any(self._runs(replica) for replica in partition.replicas):
            raise _not_elected(unclean)
        key = keys.election(known.id, index)
        # An election that was requested already counts as this request's. The controller deletes its key once it has
        # decided.
        async with within(timeout_s):
            result = await self._settling.surely([Guard(key, 0)], [Put(key, Election(unclean).encode())])
            if isinstance(result, Committed):
                await self._settling.until_revision(result.revision)
            else:
                await self._settling.until_settled(key)
            await self._settling.until(lambda image: None if (known.id, index) in image.elections else True)
        after = self._settling.image.partition(known.id, index)
        if after is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}")
        if after.leader == NO_LEADER if unclean else after.leader != after.replicas[0]:
            raise _not_elected(unclean)

    async def reassign(
        self, topic: str, index: int, target: Sequence[int] | None, allow_another_factor: bool, timeout_s: float
    ) -> None:
        """Requests a partition's move to the replicas `target`, or (None) the cancellation of its present move.

        Waits until the controller has begun to carry out the request. If two administrators ask at the same time, one
        is refused (REASSIGNMENT_IN_PROGRESS). Raises KafkaError.
        """
        async with within(timeout_s):
            if target is not None:
                await self._settling.until_all_known(keys.broker.prefix)
            await self._reassign(topic, index, target, allow_another_factor)

    async def _reassign(self, topic: str, index: int, target: Sequence[int] | None, allow_another_factor: bool) -> None:
        before = self._reassignable(topic, index)
        wanted = (before.topic_id, index)
        key, state_key = keys.reassignment(*wanted), keys.partition(*wanted)
        wish = Reassignment(None if target is None else tuple(target))
        doubtful = False  # whether the request's key may have been written
        while True:
            image = self._settling.image
            state = self._reassignable(topic, index)
            moved, standing = _assignment(state) != _assignment(before), image.reassignments.get(wanted)
            ours = _fulfils(state, wish) if moved else standing is not None and standing.target == wish.target
            if doubtful and ours:
                break
            if moved or standing is not None:
                raise _being_moved(topic, index)
            if target is None:
                check_cancellable(state, image.brokers)
            else:
                check_target(target, state, known_brokers(image, target), allow_another_factor)
            intent = image.intents_by_id[state.topic_id]
            guards = [Guard(keys.topic(topic), intent.revision), Guard(state_key, state.revision), Guard(key, 0)]
            # The target's replicas are assigned already, or are being added.
            there = wish.target == state.target and not state.removing
            result = await self._settling.attempt(guards, [] if there else [Put(key, wish.encode())])
            if isinstance(result, Committed):
                await self._settling.until_revision(result.revision)
                break
            if result is None:
                doubtful = True
                await self._settling.until_settled(key, state_key)
                continue
            other = result.failed.get(key)
            if other is not None and not (doubtful and other.value == wish.encode()):
                raise _being_moved(topic, index)
            newest = max((entry.mod_revision for entry in result.failed.values() if entry), default=image.revision + 1)
            await self._settling.until_revision(newest)  # the partition's state or the topic's intent has changed
        await self._settling.until(lambda image: None if wanted in image.reassignments else True)

    def _reassignable(self, topic: str, index: int) -> Partition:
        known = self._settling.image.topics.get(topic)
        if known is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {topic}.")
        partition = known.partitions.get(index)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {topic}:{index}.")
        return partition

    def _runs(self, broker_id: int) -> bool:
        broker = self._settling.image.brokers.get(broker_id)
        return broker is not None and broker.electable


def _assignment(state: Partition) -> tuple[tuple[int, ...], ...]:
    return (state.replicas, state.adding, state.removing)


def _fulfils(state: Partition, wish: Reassignment) -> bool:
    """Whether a partition's state, after a change of its assignment, fulfils the requested reassignment `wish`."""
    return not state.reassigning if wish.target is None else state.target == wish.target


def _being_moved(topic: str, index: int) -> KafkaError:
    return KafkaError(
        ErrorCode.reassignment_in_progress,
        f"Another request asks for another assignment of {topic}-{index} at the same time.",
    )


def _not_elected(unclean: bool) -> KafkaError:
    if unclean:
        return KafkaError(
            ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."
        )
    return KafkaError(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
