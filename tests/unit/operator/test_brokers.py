"""The operator's reader of brokers' pages, against pages like those of a broker."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from ottla.net.http import HttpServer, Request, Response
from ottla.operator import brokers, certificates
from ottla.operator.brokers import BrokerPages, PageAt, pages_of
from ottla.operator.certificates import SERVER, Identity
from ottla.operator.plan.roll import Report

NOW = datetime.now(UTC)
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
                where = {3: PageAt("127.0.0.1")}
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


class _Door:
    """Lets in whoever shows a certificate of this authority, over TLS."""

    def __init__(self, authority: certificates.Secret) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority["tls.crt"].decode())
        pair = certificates.issued(authority, "k-brokers", NOW, hosts=["k-brokers.shop.svc"], purposes=(SERVER,))
        certificates.loaded_into(self._context, pair)
        self._context.verify_mode = ssl.CERT_OPTIONAL

    def context(self) -> ssl.SSLContext:
        return self._context

    async def refusal(self, request: Request) -> Response | None:
        return None if request.certificate is not None else Response(403, b"a certificate is required")


def _identity(authority: certificates.Secret) -> Identity:
    pair = certificates.issued(authority, "k-operator", NOW)
    return Identity(authority["tls.crt"], pair.certificate, pair.key, "k-brokers.shop.svc")


def test_encrypted_pages_are_read_with_the_operators_certificate_and_no_other_server_is_believed() -> None:
    authority, another = (certificates.authority("k-cluster-ca", NOW) for _ in "ab")

    async def decides(_: Request) -> Response:
        return Response(200, b"it decides\n")

    async def ask() -> dict[int, Report]:
        server = HttpServer({("GET", "/readyz"): decides}, _Door(authority))
        with patch.object(brokers, "HTTP_PORT", await server.start("127.0.0.1", 0)):
            pages = BrokerPages()
            where = {
                0: PageAt("127.0.0.1", _identity(authority)),
                1: PageAt("127.0.0.1", _identity(another)),
                2: PageAt("127.0.0.1", replace(_identity(authority), server_name="another.svc")),
                3: PageAt("127.0.0.1"),
            }
            try:
                return await pages.deciding(where)
            finally:
                await pages.close()
                await server.stop()

    assert asyncio.run(ask()) == {0: Report(controls=True)}


def test_each_pod_says_how_its_pages_are_read() -> None:
    def pod(name: str, **annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "annotations": annotations}, "status": {"podIP": f"ip-{name}"}}

    pods = {0: pod("k-broker-0"), 1: pod("k-broker-1", **{"ottla.dev/pages": "https"})}
    identity = _identity(certificates.authority("k-cluster-ca", NOW))
    assert pages_of(pods, identity) == {0: PageAt("ip-k-broker-0"), 1: PageAt("ip-k-broker-1", identity)}
    assert pages_of(pods, None) == {0: PageAt("ip-k-broker-0")}, "without its certificate, it can't read encrypted ones"
