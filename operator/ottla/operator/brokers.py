"""Reads the brokers' HTTP pages, on which each broker reports the risks of its restart, and the replicas that aren't in
sync.

A broker that doesn't answer has no report, and the decisions in `plan/roll.py` wait for it. Where the links between
brokers are encrypted, so are the pages, and the operator shows its certificate. While a cluster changes from one to the
other, each pod says how its pages are read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import aiohttp

from ottla.net.names import Address
from ottla.operator.certificates import Identity
from ottla.operator.objects import Object, annotation
from ottla.operator.plan import names
from ottla.operator.plan.observed import addresses
from ottla.operator.plan.roll import Report
from ottla.operator.spec.cluster import HTTP_PORT

logger = logging.getLogger(__name__)

PAGE_S_MAX = 5.0
AT_ONCE = 20
DECIDES = "it decides"  # only the active controller's page /readyz begins with this text


class PageAt(NamedTuple):
    """Where the pages of one pod are. `identity`: what TLS needs; None for plain pages."""

    host: str
    identity: Identity | None = None


def encrypted(pod: Object) -> bool:
    """Whether a pod serves its pages over TLS."""
    return annotation(pod, names.PAGES) == "https"


def pages_of(pods: Mapping[int, Object], identity: Identity | None) -> dict[int, PageAt]:
    """Where the pages of the pods are that run. Without an `identity`, encrypted pages can't be read, and are left
    out."""
    return {
        number: PageAt(host, identity if encrypted(pods[number]) else None)
        for number, host in addresses(pods).items()
        if identity is not None or not encrypted(pods[number])
    }


@lru_cache(maxsize=256)
def _context(identity: Identity) -> ssl.SSLContext:
    return identity.context()


class BrokerPages:
    """A client of the HTTP pages of any cluster's brokers."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()

    async def reports(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        """The reports of the brokers that answer, by broker id. `pages`: the broker's id → where its pages are."""
        answers = await asyncio.gather(*(self._report(at) for at in pages.values()))
        return {broker: report for broker, report in zip(pages, answers, strict=True) if report is not None}

    async def together(self, pages: Mapping[int, PageAt], away: Collection[int]) -> dict[int, Report]:
        """Asks each of these brokers for the risks of its stop while the brokers `away` are stopped, too. An older
        broker, which reports only on its own stop, counts as one that doesn't answer."""
        answers = await asyncio.gather(*(self._together(at, {*away, each}) for each, at in pages.items()))
        return {broker: report for broker, report in zip(pages, answers, strict=True) if report is not None}

    async def _together(self, at: PageAt, brokers: Collection[int]) -> Report | None:
        found = await self._report(at, "?brokers=" + ",".join(map(str, sorted(brokers))))
        return found if found is not None and found.brokers == frozenset(brokers) else None

    async def deciding(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        """Asks controllers with pods of their own whether they are the active controller. The result lacks controllers
        that don't answer.

        `pages`: the ordinal of a controller's pod → where its pages are.
        """
        answers = await asyncio.gather(*(self._stands(at) for at in pages.values()))
        return {number: report for number, report in zip(pages, answers, strict=True) if report is not None}

    async def _stands(self, at: PageAt) -> Report | None:
        async with self._turns:
            try:
                return Report(controls=(await self._text(at, "/readyz")).startswith(DECIDES))
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                logger.debug("the controller at %s doesn't answer: %s", at.host, error)
                return None

    async def _report(self, at: PageAt, query: str = "") -> Report | None:
        async with self._turns:
            try:
                caught_up = await self._page(at, "/v1/caught-up")
                risk = await self._page(at, f"/v1/restart-risk{query}")
                return report(risk, caught_up)
            except (OSError, TimeoutError, aiohttp.ClientError, ValueError, KeyError) as error:
                logger.debug("the broker at %s doesn't answer: %s", at.host, error)
                return None

    async def _page(self, at: PageAt, path: str) -> Any:
        return json.loads(await self._text(at, path))

    async def _text(self, at: PageAt, path: str) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PAGE_S_MAX))
        scheme, tls = "http", dict[str, Any]()
        if (identity := at.identity) is not None:
            scheme, tls = "https", {"ssl": _context(identity), "server_hostname": identity.server_name}
        async with self._session.get(f"{scheme}://{Address(at.host, HTTP_PORT)}{path}", **tls) as answer:
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
