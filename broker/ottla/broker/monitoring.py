"""A broker's pages over HTTP: its metrics, whether it is alive, whether it is ready, and whether it may be restarted.

Alive (`/healthz`) means only that the event loop runs, which any HTTP response proves. Ready (`/readyz`) means
registered, recovered and serving. Ready doesn't mean that replicas are caught up or that the metadata store can be
reached. `page_access.py` decides who may read the other pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Protocol

from ottla.broker import restart_pages
from ottla.broker.exposition import CONTENT_TYPE, lines
from ottla.broker.metrics import catalogue
from ottla.broker.metrics.catalogue import METRICS
from ottla.broker.page_access import PageAccess
from ottla.broker.ports import WithConfig, WithFollower, WithReadiness, WithReplicas, WithStore
from ottla.net.http import HttpServer, Request, Response

TURN_SECONDS = 0.002  # how long a page of metrics may block the event loop at a time


class Source(catalogue.Source, WithConfig, WithFollower, WithReadiness, WithReplicas, WithStore, Protocol):
    """The parts of a broker that its pages show."""


class Monitoring:
    """The HTTP server of a broker's pages. It is started before the logs are recovered, so that recovery can be
    watched, and stopped last."""

    def __init__(self, broker: Source, access: PageAccess) -> None:
        restart = restart_pages.RestartPages(broker)
        self.http = HttpServer(
            {
                ("GET", "/metrics"): self._metrics,
                ("GET", "/healthz"): self._healthz,
                ("GET", "/readyz"): self._readyz,
                ("GET", "/v1/restart-risk"): restart.restart_risk,
                ("GET", "/v1/caught-up"): restart.caught_up,
            },
            access,
        )
        self._broker = broker

    async def start(self) -> None:
        """Begins to measure the event loop's lag and to count elections, and opens `ottla.http.listener` where it is
        set. Raises OSError."""
        self._broker.loop_lag.start()
        self._broker.follower.listen(self._broker.elections.changed)
        await self.http.start_at(self._broker.config.get_str("ottla.http.listener"))

    async def stop(self) -> None:
        """Closes the HTTP listener, and ends the measuring of the event loop's lag."""
        await self.http.stop()
        self._broker.loop_lag.stop()

    async def _metrics(self, request: Request) -> Response:
        return Response(200, render(self._broker), CONTENT_TYPE)

    async def _healthz(self, request: Request) -> Response:
        return Response(200, b"ok\n")

    async def _readyz(self, request: Request) -> Response:
        missing = self._broker.readiness.missing
        return Response(503 if missing else 200, f"{missing or 'ready'}\n".encode())


async def render(broker: catalogue.Source) -> AsyncIterator[bytes]:
    """The page of metrics in pieces. Between two pieces the event loop serves other work."""
    piece: list[str] = []
    turn_ends = perf_counter() + TURN_SECONDS
    for metric in METRICS:
        for line in lines(metric.name, metric.kind, metric.doc, metric.collect(broker)):
            piece.append(line)
            if perf_counter() > turn_ends:
                yield "".join(piece).encode()
                piece.clear()
                await asyncio.sleep(0)
                turn_ends = perf_counter() + TURN_SECONDS
    yield "".join(piece).encode()
