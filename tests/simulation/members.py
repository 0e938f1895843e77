"""Members of a classic group: they join, are assigned partitions, and commit under their generation until it ends.

The leader of a generation assigns the partitions at random, and adds a token that no other assignment has. So the
history shows if two leaders ever assign partitions in one generation. A member reads the committed number before it
commits the next one.
"""

from __future__ import annotations

import json
from typing import Any

from ottla.protocol.errors import ErrorCode, KafkaError

from .client import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    Client,
    Unavailable,
)  # fmt: skip

TOPIC = "t"


class Member:
    """One member. It leaves and comes back now and then."""

    def __init__(self, client: Client, group: str, partitions: int, session_s: float) -> None:
        self.client = client
        self.group = group
        self.stopped = False
        self._partitions = partitions
        self._session_s = session_s
        self._coordinator = -1
        self._id = ""
        self._generation = -1

    async def run(self, pause_s: float) -> None:
        """Joins, commits, and joins again when the coordinator demands it, until stopped."""
        while not self.stopped:
            try:
                mine = await self._join()
                await self._commit_while_it_lasts(mine, pause_s)
            except Unavailable:
                self._coordinator = -1
            except KafkaError as error:
                if error.code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
                    self._id = ""
                elif error.code not in (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation):
                    self._coordinator = -1
            await self.client.pause(self.client.backoff_s)

    # ---- one generation

    async def _join(self) -> list[int]:
        """Joins. Returns this member's partitions in the new generation. Raises Unavailable, KafkaError."""
        session = {"session_timeout": int(self._session_s * 1000), "rebalance_timeout": int(self._session_s * 500)}
        protocols = {"protocol_type": "consumer", "protocols": [{"name": "lot", "metadata": b""}]}
        while True:
            request = {"group_id": self.group, "member_id": self._id, **session, **protocols}
            answer = await self._ask(JOIN_GROUP, request)
            self._id = answer.member_id or self._id
            if answer.error_code != ErrorCode.member_id_required:
                break
        self._raise(answer.error_code)
        self._generation = answer.generation_id
        return await self._assignment([member.member_id for member in answer.members], answer.leader == self._id)

    async def _assignment(self, members: list[str], leads: bool) -> list[int]:
        token = f"{self.client.name}/{self.client.random.randrange(1 << 30)}"
        assignments: dict[str, list[int]] = {member: [] for member in members} if leads else {}
        for index in range(self._partitions) if leads else ():
            assignments[self.client.random.choice(members)].append(index)
        encoded = [
            {"member_id": member, "assignment": json.dumps([token, indexes]).encode()}
            for member, indexes in assignments.items()
        ]
        begun = self.client.history.invoke(
            "sync", process=self.client.name, group=self.group, generation=self._generation, member=self._id
        )
        request = {**self._identity, "assignments": encoded}
        try:
            answer = await self._ask(SYNC_GROUP, request)
            self._raise(answer.error_code)
        except (Unavailable, KafkaError) as error:
            self.client.history.end(begun, "fail", error=str(error))
            raise
        told, mine = json.loads(bytes(answer.assignment)) if answer.assignment else ("", [])
        self.client.history.end(begun, "ok", token=told, partitions=mine)
        return [int(index) for index in mine]

    async def _commit_while_it_lasts(self, mine: list[int], pause_s: float) -> None:
        """Commits until an error ends the generation for this member, and raises that error."""
        offsets = {index: await self._committed(index) for index in mine}
        while not self.stopped:
            for index in mine:
                offsets[index] += 1
                await self._commit(index, offsets[index])
            self._raise((await self._ask(HEARTBEAT, self._identity)).error_code)
            if self.client.random.random() < 0.05:
                leaving = {"group_id": self.group, "members": [{"member_id": self._id}]}
                self._id = ""
                await self._ask(LEAVE_GROUP, leaving)
                return
            await self.client.pause(pause_s)

    async def _committed(self, index: int) -> int:
        topic = {"name": TOPIC, "partition_indexes": [index]}
        begun = self.client.history.invoke(
            "committed", process=self.client.name, group=self.group, partition=[TOPIC, index]
        )
        try:
            answer = await self._ask(OFFSET_FETCH, {"group_id": self.group, "topics": [topic], "require_stable": False})
            self._raise(answer.error_code)
            (result,) = answer.topics[0].partitions
            self._raise(result.error_code)
        except (Unavailable, KafkaError) as error:
            self.client.history.end(begun, "fail", error=str(error))
            raise
        self.client.history.end(begun, "ok", offset=result.committed_offset, by=self._coordinator)
        return int(result.committed_offset)

    async def _commit(self, index: int, offset: int) -> None:
        partition = {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1}
        request = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self._generation,
            "generation_id": self._generation,
            "member_id": self._id,
            "topics": [{"name": TOPIC, "partitions": [partition]}],
        }
        begun = self.client.history.invoke(
            "commit", process=self.client.name, group=self.group, partition=[TOPIC, index], offset=offset,
            generation=self._generation,
        )  # fmt: skip
        try:
            answer = await self._ask(OFFSET_COMMIT, request)
            (result,) = answer.topics[0].partitions
            self._raise(result.error_code)
        except Unavailable as error:
            self.client.history.end(begun, "unknown" if error.sent else "fail")
            raise
        except KafkaError as error:
            self.client.history.end(begun, "unknown", error=error.code.name)
            raise
        self.client.history.end(begun, "ok")

    # ---- requests

    @property
    def _identity(self) -> dict[str, Any]:
        return {"group_id": self.group, "generation_id": self._generation, "member_id": self._id}

    async def _ask(self, api_key: int, request: dict[str, Any]) -> Any:
        if self._coordinator < 0:
            await self.client.refreshed(TOPIC)
            answer = await self.client.to_any(FIND_COORDINATOR, {"key": self.group, "key_type": 0})
            self._raise(answer.error_code)
            self._coordinator = answer.node_id
        return await self.client.to_broker(self._coordinator, api_key, request)

    def _raise(self, code: int) -> None:
        if code:
            raise KafkaError(code)
