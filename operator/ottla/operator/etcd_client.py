"""A client of an etcd that the operator runs: asks for its members and their status, and carries out the upkeep, by
etcd's own JSON gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from ottla.operator.certificates import Identity
from ottla.operator.plan.etcd_members import Member
from ottla.operator.plan.etcd_upkeep import MemberStatus
from ottla.operator.queue import Retry, why

REQUEST_S_MAX = 5.0
DEFRAGMENT_S_MAX = 60.0


class EtcdUnreachable(Retry):
    """No member answered, or the members that answered refused the request."""


class EtcdClient:
    """A client of etcd's members at given endpoints (host:port). Unless a method says otherwise, it asks one endpoint
    after the other until one answers. Methods raise EtcdUnreachable."""

    def __init__(self, identity: Identity | None = None) -> None:
        """`identity`: what the client needs for TLS; None where etcd has no TLS."""
        self._scheme = "http" if identity is None else "https"
        self._tls: dict[str, Any] = {}
        if identity is not None:
            self._tls = {"ssl": identity.context(), "server_hostname": identity.server_name}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()

    async def members(self, endpoints: Sequence[str]) -> list[Member]:
        """The list of members that a majority agrees on. All endpoints are asked in parallel, so that the error
        comes after one time-out if none answers."""
        path, body = "/v3/cluster/member/list", {"linearizable": True}
        asked = [asyncio.ensure_future(self._ask([endpoint], path, body)) for endpoint in endpoints]
        answer = await _first(asked)
        return [
            Member(str(member["ID"]), member.get("name", ""), (member.get("peerURLs") or [""])[0])
            for member in answer.get("members", ())
        ]

    async def add(self, endpoints: Sequence[str], peer_url: str) -> None:
        """Adds a member to the list."""
        await self._ask(endpoints, "/v3/cluster/member/add", {"peerURLs": [peer_url]})

    async def remove(self, endpoints: Sequence[str], member: Member) -> None:
        """Removes a member from the list."""
        await self._ask(endpoints, "/v3/cluster/member/remove", {"ID": member.id})

    async def status(self, endpoint: str) -> MemberStatus:
        """The status of one member, as the member itself reports it."""
        answer = await self._ask([endpoint], "/v3/maintenance/status", {})
        return MemberStatus(
            leads=answer.get("leader") == answer["header"]["member_id"],
            size_bytes=int(answer.get("dbSize", 0)),
            used_bytes=int(answer.get("dbSizeInUse", 0)),
            version=answer.get("version", ""),
            revision=int(answer["header"].get("revision", 0)),
        )

    async def alarms(self, endpoints: Sequence[str]) -> list[dict[str, Any]]:
        """The alarms that are raised, in etcd's form (memberID, alarm)."""
        answer = await self._ask(endpoints, "/v3/maintenance/alarm", {"action": "GET"})
        return list(answer.get("alarms", ()))

    async def disarm(self, endpoints: Sequence[str], alarm: dict[str, Any]) -> None:
        """Disarms an alarm."""
        await self._ask(endpoints, "/v3/maintenance/alarm", {**alarm, "action": "DEACTIVATE"})

    async def compact(self, endpoints: Sequence[str], revision: int) -> None:
        """Compacts the history before a revision."""
        await self._ask(endpoints, "/v3/kv/compaction", {"revision": str(revision)})

    async def defragment(self, endpoint: str) -> None:
        """Defragments a member's database, so that its file has no free pages. Meanwhile the member doesn't answer."""
        await self._ask([endpoint], "/v3/maintenance/defragment", {}, DEFRAGMENT_S_MAX)

    async def _ask(
        self, endpoints: Sequence[str], path: str, body: dict[str, Any], seconds_max: float = REQUEST_S_MAX
    ) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        problem = "no member has a pod that could be asked"
        for endpoint in endpoints:
            try:
                timeout = aiohttp.ClientTimeout(total=seconds_max)
                async with self._session.post(
                    f"{self._scheme}://{endpoint}{path}", json=body, timeout=timeout, **self._tls
                ) as answer:
                    document: dict[str, Any] = await answer.json(content_type=None)
                    if answer.status == 200:
                        return document
                    problem = str(document.get("message") or document.get("error") or answer.status)
            except (OSError, TimeoutError, aiohttp.ClientError, ValueError) as error:
                problem = why(error)
        raise EtcdUnreachable(f"etcd doesn't answer: {problem}")


async def _first(asked: Sequence[asyncio.Future[dict[str, Any]]]) -> dict[str, Any]:
    """The answer that comes first; the other requests are cancelled. Raises EtcdUnreachable if no member answers."""
    problem = EtcdUnreachable("etcd doesn't answer: no member has a pod that could be asked")
    try:
        for answer in asyncio.as_completed(asked):
            try:
                return await answer
            except EtcdUnreachable as error:
                problem = error
        raise problem
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
