"""The two pages for a person or program that restarts brokers: `GET /v1/restart-risk` before a restart, `GET
/v1/caught-up` after it.

The first page is about the broker that serves it, or about the brokers that `?brokers=1,2` names, all stopped together:
any broker can answer, because each has the metadata of the whole cluster. Both pages answer 200 with JSON whether a
restart is safe or not, so that another status means "no answer"; 400 is for a query that can't be read.
`restart_risk.py` works out the answers; this module collects them, with pauses for the event loop, and writes the JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Set
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker import ports
from ottla.broker.restart_risk import Held, Risk, in_sync, replicas_of, risk, without_leader
from ottla.metadata import keys
from ottla.metadata.store import StoreUnavailable
from ottla.net.http import Request, Response

if TYPE_CHECKING:
    from ottla.metadata.image import Image

JSON = "application/json"
TURN_SECONDS = 0.002  # how long a page may block the event loop at a time
STORE_SECONDS_MAX = 2.0
BROKERS_MAX = 1000  # the most brokers that a query may name


class Source(
    ports.WithConfig,
    ports.WithControls,
    ports.WithId,
    ports.WithImage,
    ports.WithPartitions,
    ports.WithReadiness,
    ports.WithReplicas,
    ports.WithStore,
    Protocol,
):
    """The parts of a broker that the two pages read."""


class RestartPages:
    """The two pages of one broker."""

    def __init__(self, broker: Source) -> None:
        self._broker = broker

    async def restart_risk(self, request: Request) -> Response:
        """The page of the risks if this broker, or all brokers that the query names, stopped now. No stop is safe while
        the metadata store can't be reached, because no leader can be elected."""
        broker, image = self._broker, self._broker.image
        try:
            stopping = _named_in(request.query.get("brokers", str(broker.id)))
        except ValueError as error:
            return Response(400, f"brokers: {error}\n".encode())
        found: dict[Risk, list[str]] = {kind: [] for kind in Risk}
        count = leads = under_replicated = 0
        async for held in _held(image, stopping):
            count += 1
            if held.state.leader in stopping:
                leads += 1
                under_replicated += len(held.state.isr) < len(held.state.replicas)
            rules = broker.replicas.rules_of(held.topic)
            kind = risk(image, stopping, held, rules.min_isr, unclean=rules.unclean)
            if kind is not None and not self._is_broken(held, stopping):
                found[kind].append(held.name)
        connected = await self._store_answers()
        return _json(
            {
                "broker": broker.id,
                "brokers": sorted(stopping),
                "safe": connected and not any(found.values()),
                "metadata_connected": connected,
                "metadata_revision": image.revision,
                "controls": broker.controls,
                "file_checksum": broker.config.file_checksum,
                "replicas": count,
                "leads": leads,
                "under_replicated": under_replicated,
                "without_leader": _named(without_leader(image)),
                "risks": {kind.value: _named(names) for kind, names in found.items()},
            }
        )

    def _is_broken(self, held: Held, stopping: Set[int]) -> bool:
        """Whether a stop makes nothing worse for the partition: of the stopping brokers, only this one has a replica of
        the partition, and this replica is offline already. If another stopping broker has a replica, the result is
        False, because this broker doesn't know whether that replica is offline."""
        return stopping & set(held.state.replicas) == {self._broker.id} and self._is_offline(held)

    def _is_offline(self, held: Held) -> bool:
        partition = self._broker.partitions.get_by_id(held.state.topic_id, held.state.index)
        return partition is None or partition.offline

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX):
                await self._broker.store.read(keys.cluster.key)
        except (StoreUnavailable, TimeoutError):
            return False
        return True

    async def caught_up(self, request: Request) -> Response:
        """The page that says how many of this broker's replicas are in sync, which replicas aren't, and which are
        offline."""
        broker, image = self._broker, self._broker.image
        count = 0
        missing, offline = [], []
        async for held in _held(image, {broker.id}):
            count += 1
            if not in_sync(image, broker.id, held.state):
                missing.append(held.name)
            if self._is_offline(held):
                offline.append(held.name)
        because = broker.readiness.missing
        return _json(
            {
                "broker": broker.id,
                "caught_up": not (missing or offline or because),
                "not_ready_because": because,
                "metadata_revision": image.revision,
                "replicas": count,
                "in_sync": count - len(missing),
                "share": round((count - len(missing)) / count, 6) if count else 1.0,
                "missing": _named(missing),
                "offline": _named(offline),
            }
        )


async def _held(image: Image, brokers: Set[int]) -> AsyncIterator[Held]:
    """Yields the partitions of which these brokers are to have replicas, with pauses in which the event loop serves
    other work."""
    turn_ends = perf_counter() + TURN_SECONDS
    for held in replicas_of(image, brokers):
        if held is not None:
            yield held
        if perf_counter() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = perf_counter() + TURN_SECONDS


def _named_in(query: str) -> frozenset[int]:
    """The broker ids in a query like 1,2. Raises ValueError."""
    parts = query.split(",")
    if len(parts) > BROKERS_MAX or not all(part.isascii() and part.isdecimal() and len(part) < 11 for part in parts):
        raise ValueError(f"name at most {BROKERS_MAX} brokers by their ids, as in brokers=1,2")
    return frozenset(map(int, parts))


def _named(names: list[str]) -> dict[str, Any]:
    return {"count": len(names), "partitions": sorted(names)}


def _json(document: dict[str, Any]) -> Response:
    return Response(200, (json.dumps(document, indent=2) + "\n").encode(), JSON)
