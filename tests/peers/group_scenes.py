"""Sequences of requests (scenes) of consumer groups, and Apache Kafka's recorded answers, so that tests need no Java.

`python -m tests.peers.group_scenes` starts Apache Kafka and records the answers anew. Member ids are replaced by the
names that the scenes give them.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.peers.apache_kafka import ApacheKafka
from tests.peers.wire import Wire

RECORDED = Path(__file__).resolve().parents[1] / "unit/broker/api/groups_of_apache_kafka_4_3_1.json"
SETTINGS = {"group_initial_rebalance_delay_ms": "500", "group_min_session_timeout_ms": "1000"}
TOPIC = "flights"
COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, CREATE, DELETE_GROUPS, DELETE_OFFSETS = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 42, 47,
)  # fmt: skip
ARRIVE_SECONDS = 0.25  # after this time the coordinator has a request, also one that it doesn't answer yet

Ask = Callable[[int, int, dict[str, Any]], Awaitable[Any]]
"""Asks a broker over a connection of its own: (API key, version, request) → kio's object of the answer."""


class Stage:
    """Sends the requests of scenes to a broker. `answers` has the broker's answers, each under the name that the scene
    gives to the request."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._names: dict[str, str] = {}
        self.answers: dict[str, Any] = {}

    async def hear(self, what: str, answer: Awaitable[Any]) -> Any:
        heard = await answer
        assert what not in self.answers, what
        self.answers[what] = self._plain(asdict(heard))
        return heard

    def name(self, member_id: str, name: str) -> str:
        self._names[member_id] = name
        return member_id

    def park(self, request: Awaitable[Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(request)

    def join(self, version: int, group: str, member_id: str = "", **more: Any) -> Awaitable[Any]:
        protocols = more.pop("protocols", {"range": b"a"})
        request = {
            "group_id": group,
            "session_timeout": 10_000,
            "rebalance_timeout": 15_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols.items()],
        }
        return self._ask(JOIN, version, request | more)

    def sync(
        self,
        version: int,
        group: str,
        member_id: str,
        generation: int,
        plan: dict[str, bytes] | None = None,
        **more: Any,
    ) -> Awaitable[Any]:
        request = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": name, "assignment": part} for name, part in (plan or {}).items()],
        }
        return self._ask(SYNC, version, request | more)

    def beat(self, group: str, member_id: str, generation: int, instance: str | None = None) -> Awaitable[Any]:
        request = {"group_id": group, "member_id": member_id, "generation_id": generation}
        return self._ask(HEARTBEAT, 4, request | {"group_instance_id": instance})

    def leave(self, version: int, group: str, *members: tuple[str, str | None]) -> Awaitable[Any]:
        if version < 3:
            return self._ask(LEAVE, version, {"group_id": group, "member_id": members[0][0]})
        asked = [{"member_id": member, "group_instance_id": instance, "reason": "bye"} for member, instance in members]
        return self._ask(LEAVE, version, {"group_id": group, "members": asked})

    def commit(
        self, version: int, group: str, member_id: str = "", generation: int = -1, *parts: tuple[int, str], **more: Any
    ) -> Awaitable[Any]:
        partitions = [
            {"partition_index": index, "committed_offset": 5 + index, "committed_metadata": text}
            for index, text in parts or ((0, ""),)
        ]
        topics = [{"name": more.pop("topic", TOPIC), "partitions": partitions}]
        request = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member_id}
        return self._ask(COMMIT, version, request | {"topics": topics} | more)

    def fetch(self, version: int, group: str, *indexes: int) -> Awaitable[Any]:
        topics = [{"name": TOPIC, "partition_indexes": list(indexes)}] if indexes else None
        if version < 8:
            return self._ask(FETCH, version, {"group_id": group, "topics": topics})
        return self._ask(FETCH, version, {"groups": [{"group_id": group, "topics": topics}], "require_stable": True})

    def describe(self, version: int, *groups: str, operations: bool = False) -> Awaitable[Any]:
        return self._ask(DESCRIBE, version, {"groups": list(groups), "include_authorized_operations": operations})

    def forget(self, group: str, *parts: tuple[str, int]) -> Awaitable[Any]:
        topics = [{"name": topic, "partitions": [{"partition_index": index}]} for topic, index in parts]
        return self._ask(DELETE_OFFSETS, 0, {"group_id": group, "topics": topics})

    def delete(self, *groups: str) -> Awaitable[Any]:
        return self._ask(DELETE_GROUPS, 2, {"groups_names": list(groups)})

    def list(self, version: int, states: Sequence[str] = (), types: Sequence[str] = ()) -> Awaitable[Any]:
        return self._ask(LIST, version, {"states_filter": list(states), "types_filter": list(types)})

    def _plain(self, value: Any) -> Any:
        """An answer as JSON data, with sorted lists."""
        if isinstance(value, dict):
            return {key: self._plain(inner) for key, inner in value.items() if key not in ("throttle_time", "port")}
        if isinstance(value, list | tuple):
            return sorted((self._plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            return self._names.get(value, value)
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


async def play(ask: Ask) -> dict[str, Any]:
    """Sends the requests of all scenes by `ask`. Returns the answers, each under its request's name."""
    stage = Stage(ask)
    for scene in (a_dynamic_group, static_members, old_clients, offsets):
        await scene(stage)
    return stage.answers


async def a_dynamic_group(on: Stage) -> None:
    hear, name = on.hear, on.name
    await hear("a member with an unknown id joins", on.join(9, "g", "ghost"))
    first = await on.join(9, "g")
    a = name(first.member_id, "a")
    await hear("a group with a pending member", on.describe(6, "g"))
    await hear("a pending member's heartbeat", on.beat("g", a, 0))
    await hear("a joins with its id", on.join(9, "g", a))
    await hear("the assignment is awaited", on.describe(6, "g"))
    await hear("a heartbeat meanwhile", on.beat("g", a, 1))
    await hear("a commit meanwhile", on.commit(9, "g", a, 1))
    await hear("a sync of another generation", on.sync(5, "g", a, 7))
    await hear("a sync of another protocol", on.sync(5, "g", a, 1, protocol_name="other"))
    await hear("a sync without protocol", on.sync(5, "g", a, 1, protocol_name=None))
    await hear("a syncs", on.sync(5, "g", a, 1, {a: b"plan"}))
    await hear("a stable group", on.describe(6, "g", operations=True))
    await hear("a member commits", on.commit(9, "g", a, 1))
    await hear("an administrator commits", on.commit(9, "g"))
    await hear("a stranger commits", on.commit(9, "g", "stranger", 1))
    await hear("an old generation commits", on.commit(9, "g", a, 0))
    await hear("other protocols", on.join(9, "g", protocols={"other": b""}))
    await hear("another type", on.join(9, "g", protocol_type="connect"))
    await hear("no protocols", on.join(9, "g", protocols={}))
    await hear("too short a session", on.join(9, "g", session_timeout=100))
    await hear("no group id", on.join(9, ""))
    await hear("a group with members is deleted", on.delete("g"))
    b = name((await on.join(9, "g")).member_id, "b")
    waiting = on.park(on.join(9, "g", b))
    await asyncio.sleep(ARRIVE_SECONDS)
    await hear("a rebalance, by heartbeat", on.beat("g", a, 1))
    await hear("a rebalance, by commit", on.commit(9, "g", a, 1))
    await hear("a rebalance, by sync", on.sync(5, "g", a, 1))
    await hear("a rebalancing group", on.describe(6, "g"))
    await hear("a joins again", on.join(9, "g", a))
    await hear("b joined", waiting)
    waiting = on.park(on.sync(5, "g", b, 2))
    await asyncio.sleep(ARRIVE_SECONDS)
    await hear("the leader syncs with both assignments", on.sync(5, "g", a, 2, {a: b"1", b: b"2"}))
    await hear("the follower's part", waiting)
    await hear("the follower joins again", on.join(9, "g", b))
    await hear("several leave", on.leave(5, "g", ("ghost", None), (b, None), ("", "nobody"), ("", None)))
    await hear("a joins alone", on.join(9, "g", a))
    await hear("a leaves, version 0", on.leave(0, "g", (a, None)))
    await hear("a leaves again", on.leave(0, "g", (a, None)))
    await hear("leaving nothing", on.leave(3, "nothing", ("q", None)))
    await hear("leaving nothing, version 1", on.leave(1, "nothing", ("q", None)))
    await hear("the empty group", on.describe(6, "g"))
    await hear("a heartbeat to it", on.beat("g", a, 3))
    await hear("a sync to it", on.sync(5, "g", a, 3))


async def static_members(on: Stage) -> None:
    hear, name = on.hear, on.name
    both = {"range": b"x", "rr": b"r"}
    one = on.park(on.join(9, "s", group_instance_id="i", protocols=both))
    await asyncio.sleep(ARRIVE_SECONDS)
    two = on.park(on.join(9, "s", group_instance_id="j", protocols=both))
    answers = {"i": await one, "j": await two}
    # Apache Kafka's leader is the member that joined first.
    leader, follower = ("i", "j") if answers["i"].members else ("j", "i")
    assert leader == "i"
    lead, old = name(answers[leader].member_id, "lead"), name(answers[follower].member_id, "old")
    waiting = on.park(on.sync(5, "s", old, 1, group_instance_id="j"))
    await asyncio.sleep(ARRIVE_SECONDS)
    await on.sync(5, "s", lead, 1, {lead: b"L", old: b"F"}, group_instance_id="i")
    await hear("the static follower's part", waiting)
    back = await on.join(9, "s", group_instance_id="j", protocols=both)
    new = name(back.member_id, "new")
    await hear("the follower is back", _value(back))
    await hear("and syncs", on.sync(5, "s", new, 1, group_instance_id="j"))
    await hear("the old id beats", on.beat("s", old, 1, "j"))
    await hear("the old id beats without an instance id", on.beat("s", old, 1))
    await hear("the old id joins", on.join(9, "s", old, group_instance_id="j", protocols=both))
    await hear("the old id syncs", on.sync(5, "s", old, 1, group_instance_id="j"))
    await hear("the old id commits", on.commit(9, "s", old, 1, group_instance_id="j"))
    await hear("the old id leaves", on.leave(5, "s", (old, "j")))
    await hear("an unknown instance", on.beat("s", old, 1, "z"))
    back = await on.join(8, "s", group_instance_id="i", protocols=both)
    name(back.member_id, "lead of version 8")
    await hear("the leader is back, version 8", _value(back))
    back = await on.join(9, "s", group_instance_id="i", protocols=both)
    lead = name(back.member_id, "lead of version 9")
    await hear("the leader is back, version 9", _value(back))
    await hear("the static group", on.describe(5, "s"))
    waiting = on.park(on.join(9, "s", group_instance_id="j", protocols={"rr": b"r"}))
    await asyncio.sleep(ARRIVE_SECONDS)
    await hear("after a change of protocols", on.beat("s", lead, 1, "i"))
    again = await on.join(9, "s", lead, group_instance_id="i", protocols=both)
    name((await waiting).member_id, "newest")
    await hear("the leader joins again", _value(again))
    await hear("administrators remove them", on.leave(5, "s", ("", "i"), ("", "j")))
    await hear("nobody is left", on.describe(6, "s"))


async def old_clients(on: Stage) -> None:
    joined = await on.join(0, "o", session_timeout=1_500)
    member = on.name(joined.member_id, "elder")
    await on.hear("join, version 0", _value(joined))
    await on.hear("sync, version 0", on.sync(0, "o", member, 1, {member: b"z"}))
    await on.hear("a refusal, version 5", on.join(5, "o", protocols={"zz": b""}))
    await on.hear("a stranger, version 3", on.join(3, "o", "nobody"))
    await asyncio.sleep(2.5)
    await on.hear("after the session", on.describe(0, "o"))


async def offsets(on: Stage) -> None:
    hear = on.hear
    await hear("a commit with a retention time", on.commit(2, "ret", "", -1, (0, "m"), retention_time=100_000))
    await hear("no such group, version 9", on.commit(9, "nope", "x", 3))
    await hear("no such group, version 8", on.commit(8, "nope", "x", 3))
    await hear("no such topic", on.commit(8, "ret", topic="nah"))
    await hear("no such partition", on.commit(8, "ret", "", -1, (2, ""), (9, "")))
    await hear("much metadata", on.commit(8, "ret", "", -1, (1, "x" * 4097), (2, "x" * 4096)))
    await hear("a group without a name", on.commit(8, ""))
    for version in (1, 5, 7, 8, 9):
        await hear(f"fetch, version {version}", on.fetch(version, "ret", 0, 1))
        await hear(f"fetch of an unknown group, version {version}", on.fetch(version, "zzz", 0))
        if version > 1:
            await hear(f"fetch everything, version {version}", on.fetch(version, "ret"))
    for version in (0, 4, 6):
        await hear(f"describe, version {version}", on.describe(version, "ret", "zzz", ""))
        await hear(f"operations, version {version}", on.describe(max(version, 3), "ret", "zzz", operations=True))
    for version in (0, 3, 5):
        await hear(f"list, version {version}", on.list(version))
    await hear("list by state", on.list(5, [" emPty"]))
    await hear("list by an unknown state", on.list(5, ["Foo"]))
    await hear("list by type", on.list(5, [], ["CLASSIC"]))
    await hear("list by another type", on.list(5, [], ["consumer"]))
    await hear("forget", on.forget("ret", (TOPIC, 0), (TOPIC, 9), ("nah", 0)))
    await hear("forget an unknown group's offset", on.forget("zzz", (TOPIC, 0)))
    await hear("forget without a name", on.forget(""))
    await hear("what is left", on.fetch(8, "ret"))
    await hear("delete", on.delete("ret", "zzz", "", "zzz"))
    await hear("what is left then", on.fetch(8, "ret"))
    await hear("find", on._ask(FIND, 1, {"key": "g", "key_type": 0}))
    await hear("find several", on._ask(FIND, 4, {"coordinator_keys": ["g", ""], "key_type": 0}))


async def _value(answer: Any) -> Any:
    return answer


async def asked_over_wires(bootstrap: str) -> dict[str, Any]:
    """Sends the requests of all scenes to a broker, on which the topic must exist."""

    async def ask(key: int, version: int, request: dict[str, Any]) -> Any:
        def call() -> Any:
            with Wire(bootstrap) as wire:
                return wire.call(key, version, request)

        return await asyncio.to_thread(call)

    return await play(ask)


def main() -> None:
    """Records Apache Kafka's answers."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = ApacheKafka(Path(folder) / "kafka", **SETTINGS)
        try:
            with Wire(kafka.bootstrap) as wire:
                topics = [{"name": TOPIC, "num_partitions": 3, "replication_factor": 1}]
                wire.call(CREATE, 7, {"topics": topics, "timeout": 10_000})
                while wire.call(FIND, 1, {"key": "g"}).error_code:
                    pass
                while wire.call(HEARTBEAT, 4, {"group_id": "g"}).error_code != 25:
                    pass
            answers = asyncio.run(asked_over_wires(kafka.bootstrap))
        finally:
            kafka.stop()
    lines = [f"{json.dumps(what)}: {json.dumps(answer)}" for what, answer in answers.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
