"""Unmodified brokers and controllers as processes of a simulated world: their starts, stops and deaths.

A node is a host with a disk. Its process runs the same code as `ottla.cli.server`: a broker that is also a candidate
for controller. A process that ends by itself is started again after a second, as by Kubernetes.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.broker.log.compaction_child import Job, Result, compact
from ottla.broker.log.compactor import CompactionFailed
from ottla.broker.machine import Machine
from ottla.broker.node import Broker
from ottla.broker.partition import Partition
from ottla.cli.server import stand_for_controller
from ottla.metadata.patience import GivenUp, Patience
from ottla.metadata.registration import NodeIdTaken
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import LeaseExpired, StoreUnavailable, UnknownOutcome
from ottla.settings.config import BrokerConfig

from .disk import SimulatedDisk
from .loop import Process, SimulationLoop
from .machine import Descriptors, InlineExecutor, LoopThreads, TurnClock
from .network import Network, Stream, connect
from .store import SimulatedStore, StoreServer

if TYPE_CHECKING:
    from .history import History

PORT = 9092
EPOCH_MS = 1_700_000_000_000
RESTART_S = 1.0

logger = logging.getLogger(__name__)


class Node:
    """One host, with a disk that keeps its content from process to process."""

    def __init__(self, world: World, node_id: int, settings: dict[str, str]) -> None:
        self.world = world
        self.id = node_id
        self.host = f"broker-{node_id}"
        self.settings = settings
        self.clock_ms = 0  # the error of the wall clock
        self.power_losses = 0
        self.disk = SimulatedDisk(world.random, self.now_ms, world.descriptors)
        self.disk.make_directory("/data")  # the mount point of the volume
        self.disk.fsync_directory("/")
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.store: SimulatedStore | None = None
        self.serving = False
        self.wanted = False  # whether the process is started again when it ends
        self.stopping = False
        self._stopping: asyncio.Event | None = None
        self._ended: asyncio.Event = asyncio.Event()

    def now_ms(self) -> int:
        """The host's wall clock."""
        return EPOCH_MS + int(self.world.loop.time() * 1000) + self.clock_ms

    @property
    def running(self) -> bool:
        """Whether a process exists, also one that is still starting."""
        return self.process is not None

    # ---- life and death

    def start(self) -> None:
        """Starts a process."""
        assert self.process is None
        self.wanted = True
        self.world.network.power_is_back(self.host)
        process = self.process = Process(f"{self.host}.{self.world.next_incarnation()}", self.host)
        self.world.processes.append(process)
        self._ended.clear()
        self.world.loop.create_task(self._main(process), context=process.context, name=self.host)

    def kill(self) -> None:
        """Kills the process as kill -9 does: no step of it runs any more; the page cache stays."""
        self._dies()
        self.disk.process_died()

    def lose_power(self) -> None:
        """Cuts the host's power: unsynced data is lost, and the peers' connections stay open."""
        self.power_losses += 1
        self.world.losing_power(self)
        if self.process is not None:
            self.world.network.lost_power(self.process)
        self._dies()
        self.disk.lose_power()

    def kill_after(self, steps: int, *, power: bool = False) -> None:
        """Kills the process after `steps` further steps, which may be in the middle of an operation."""
        process = self.process
        if process is not None:
            process.fuse = steps
            process.burnt = self.lose_power if power else self.kill
            self.wanted = False

    async def stop(self) -> None:
        """Stops the process as SIGTERM does, and waits for its end."""
        self.wanted = False
        self.stopping = self.process is not None
        if self._stopping is not None:
            self._stopping.set()
        if self.process is not None:
            await self._ended.wait()

    def pause(self) -> None:
        """Pauses the process, as SIGSTOP does."""
        if self.process is not None:
            self.process.paused = True

    def resume(self) -> None:
        """Lets the process go on, as SIGCONT does."""
        if self.process is not None and self.process.paused:
            self.world.loop.resume(self.process)

    def _dies(self) -> None:
        process, self.process = self.process, None
        self.wanted = False
        if process is None:
            return
        process.dead = True
        self.world.network.died(process)
        self._left()

    def _left(self) -> None:
        self.world.process_left(self)
        if self.store is not None:
            self.world.store.disconnected(self.store)
        self.broker = self.store = None
        self.serving = self.stopping = False
        self._ended.set()

    async def _main(self, process: Process) -> None:
        """Runs the process, and handles its errors as `ottla.cli.server` does."""
        world = self.world
        try:
            await self._serve()
        except (GivenUp, StoreUnavailable, UnknownOutcome, LeaseExpired, OSError) as error:
            world.note(f"{process} ended: {error!r}")
        except NodeIdTaken as error:  # an error: a host has one process at a time, so the id's holder is dead
            world.errors.append(f"{process} ended: {error}")
        except Exception:
            world.errors.append(f"{process} ended:\n{traceback.format_exc()}")
        world.loop.in_world(0.0, self._exited, process)

    async def _serve(self) -> None:
        world = self.world
        self._stopping = asyncio.Event()
        store = self.store = world.store.connect(self.host)
        store.cut = world.is_cut_off(self)
        config = BrokerConfig.from_sources("", self.settings, {})

        async def open_socket(host: str, port: int, limits: object) -> Any:
            return world.network.listen(process, self.host, port)

        async def connect_to(host: str, port: int) -> Stream:
            return await connect(world.network, host, port)

        process = self.process
        assert process is not None
        broker = Broker(
            config,
            store,
            Machine(
                self.now_ms,
                world.random,
                self.disk,
                open_socket,
                connect_to,
                InlineExecutor,
                LoopThreads(),
                0.0,
                partial(world.network.open_epoll, process),
                TurnClock(world.random),
                lambda store, stall_s: RenewalTask(store),
            ),
        )
        self.broker = broker
        broker.compactor._in_child = self._compact  # type: ignore[method-assign]
        try:
            patience = Patience(0.0, self._stopping)  # so that a start may fail, too: the supervisor repeats it
            await broker.open(patience)
            await broker.register(patience)
            stand_for_controller(broker, config)
            await broker.serve()
            self.serving = True
            waiting = [asyncio.ensure_future(event.wait()) for event in (self._stopping, broker.tasks.failed)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if broker.store.refusal is not None:
                raise broker.store.refusal
        finally:
            self.serving = False
            await broker.stop()
            await store.close()

    async def _compact(self, job: Job) -> Result:
        """Compacts a log in this process, instead of a child process."""
        self.world.compacting(self, job)
        await asyncio.sleep(self.world.random.expovariate(20))
        self.world.counts["compactions"] += 1
        try:
            return compact(job, self.disk, lambda count: None)
        except OSError as error:
            raise CompactionFailed(str(error)) from error

    def _exited(self, process: Process) -> None:
        if self.process is not process:
            return
        self.process = None
        process.dead = True
        self.disk.process_died()
        self.world.network.died(process)
        self._left()
        if self.wanted:
            self.world.counts["restarts by the supervisor"] += 1
            self.world.loop.in_world(RESTART_S, self._again)

    def _again(self) -> None:
        if self.wanted and self.process is None:
            self.start()


class World:
    """All parts of one run except the clients and the faults."""

    def __init__(self, loop: SimulationLoop, random: Random, descriptors: Descriptors, history: History) -> None:
        self.loop = loop
        self.random = random
        self.descriptors = descriptors
        self.history = history
        self.counts = history.counts
        self.network = Network(loop, random, descriptors)
        self.store = StoreServer(loop, random)
        self.nodes: dict[int, Node] = {}
        self.processes: list[Process] = []
        self.errors: list[str] = []  # errors that a process logged or ended with, although it must not
        self.losing_power: Callable[[Node], None] = lambda node: None
        self.process_left: Callable[[Node], None] = lambda node: None
        self.compacting: Callable[[Node, Job], None] = lambda node, job: None
        self._incarnations = 0
        self._cut_off: set[int] = set()
        loop.set_exception_handler(self._unhandled)

    def next_incarnation(self) -> int:
        """A new number, one for each process."""
        self._incarnations += 1
        return self._incarnations

    def add_node(self, node_id: int, settings: dict[str, str]) -> Node:
        """Adds a host that isn't started yet."""
        common = {
            "node.id": str(node_id),
            "log.dirs": "/data",
            "listeners": f"PLAINTEXT://broker-{node_id}:{PORT}",
            "log.cleaner.enable": "false",
            "ottla.http.listener": "",
        }
        node = self.nodes[node_id] = Node(self, node_id, {**common, **settings})
        return node

    def client_process(self, name: str) -> Process:
        """A process for clients, which never dies."""
        process = Process(name, name)
        self.processes.append(process)
        return process

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        """The brokers' addresses, for clients."""
        return [(node.host, PORT) for node in self.nodes.values()]

    def brokers(self) -> Iterator[tuple[Node, Broker]]:
        """The nodes that have a process, with their brokers."""
        for node in self.nodes.values():
            if node.broker is not None:
                yield node, node.broker

    def replicas(self) -> Iterator[tuple[Node, Partition]]:
        """All replicas that a process has open."""
        for node, broker in self.brokers():
            for partition in broker.partitions:
                yield node, partition

    # ---- connections to the store

    def cut_off_from_store(self, node: Node) -> None:
        """Cuts the node off from the store."""
        self._cut_off.add(node.id)
        if node.store is not None:
            node.store.cut_off()

    def reach_store_again(self, node: Node) -> None:
        self._cut_off.discard(node.id)
        if node.store is not None:
            node.store.cut = False

    def is_cut_off(self, node: Node) -> bool:
        return node.id in self._cut_off

    # ---- notes

    def note(self, text: str) -> None:
        """Notes an event in the trace."""
        self.history.trace(text)
        self.history.notes.append((round(self.loop.time(), 6), text))

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")

    def bury(self) -> None:
        """After the run: discards the unfinished tasks of all processes, without log messages."""
        self.loop.set_exception_handler(lambda loop, context: None)
        for process in self.processes:
            process.dead = True
            for task in process.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    task._log_traceback = False  # type: ignore[attr-defined]
