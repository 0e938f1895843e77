"""The operator's reader of brokers' pages, against pages like those of a broker."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import patch

from ottla.net.http import HttpServer, Request, Response
from ottla.operator import brokers
from ottla.operator.brokers import BrokerPages
from ottla.operator.plan.roll import Report

NOTHING = {"count": 0, "partitions": []}
BOTH = {"count": 1, "partitions": ["a-0"]}


def _asked(*, knows_several: bool) -> tuple[dict[int, Report], dict[int, Report], list[str]]:
    """A broker's reports about its own stop, and about its stop while brokers 7 and 2 are stopped, too; and the queries
    that the broker got."""
    queries: list[str] = []

    async def risk(request: Request) -> Response:
        query = request.query.get("brokers", "")
        queries.append(query)
        page = {"metadata_connected": True, "risks": {"offline": BOTH if query and knows_several else NOTHING}}
        if knows_several:
            page["brokers"] = sorted(map(int, query.split(","))) if query else [3]
        return Response(200, json.dumps(page).encode())

    async def caught_up(request: Request) -> Response:
        page = {"missing": NOTHING, "offline": NOTHING, "not_ready_because": ""}
        return Response(200, json.dumps(page).encode())

    async def ask() -> tuple[dict[int, Report], dict[int, Report]]:
        server = HttpServer({("GET", "/v1/restart-risk"): risk, ("GET", "/v1/caught-up"): caught_up})
        with patch.object(brokers, "HTTP_PORT", await server.start("127.0.0.1", 0)):
            pages = BrokerPages()
            try:
                where = {3: "127.0.0.1"}
                return await pages.reports(where), await pages.together(where, [7, 2])
            finally:
                await pages.close()
                await server.stop()

    alone, together = asyncio.run(ask())
    return alone, together, queries


def test_a_broker_is_asked_for_itself_and_for_all_that_would_be_away() -> None:
    alone, together, queries = _asked(knows_several=True)
    assert queries == ["", "2,3,7"]
    assert alone[3].blocking == {}
    assert together[3].blocking == {"offline": ("a-0",)}
    assert together[3].brokers == {2, 3, 7}


def test_a_broker_of_an_image_that_only_knows_of_itself_has_said_nothing_of_several() -> None:
    alone, together, _ = _asked(knows_several=False)
    assert alone[3].blocking == {}
    assert together == {}
