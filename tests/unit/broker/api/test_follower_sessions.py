"""A follower's fetch session with a leader: whatever leader elections, resignations and appends there are, the session
misses no partition's changes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.replica.fetch_session import FollowerSession, Key, Position
from ottla.metadata.image import Image
from ottla.metadata.model.partitions import Partition
from ottla.protocol.batches import iterate_headers
from tests.unit.broker.api.test_produce_and_fetch import TOPIC_ID, Stage, answer_of, batch_of
from tests.unit.broker.log.workbench import append
from tests.unit.examples import examples

FOLLOWER_FETCH = 17
INDEXES = (0, 1)


class Follower:
    """Replica 1. It follows partitions in the leader epochs that the test gives it, and doesn't ask for a refused
    partition for a while.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._session = FollowerSession()
        self._ends = dict.fromkeys(INDEXES, 0)
        self._epochs = dict.fromkeys(INDEXES, 0)

    def follow(self, index: int, epoch: int) -> None:
        self._epochs[index] = epoch
        self._session.drop(key_of(index))
        self._want(index)

    def resume(self) -> None:
        for index in INDEXES:
            self._want(index)

    def fetch(self, wait_ms: int = 0) -> Any:
        request = self._session.request()
        topic: dict[str, Any] = {"topic_id": TOPIC_ID}
        asked = [_asked(index, position) for (_, index), position in request.asked.items()]
        forgotten = [index for _, index in request.forgotten]
        return self._stage.fetch(
            FOLLOWER_FETCH,
            max_wait=wait_ms,
            session_id=request.session[0],
            session_epoch=request.session[1],
            topics=[topic | {"partitions": asked}] if asked else [],
            forgotten_topics_data=[topic | {"partitions": forgotten}] if forgotten else [],
            replica_state={"replica_id": 1, "replica_epoch": 1},
        )

    def hear(self, parts: Any) -> None:
        answer = answer_of(parts, FOLLOWER_FETCH)
        if not self._session.answered(answer.error_code, answer.session_id):
            return
        for topic in answer.responses:
            for told in topic.partitions:
                self._hear_partition(told)

    def hang_up(self, pending: Any) -> None:
        if not isinstance(pending, list):
            pending.forget()
        self._session.begin_anew()

    def _hear_partition(self, told: Any) -> None:
        index = told.partition_index
        asked = self._session.in_force[key_of(index)]
        if (asked.leader_epoch, asked.offset) != (self._epochs[index], self._ends[index]):
            self._session.unheard(key_of(index))
        elif told.error_code:
            self._session.drop(key_of(index))
        else:
            for _, header in iterate_headers(told.records or b""):
                self._ends[index] = header.last_offset + 1
            self._want(index)

    def _want(self, index: int) -> None:
        self._session.want(key_of(index), Position(self._ends[index], self._epochs[index], -1, 0))


def key_of(index: int) -> Key:
    return TOPIC_ID.bytes, index


def _asked(index: int, position: Position) -> dict[str, Any]:
    return {
        "partition": index,
        "fetch_offset": position.offset,
        "current_leader_epoch": position.leader_epoch,
        "last_fetched_epoch": position.last_epoch,
        "log_start_offset": position.log_start_offset,
        "partition_max_bytes": 1 << 20,
    }


def state(index: int, leader: int, epoch: int) -> Partition:
    return Partition(TOPIC_ID, index, (0, 1), (0, 1), (1, 1), leader, epoch)


def check(stage: Stage) -> None:
    """Checks that each partition of the session is either still to be read, or watched by the session, and that no
    other session watches it."""
    watches = []
    for session in stage.sessions._sessions.values():
        watches.append(session.watch)
        for key in session.partitions:
            partition = stage.partitions.find(*key)
            watched = session.watch in partition.follower_waiters
            assert key in session.unread or watched
            assert watched == (session.watch._watched.get(key) is partition)
    for partition in stage.partitions:
        assert all(waiter in watches for waiter in partition.follower_waiters)
        assert len(set(map(id, partition.follower_waiters))) == len(partition.follower_waiters)


steps = st.tuples(
    st.sampled_from(["produce", "elect", "lead as before", "resign", "learn", "resume", "fetch", "wait", "hang up"]),
    st.sampled_from(INDEXES),
)


async def play(stage: Stage, history: list[tuple[str, int]]) -> None:
    stage.broker.isr_changes = SimpleNamespace(outsider_fetched=lambda partition, replica: None)
    stage.broker.image = Image()
    stage.client.listener = SimpleNamespace(name="PLAINTEXT")  # type: ignore[attr-defined]
    partitions = [stage.partitions.find("t", index) for index in INDEXES]
    epochs = dict.fromkeys(INDEXES, 1)
    follower = Follower(stage)
    waiting: Any = None
    for index in INDEXES:
        partitions[index].become_leader(state(index, 0, 1))
        follower.follow(index, 1)
    for name, index in history:
        partition = partitions[index]
        if waiting is not None and waiting.parts is not None:
            follower.hear(waiting.parts)
            waiting = None
        match name:
            case "produce" if partition.leads:
                stage.produce({index: batch_of([b"x"])})
            case "elect":
                epochs[index] += 1
                partition.become_leader(state(index, 0, epochs[index]))
            case "lead as before" if partition.leads:
                partition.become_leader(state(index, 0, epochs[index]))
            case "resign":
                epochs[index] += 1
                partition.become_follower(state(index, 1, epochs[index]))
            case "learn":
                follower.follow(index, epochs[index])
            case "resume":
                follower.resume()
            case "fetch" | "wait" if waiting is None:
                reply = follower.fetch(10_000 if name == "wait" else 0)
                if isinstance(reply, list):
                    follower.hear(reply)
                else:
                    waiting = reply
            case "hang up" if waiting is not None:
                follower.hang_up(waiting)
                waiting = None
        check(stage)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        check(stage)
    if waiting is not None:
        if waiting.parts is None:
            follower.hang_up(waiting)
        else:
            follower.hear(waiting.parts)
    for index in INDEXES:
        epochs[index] += 1
        partitions[index].become_leader(state(index, 0, epochs[index]))
        append(partitions[index].log, batch_of([b"last"]), epochs[index])
        follower.follow(index, epochs[index])
    for _ in range(3):  # gets the records, then confirms them, then gets the high watermark
        follower.hear(follower.fetch())
        check(stage)
    assert all(partition.high_watermark == partition.log.log_end_offset for partition in partitions)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(steps, max_size=40))
def test_whatever_happens_each_partition_is_read_again_or_watched(history: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        for index in INDEXES:
            (Path(folder) / str(index)).mkdir()

        wrong: list[object] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
            await play(Stage(Path(folder)), history)

        asyncio.run(main())
        assert not wrong
