"""What do idle groups cost, and what does a rebalance cost?

*Idle*: 1,000 librdkafka consumers with their defaults in 100 groups, ten to a group; each consumer has one empty
partition. The consumers send heartbeats, and Fetch requests that wait for records; they have no offsets to commit. They
run in processes of their own, against one broker at a time.

*Rebalancing*: one group of 200 members. This process sends the members' requests itself, because no client reports when
its last JoinGroup was sent. The group's leader joins again, and then all other members. The measured figures are the
broker's CPU for one rebalance, and the time from the sending of the last JoinGroup to the last answer to SyncGroup.
"""

from __future__ import annotations

import multiprocessing
import random
import struct
import time
from contextlib import ExitStack
from multiprocessing.synchronize import Event, Semaphore

from confluent_kafka import Consumer
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from bench.pair import Peer, Plan, create_topic, measured, pair
from bench.table import Row, at_most
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response, write_request
from tests.peers.wire import Wire

GROUPS = 100
MEMBERS = 10  # per group
MEMBERS_REBALANCING = 200
REBALANCES = 20
WARMING = 200  # rebalances before the measured ones, in which Java's virtual machine compiles hot code
FIND_COORDINATOR = 10
JOIN_GROUP, JOIN_GROUP_VERSION = 11, 5
SYNC_GROUP, SYNC_GROUP_VERSION = 14, 3
HEARTBEAT, HEARTBEAT_VERSION = 12, 3
_PROCESSES = 4
_WINDOW_S = 10.0
_POLL_S = 5.0
_PATIENCE_S = 180.0
# A valid subscription: Kafka parses it, and never answers a JoinGroup whose subscription it can't parse.
_SUBSCRIPTION = ConsumerProtocolSubscription(topics=["idle"], user_data=b"x" * 64).encode(version=0)
_ASSIGNMENT = b"y" * 60
# A JoinGroup answer's error code and generation, which follow the correlation id and the throttle time.
_JOINED, _JOINED_AT = struct.Struct(">hi"), 8
_GENERATION = struct.Struct(">i")


def run(plan: Plan) -> list[Row]:
    """Rows for the CPU of idle groups, and for the CPU and the time of a rebalance."""
    with pair() as brokers:
        rows = [_idle(list(brokers.brokers.items()), plan)]
        cpu = Row(f"a group of {MEMBERS_REBALANCING} rebalances", "ms broker CPU", at_most(1))
        wall = Row(f"a group of {MEMBERS_REBALANCING}, last JoinGroup to last SyncGroup answer", "ms", at_most(0.7))
        with ExitStack() as ends:
            groups = {name: ends.enter_context(_Group(broker)) for name, broker in brokers.brokers.items()}
            warm: set[str] = set()

            def work(which: str, broker: Peer) -> None:
                group = groups[which]
                seconds = []
                with measured(broker) as spent:
                    for _ in range(REBALANCES if which in warm else WARMING):
                        seconds.append(group.rebalance())
                if which not in warm:
                    warm.add(which)
                    return
                cpu.add(which, spent.broker_cpu / REBALANCES * 1000)
                wall.add(which, sorted(seconds)[REBALANCES // 2] * 1000)

            brokers.alternate(plan, work, plan.rounds + 1)
        return [*rows, cpu, wall]


# ---- idle groups


def _idle(brokers: list[tuple[str, Peer]], plan: Plan) -> Row:
    groups = plan.scaled(GROUPS)
    row = Row(f"{groups * MEMBERS:,} idle consumers in {groups} groups", "broker CPU, % of a core", at_most(1))
    context = multiprocessing.get_context("spawn")
    for which, broker in brokers:
        create_topic(broker.bootstrap, "idle", MEMBERS)
        stop = context.Event()
        ready = context.Semaphore(0)
        shares = [range(start, groups, _PROCESSES) for start in range(_PROCESSES)]
        clients = [
            context.Process(target=_consume, args=(broker.bootstrap, share, ready, stop)) for share in shares if share
        ]
        for client in clients:
            client.start()
        try:
            for _ in clients:
                if not ready.acquire(timeout=_PATIENCE_S):
                    raise RuntimeError("not every consumer has its partition")
            time.sleep(_WINDOW_S)
            for _ in range(plan.rounds):
                with measured(broker) as spent:
                    time.sleep(_WINDOW_S)
                row.add(which, spent.broker_cpu / spent.wall * 100)
        finally:
            stop.set()
            for client in clients:
                client.join(_PATIENCE_S)
                client.kill()  # a client that hangs would keep this process from ending
                client.join()
    return row


def _consume(bootstrap: str, groups: range, ready: Semaphore, stop: Event) -> None:
    """Runs the members of these groups until `stop`. `ready` is released once each member has a partition."""
    consumers = [
        Consumer({"bootstrap.servers": bootstrap, "log_level": 0, "group.id": f"idle-{group}"})
        for group in groups
        for _ in range(MEMBERS)
    ]
    for consumer in consumers:
        consumer.subscribe(["idle"])
    said = False
    while not stop.wait(_POLL_S if said else 0.1):
        for consumer in consumers:
            consumer.poll(0)
        if not said and all(len(consumer.assignment()) == 1 for consumer in consumers):
            ready.release()
            said = True
    for consumer in consumers:
        consumer.close()


# ---- one group that rebalances


class _Group:
    """A classic group whose members are connections of this thread. The first member to join is the group's leader."""

    def __init__(self, broker: Peer) -> None:
        self._wires = [Wire(broker.bootstrap, _PATIENCE_S) for _ in range(MEMBERS_REBALANCING)]
        self._names: list[str] = []
        self._generation = -1
        self._order = random.Random(1)
        self._read_order = list(range(MEMBERS_REBALANCING))
        for wire in self._wires:
            self._names.append(_name_given(wire))
        self._joins = [write_request(JOIN_GROUP, JOIN_GROUP_VERSION, _join(name)) for name in self._names]
        for wire, join in zip(self._wires, self._joins, strict=True):
            wire.ask(JOIN_GROUP, JOIN_GROUP_VERSION, join)
        joined = [wire.receive() for wire in self._wires]
        self._leader = str(read_response(JOIN_GROUP, JOIN_GROUP_VERSION, joined[0], 4).leader)  # in each generation
        self._syncs = [self._sync_request(name) for name in self._names]
        self._sync(joined)

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.socket.close()

    def rebalance(self) -> float:
        """Lets all members join again. Returns the seconds from the last JoinGroup to the end of the rebalance.

        The leader's JoinGroup is sent first, because it begins the rebalance: until then, another member's JoinGroup is
        answered with the present generation.
        """
        leader = self._names.index(self._leader)
        others = [member for member in range(MEMBERS_REBALANCING) if member != leader]
        self._order.shuffle(others)  # real members join again at their next heartbeat, in no fixed order
        self._order.shuffle(self._read_order)
        self._wires[leader].ask(JOIN_GROUP, JOIN_GROUP_VERSION, self._joins[leader])
        while not self._rebalances(others[0]):
            time.sleep(0.001)
        for member in others:
            began = time.perf_counter()
            self._wires[member].ask(JOIN_GROUP, JOIN_GROUP_VERSION, self._joins[member])
        return self._sync(self._answers()) - began

    def _rebalances(self, member: int) -> bool:
        beat = {"group_id": "one", "generation_id": self._generation, "member_id": self._names[member]}
        error = self._wires[member].call(HEARTBEAT, HEARTBEAT_VERSION, beat).error_code
        return bool(error == ErrorCode.rebalance_in_progress)

    def _answers(self) -> list[bytes]:
        """The next answer to each member, read in a random order.

        A fixed order would favour one broker. If a broker sends the answers in the order in which this process reads
        them, each answer wakes this process, and the figures include these wake-ups. Kafka sends in the order of a hash
        map.
        """
        frames = {member: self._wires[member].receive() for member in self._read_order}
        return [frames[member] for member in range(MEMBERS_REBALANCING)]

    def _sync(self, joined: list[bytes]) -> float:
        """Sends each member's SyncGroup and reads all answers. Returns the time of the last answer.

        During the measured time the client only reads each JoinGroup answer's error code and generation, and writes the
        generation into the SyncGroup. It builds the requests before that time, and parses the SyncGroup answers after
        it.
        """
        _, self._generation = _JOINED.unpack_from(joined[0], _JOINED_AT)
        for wire, sync, frame in zip(self._wires, self._syncs, joined, strict=True):
            if _JOINED.unpack_from(frame, _JOINED_AT) != (ErrorCode.none, self._generation):
                raise RuntimeError(
                    f"JoinGroup is answered by {read_response(JOIN_GROUP, JOIN_GROUP_VERSION, frame, 4)}"
                )
            wire.ask(SYNC_GROUP, SYNC_GROUP_VERSION, _GENERATION.pack(self._generation).join(sync))
        frames = self._answers()
        ended = time.perf_counter()
        for frame in frames:
            answer = read_response(SYNC_GROUP, SYNC_GROUP_VERSION, frame, 4)
            if answer.error_code or answer.assignment != _ASSIGNMENT:
                raise RuntimeError(f"SyncGroup is answered by {answer.error_code!r}")
        return ended

    def _sync_request(self, name: str) -> tuple[bytes, bytes]:
        """A member's SyncGroup request as two parts: the bytes before its generation, and the bytes after it."""
        everybody = [{"member_id": member, "assignment": _ASSIGNMENT} for member in self._names]
        body = {
            "group_id": "one",
            "generation_id": 0,
            "member_id": name,
            "assignments": everybody if name == self._leader else [],
        }
        request = write_request(SYNC_GROUP, SYNC_GROUP_VERSION, body)
        start = len("one") + 2
        return request[:start], request[start + _GENERATION.size :]


def _name_given(wire: Wire) -> str:
    """A new member id from the group's coordinator. Asks until the coordinator is ready: the first FindCoordinator
    creates the offsets topic. Raises RuntimeError if that takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        wire.call(FIND_COORDINATOR, 2, {"key": "one", "key_type": 0})
        answer = wire.call(JOIN_GROUP, JOIN_GROUP_VERSION, _join(""))
        if answer.error_code == ErrorCode.member_id_required:
            return str(answer.member_id)
        if time.monotonic() > deadline:
            raise RuntimeError(f"JoinGroup is answered by {answer.error_code!r}")
        time.sleep(0.1)


def _join(member_id: str) -> dict[str, object]:
    return {
        "group_id": "one",
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
    }
