"""A controller without a broker: the process that runs if `process.roles` is `controller` alone.

It stores no records and has no listener for clients. It serves metrics and health as a broker does. Any number of
controllers may run: one is active, the others stand by. A controller has no disk. So if it finds an empty store, it
can't know whether the cluster is new or has lost its metadata store. Therefore it creates no cluster, and waits until a
broker has created one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from functools import partial
from random import SystemRandom
from typing import Any

from ottla.broker.authorizer import authorizer_of
from ottla.broker.election_counts import ElectionCounts
from ottla.broker.exposition import CONTENT_TYPE, lines
from ottla.broker.login.mechanisms import Mechanisms
from ottla.broker.login.own import connect_to_brokers
from ottla.broker.machine import now_ms
from ottla.broker.metrics import controller as metrics
from ottla.broker.page_access import PageAccess
from ottla.cli.stores import ETCD, on_etcd
from ottla.controller.quick_death import QuickDeath
from ottla.controller.runner import Controller
from ottla.metadata.cluster import find_cluster
from ottla.metadata.follower import Follower
from ottla.metadata.image import Image
from ottla.metadata.own_store import OwnStore
from ottla.metadata.patience import Patience
from ottla.metadata.store import ForeignStore, Store, StoreUnavailable
from ottla.net.http import HttpServer, Request, Response
from ottla.net.streams import connect_tcp
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

_LOOKED_AGAIN_S = 0.5
_NO_BROKERS_BELOW = -2  # the ids of processes without a broker: -2, -3, …


class ControllerProcess:
    """A candidate for controller. Its owner calls `start`, waits for `failed` or a signal, and calls `stop`."""

    def __init__(self, config: BrokerConfig, store: Store, defaults: dict[str, str]) -> None:
        self.name = f"controller-{config.node_id}"
        self.failed = asyncio.Event()
        self.elections = ElectionCounts(lambda: self.controls)
        self._config = config
        self._waits = False  # whether this process waits until a broker creates the cluster
        store = self.store = OwnStore(store, None)  # None: this process remembers no lineage from before its start
        self._follower = Follower(store)
        identity = _NO_BROKERS_BELOW - config.node_id
        session_seconds = config.get_int("broker.session.timeout.ms") / 1000
        address = reachable_address(config)
        self._controller = Controller(store, self._follower, self.name, defaults, session_seconds, identity, address)
        self._tls = TlsListeners(serves=False)
        connect = connect_to_brokers(connect_tcp, self._tls, lambda: config)
        self._watch = QuickDeath(store, self._follower, identity, config.listeners.inter_broker, connect)
        self._tasks: list[asyncio.Task[None]] = []
        authorizer = authorizer_of(config, lambda: self.image)
        self._follower.listen(authorizer.changed)
        mechanisms = Mechanisms(lambda: self.image, now_ms, SystemRandom())
        self._http = HttpServer(
            {
                ("GET", "/metrics"): self._metrics,
                ("GET", "/healthz"): self._healthz,
                ("GET", "/readyz"): self._readyz,
            },
            PageAccess(lambda: config, self._tls, mechanisms, authorizer, lambda: self.image),
        )

    @property
    def image(self) -> Image:
        """The metadata at the last revision that this process has applied."""
        return self._follower.image

    @property
    def controls(self) -> bool:
        """Whether this process is the active controller."""
        holder = self.image.controller
        return holder is not None and holder.name == self.name

    async def start(self, patience: Patience) -> None:
        """Becomes a candidate for controller. Raises ForeignStore, StoreUnavailable, GivenUp, InvalidTls, OSError."""
        await self._tls.load(self._config)
        self._follower.listen(self.elections.changed)
        self._waits = await patience.answer(partial(find_cluster, self.store)) is None
        if not self._waits:
            await patience.answer(self._follower.start)
        await self._http.start_at(self._config.get_str("ottla.http.listener"))
        self._spawn(self._end_with_the_store())
        self._spawn(self._follow())
        if self._tls.encrypted:
            self._spawn(self._tls.follow_files(lambda: self._config))

    async def _follow(self) -> None:
        if self._waits:
            logger.info("the metadata store is empty: the controller waits until a broker has created a cluster")
        while self._waits:
            await asyncio.sleep(_LOOKED_AGAIN_S)
            with suppress(StoreUnavailable):
                if await find_cluster(self.store) is not None:
                    await self._follower.start()
                    self._waits = False
        self._spawn(self._controller.run())
        if self._config.get_bool("ottla.quick.death.enable"):
            self._spawn(self._watch.run())
        await self._follower.run()

    def _spawn(self, duty: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(duty)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Gives up the lease, so that a standby controller becomes active immediately."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.stop()

    async def _end_with_the_store(self) -> None:
        raise await self.store.refused()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), ForeignStore):
            if not self.failed.is_set():
                logger.error("the controller stops: %s", error)
            self.store.refuse(error)
            self.failed.set()
        elif not task.cancelled():
            logger.error("the controller stops: %s ended", task.get_name(), exc_info=task.exception())
            self.failed.set()

    async def _metrics(self, request: Request) -> Response:
        return Response(200, self._page(), CONTENT_TYPE)

    async def _page(self) -> AsyncIterator[bytes]:
        for metric in metrics.METRICS:
            yield "".join(lines(metric.name, metric.kind, metric.doc, metric.collect(self))).encode()

    async def _healthz(self, request: Request) -> Response:
        return Response(200, b"ok\n")

    async def _readyz(self, request: Request) -> Response:
        if self.store.refusal is not None:
            return Response(503, f"{self.store.refusal}\n".encode())
        if self._waits:
            return Response(200, b"it waits for a broker that begins a cluster\n")
        return Response(200, b"it decides\n" if self.controls else b"it stands by\n")


def reachable_address(config: BrokerConfig) -> tuple[str, int]:
    """The (host, port) at which standby controllers reach this process's HTTP listener; ("", 0) if they can't.

    If the listener is on all interfaces, the host is the local address of the route to etcd. With an embedded store,
    which only processes of this machine share, it is 127.0.0.1.
    """
    host, _, port = config.get_str("ottla.http.listener").rpartition(":")
    if not port or port == "0":
        return "", 0
    if host not in ("", "0.0.0.0", "[::]"):
        return host.strip("[]"), int(port)
    if not on_etcd(config):
        return "127.0.0.1", int(port)
    etcd_host, _, etcd_port = config.get_str("ottla.metadata.store").removeprefix(ETCD).split(",")[0].rpartition(":")
    try:
        kind, _, _, _, to = socket.getaddrinfo(etcd_host.strip("[]"), int(etcd_port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(to)  # a UDP socket's connect sends no packet
            return str(probe.getsockname()[0]), int(port)
    except OSError:
        return "", 0  # standby controllers wait until this process's session ends
