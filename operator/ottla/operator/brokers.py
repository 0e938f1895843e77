"""Reads the brokers' HTTP pages, on which each broker reports the risks of its restart, and the replicas that aren't in
sync.

A broker that doesn't answer has no report, and the decisions in `plan/roll.py` wait for it. The pages of the
operator's clusters are plain.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

import aiohttp

from ottla.net.names import Address
from ottla.operator.plan.roll import Report
from ottla.operator.spec.cluster import HTTP_PORT

logger = logging.getLogger(__name__)

PAGE_S_MAX = 5.0
AT_ONCE = 20
DECIDES = "it decides"  # only the active controller's page /readyz begins with this text


class BrokerPages:
    """A client of the HTTP pages of any cluster's brokers."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()

    async def reports(self, addresses: Mapping[int, str]) -> dict[int, Report]:
        """The reports of the brokers that answer, by broker id. `addresses`: the broker's id → its pod's address."""
        answers = await asyncio.gather(*(self._report(address) for address in addresses.values()))
        return {broker: report for broker, report in zip(addresses, answers, strict=True) if report is not None}

    async def together(self, addresses: Mapping[int, str], away: Collection[int]) -> dict[int, Report]:
        """Asks each of these brokers for the risks of its stop while the brokers `away` are stopped, too. An older
        broker, which reports only on its own stop, counts as one that doesn't answer."""
        answers = await asyncio.gather(*(self._together(address, {*away, each}) for each, address in addresses.items()))
        return {broker: report for broker, report in zip(addresses, answers, strict=True) if report is not None}

    async def _together(self, address: str, brokers: Collection[int]) -> Report | None:
        found = await self._report(address, "?brokers=" + ",".join(map(str, sorted(brokers))))
        return found if found is not None and found.brokers == frozenset(brokers) else None

    async def deciding(self, addresses: Mapping[int, str]) -> dict[int, Report]:
        """Asks controllers with pods of their own whether they are the active controller. The result lacks controllers
        that don't answer.

        `addresses`: the ordinal of a controller's pod → the pod's address.
        """
        answers = await asyncio.gather(*(self._stands(address) for address in addresses.values()))
        return {number: report for number, report in zip(addresses, answers, strict=True) if report is not None}

    async def _stands(self, address: str) -> Report | None:
        async with self._turns:
            try:
                return Report(controls=(await self._text(address, "/readyz")).startswith(DECIDES))
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                logger.debug("the controller at %s doesn't answer: %s", address, error)
                return None

    async def _report(self, address: str, query: str = "") -> Report | None:
        async with self._turns:
            try:
                caught_up = await self._page(address, "/v1/caught-up")
                risk = await self._page(address, f"/v1/restart-risk{query}")
                return report(risk, caught_up)
            except (OSError, TimeoutError, aiohttp.ClientError, ValueError, KeyError) as error:
                logger.debug("the broker at %s doesn't answer: %s", address, error)
                return None

    async def _page(self, address: str, path: str) -> Any:
        return json.loads(await self._text(address, path))

    async def _text(self, address: str, path: str) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PAGE_S_MAX))
        async with self._session.get(f"http://{Address(address, HTTP_PORT)}{path}") as answer:
            answer.raise_for_status()
            return await answer.text()


def report(risk: Mapping[str, Any], caught_up: Mapping[str, Any]) -> Report:
    """The broker's report, made from its pages `/v1/restart-risk` and `/v1/caught-up`. Raises KeyError if a page lacks
    a field that it must have."""
    return Report(
        risks={kind: tuple(found["partitions"]) for kind, found in risk["risks"].items() if found["count"]},
        metadata_connected=risk["metadata_connected"],
        controls=risk.get("controls", False),
        missing=tuple(caught_up["missing"]["partitions"]),
        offline=tuple(caught_up["offline"]["partitions"]),
        not_ready_because=caught_up["not_ready_because"],
        under_replicated=risk.get("under_replicated", 0),
        revision=risk.get("metadata_revision", 0),
        without_leader=tuple(risk.get("without_leader", {}).get("partitions", ())),
        file_checksum=risk.get("file_checksum", ""),
        brokers=frozenset(risk.get("brokers", ())),
    )
