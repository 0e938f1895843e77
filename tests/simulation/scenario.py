"""One run, from its seed to its verdict: builds the cluster, lets clients work under faults, heals the faults, waits
until the cluster has converged, reads all records, and checks."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ottla.broker import follower_log
from ottla.broker.log.log import Log
from ottla.broker.partition import Partition
from ottla.metadata import keys, lineage
from ottla.protocol.errors import KafkaError

from .administrators import administrators_watched
from .client import Bell, Client, Unavailable, create_topic
from .cluster import World
from .consumer import Committer, Consumer
from .faults import Faults, Knobs, knobs_of, with_transactions
from .history import History, name_of
from .load import Load, joins_under_load
from .loop import PROCESS, SimulationLoop, Stuck, run
from .machine import Descriptors, simulated_machine
from .members import Member
from .network import Stream, connect
from .observer import Observer
from .oracles import check_all
from .producer import Producer
from .recreation import NAME, Recreated
from .topics import KEYED, LOADED, TOPIC, UNCLEAN
from .transacting import Transacting
from .transactional import TransactionalId

CONVERGENCE_S = 60.0
STEPS_MAX = 3_000_000
LOAD_PRODUCERS = 10  # enough for almost every fetch of a follower to find new records


@dataclass
class Verdict:
    """The result of a run. `wrong` is empty if there was no violation."""

    seed: int
    digest: str
    wrong: list[str]
    counts: Counter[str]
    virtual_s: float = 0.0
    steps: int = 0
    notes: list[tuple[float, str]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


def simulate(seed: int, *, knobs: Knobs | None = None, with_history: bool = False) -> Verdict:
    """Simulates one run. With the same PYTHONHASHSEED, the seed alone determines the run."""
    random = Random(seed)
    knobs = knobs or with_transactions(knobs_of(random), Random(f"transactions {seed}"))
    scenario = Scenario(knobs, random)
    watched = administrators_watched(lambda: scenario.world, scenario.wrong)
    with simulated_machine(random, scenario.descriptors), _quiet(scenario), _logs_watched(scenario), watched:
        try:
            run(random, scenario.main, STEPS_MAX)
        except Stuck as stuck:
            scenario.wrong.append(f"stuck: {stuck}")
        except Exception:
            scenario.wrong.append("the simulation itself failed: " + traceback.format_exc())
    wrong = scenario.wrong + (check_all(scenario.history.events) if scenario.finished else [])
    if not scenario.finished and not wrong:
        wrong.append("the run didn't come to its end")
    return Verdict(
        seed,
        scenario.history.digest,
        wrong,
        scenario.history.counts,
        scenario.virtual_s,
        scenario.steps,
        scenario.history.notes,
        list(scenario.history.lines()) if with_history else [],
    )


class Scenario:
    """The scenario of one run: its cluster, its clients, its faults, and the final checks."""

    def __init__(self, knobs: Knobs, random: Random) -> None:
        self.knobs = knobs
        self.random = random
        self.descriptors = Descriptors()
        self.history = History()
        self.wrong: list[str] = []
        self.finished = False
        self.virtual_s = 0.0
        self.steps = 0
        self.world: World | None = None
        self.bell = Bell()

    async def main(self, loop: SimulationLoop) -> None:
        """The whole run, as a task that belongs to no simulated process."""
        loop.sockets = self.descriptors.sockets
        self.history.now = loop.time
        knobs = self.knobs
        world = self.world = World(loop, self.random, self.descriptors, self.history)
        world.network.latency_s = knobs.network_latency_s
        world.network.partial = knobs.partial
        world.store.timeout_s = knobs.store_timeout_s
        lineage.INTERVAL_S = knobs.lineage_s
        observer = Observer(world)
        observer.start()
        for node_id in range(1, knobs.brokers + 1):
            world.add_node(node_id, knobs.settings).start()
        process = world.client_process("client")
        faults = Faults(world, knobs, self.random, process, observer)
        work = loop.create_task(self._work(faults, observer), context=process.context)
        try:
            await work
        finally:
            self.wrong += observer.wrong[:10] + world.errors[:10]
            self.virtual_s = loop.time()
            self.steps = loop.steps
            self._count(world)

    async def _work(self, faults: Faults, observer: Observer) -> None:
        world, knobs = faults.world, self.knobs
        factor = knobs.replication_factor
        self.bell = faults.bell
        setup = faults.admin = self._client("setup")
        await self._served(observer)
        ids = list(world.nodes)
        assignments = [[ids[(index + at) % len(ids)] for at in range(factor)] for index in range(knobs.partitions)]
        await create_topic(setup, TOPIC, assignments, knobs.topic)
        producers = [
            Producer(
                self._client(f"{'p' if number < knobs.producers else 'q'}{number}"),
                (TOPIC, self.random.randrange(knobs.partitions)),
                acks=-1 if number < knobs.producers or self.random.random() < 0.5 else 1,
                idempotent=number < knobs.producers,
                depth=knobs.depth,
                padding=knobs.padding,
                spread_s=knobs.spread_s,
            )
            for number in range(knobs.producers + knobs.plain_producers)
        ]
        producers += await self._other_topics(faults, setup, ids)
        partitions = list(faults.partitions)
        if knobs.loaded:
            partitions.append((LOADED, 0))
            faults.load = await self._loaded_topic(setup, ids)
        loading = None if faults.load is None else asyncio.create_task(faults.load.run())
        consumers = [Consumer(self._client(f"c{at}"), partition) for at, partition in enumerate(partitions)]
        committer = Committer(self._client("g"), "group", (TOPIC, 0))
        sending = [asyncio.create_task(producer.run(knobs.send_pause_s)) for producer in producers]
        reading = [asyncio.create_task(consumer.run(0.3, 300)) for consumer in consumers]
        committing = asyncio.create_task(committer.run(0.35))
        watcher = Committer(self._client("w"), "group", (TOPIC, 0))
        watching = asyncio.create_task(watcher.watch(0.5))
        session_s = int(knobs.settings["group.min.session.timeout.ms"]) / 1000
        members = [
            Member(self._client(f"m{number}"), "members", knobs.partitions, session_s)
            for number in range(knobs.members)
        ]
        faults.members = [world.client_process(f"member-{number}") for number in range(knobs.members)]
        joining = [
            world.loop.create_task(member.run(0.4), context=process.context)
            for member, process in zip(members, faults.members, strict=True)
        ]
        transacting = Transacting(world, knobs, self.random, self._client)
        if transacting.ids:
            faults.transacted = transacting.partitions
        ending = await transacting.begin(setup)
        recreated = Recreated(self._client("r"), self.random.sample(ids, factor)) if knobs.recreates else None
        recreating = asyncio.create_task(recreated.run(0.2)) if recreated is not None else None
        loop = world.loop
        until = loop.time() + knobs.faulty_s
        while loop.time() < until:
            await asyncio.sleep(self.random.expovariate(1 / knobs.pause_between_faults_s))
            faults.inject()
        faults.heal()
        transacting.healed()
        await asyncio.sleep(0.3)
        working: list[tuple[Producer | Committer | Member | Recreated | TransactionalId, asyncio.Task[None]]] = [
            *zip(producers, sending, strict=True),
            *zip(members, joining, strict=True),
            (committer, committing),
            (watcher, watching),
            *ending,
        ]
        if recreated is not None and recreating is not None:
            working.append((recreated, recreating))
        for worker, _ in working:
            worker.stopped = True

        def finished() -> bool:
            for _, task in ending if transacting.may_be_stuck() else ():
                task.cancel()
            return all(task.done() for _, task in working)

        if not await self._until(finished, CONVERGENCE_S):
            late = [worker.client.name for worker, task in working if not task.done()]
            self.wrong.append(
                f"no convergence: the clients {', '.join(late)} still wait {CONVERGENCE_S:.0f} s after healing"
            )
            self.wrong.append(observer.unconverged() or "the brokers and the store show no reason for that")
            return
        if not await self._until(lambda: not observer.unconverged(), CONVERGENCE_S):
            self.wrong.append(f"no convergence {CONVERGENCE_S:.0f} s after healing: {observer.unconverged()}")
            return
        for _, task in working:
            if not task.cancelled():
                task.result()
        if faults.load is not None and loading is not None:
            if refused := await joins_under_load(faults):
                self.wrong.append(refused)
                return
            faults.load.stop()
            await loading
            if not await self._until(lambda: not observer.unconverged(), CONVERGENCE_S):
                self.wrong.append(f"no convergence {CONVERGENCE_S:.0f} s after the load: {observer.unconverged()}")
                return
        if not await self._until_true(committer.look, CONVERGENCE_S):
            self.wrong.append("no convergence: the group's offsets can't be read")
            return
        if refused := await transacting.settle(observer):
            self.wrong.append(f"no convergence: {refused}")
            return
        for partition in partitions:
            await self._read_all(partition)
        if recreated is not None and not await self._until_true(lambda: self._read_last(recreated), 30.0):
            self.wrong.append(f"no convergence: {NAME} can't be read")
        if not await self._until(lambda: all(self._read_to_end(consumer) for consumer in consumers), 30.0):
            late = [consumer.client.name for consumer in consumers if not self._read_to_end(consumer)]
            self.wrong.append(f"consumers haven't read to the end: {', '.join(late)}")
        for consumer, task in zip(consumers, reading, strict=True):
            consumer.stopped = True
            task.cancel()
        observer.compare_replicas()
        self.finished = True

    def _read_to_end(self, consumer: Consumer) -> bool:
        return consumer.position >= consumer.high_watermark >= 0

    async def _served(self, observer: Observer) -> None:
        if not await self._until(lambda: not observer.unconverged(), 30.0):
            self.wrong.append("the cluster doesn't start: " + observer.unconverged())

    async def _other_topics(self, faults: Faults, setup: Client, ids: list[int]) -> list[Producer]:
        """Creates a compacted topic and a topic with unclean elections, each only if the knobs ask for that topic.
        Returns the producers for these topics."""
        knobs, producers = self.knobs, []
        if knobs.keys:
            await create_topic(setup, KEYED, [self.random.sample(ids, knobs.replication_factor)], knobs.keyed_topic)
            going = {"tombstones_go": knobs.keyed_topic["delete.retention.ms"] == "0"}
            producers.append(self._only_producer(KEYED, KEYED, keys=knobs.keys, fields=going))
            if knobs.careless:
                options = {"acks": 1, "idempotent": False, "keys": knobs.keys, "fields": going}
                producers.append(self._only_producer("careless", KEYED, **options))
            faults.partitions.append((KEYED, 0))
        if knobs.unclean:
            allowed = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
            await create_topic(setup, UNCLEAN, [self.random.sample(ids, knobs.replication_factor)], allowed)
            producers.append(self._only_producer(UNCLEAN, UNCLEAN))
            faults.partitions.append((UNCLEAN, 0))
        return producers

    async def _loaded_topic(self, setup: Client, ids: list[int]) -> Load:
        """Creates a topic whose leader may be the only in-sync replica. Returns the producers that load it."""
        await create_topic(setup, LOADED, [self.random.sample(ids, 2)], {"min.insync.replicas": "1"})
        options = {"acks": 1, "idempotent": False}
        return Load([self._only_producer(f"l{number}", LOADED, **options) for number in range(LOAD_PRODUCERS)])

    def _only_producer(self, name: str, topic: str, **options: Any) -> Producer:
        """A producer for a topic with one partition; by default with acks=all and idempotent."""
        knobs = self.knobs
        known = {"acks": -1, "idempotent": True, "depth": knobs.depth, "padding": knobs.padding}
        return Producer(self._client(name), (topic, 0), spread_s=knobs.spread_s, **{**known, **options})

    async def _read_all(self, partition: tuple[str, int]) -> None:
        """Reads a whole partition at the end of the run, and notes its content in the history."""
        reader = Consumer(self._client("final"), partition)
        found: list[tuple[int, str]] = []
        begun = self.history.invoke("final", partition=list(partition))
        deadline = asyncio.get_running_loop().time() + CONVERGENCE_S
        while reader.high_watermark < 0 or reader.position < reader.high_watermark:
            try:
                records = await reader.poll(100)
            except (Unavailable, KafkaError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    self.wrong.append(f"{name_of(partition)} can't be read after healing: {error}")
                    return
                await reader.client.refreshed(partition[0])
                continue
            found += records
            reader.position = reader.next_position
        self.history.end(begun, "ok", start=reader.log_start, records=found)

    async def _read_last(self, recreated: Recreated) -> bool:
        """Notes the content of the topic that was created last. Notes nothing if a late deletion has removed this
        topic. Returns False if the topic has to be read again.
        """
        assert self.world is not None
        if keys.topic(NAME) not in self.world.store.entries:
            return True
        await recreated.look()
        found = await recreated.read()
        if found is None or len(found) != recreated.high_watermark:
            return False
        self.history.add("final", "ok", partition=recreated.partition, start=0, records=found)
        return True

    def _client(self, name: str) -> Client:
        world = self.world
        assert world is not None

        async def opener(host: str, port: int) -> Stream:
            return await connect(world.network, host, port)

        client = Client(name, world.bootstrap, opener, self.history, self.random, self.bell)
        client.timeout_s = self.knobs.client_timeout_s
        return client

    async def _until(self, condition: object, limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not condition():  # type: ignore[operator]
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.1)
        return True

    async def _until_true(self, attempt: object, limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not await attempt():  # type: ignore[operator]
            if loop.time() > deadline:
                return False
        return True

    def _count(self, world: World) -> None:
        counts = self.history.counts
        counts["ambiguous writes"] += counts["send unknown"] + counts["sends repeated"]
        for name, count in world.store.counts.items():
            counts[f"store: {name}"] += count
        for node in world.nodes.values():
            for name, count in node.disk.counts.items():
                counts[f"disk: {name}"] += count


class _quiet:  # used as a context manager
    """Captures the product's log: messages about bugs of the product are violations, all other messages go into the
    trace."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def __enter__(self) -> None:
        root = logging.getLogger()
        self._before = (root.handlers[:], root.level)
        handler = _Finder(self._scenario)
        root.handlers[:] = [handler]
        root.setLevel(LOG_LEVEL)

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)


LOG_LEVEL = logging.WARNING


class _Finder(logging.Handler):
    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        text = f"{process or 'world'}: {record.name.rpartition('.')[2]}: {record.getMessage()}"
        world = self._scenario.world
        if world is not None:
            self._scenario.history.notes.append((round(world.loop.time(), 6), text))
        if record.exc_info and record.levelno >= logging.ERROR:
            error = record.exc_info[1]
            if not isinstance(error, OSError):
                shown = "".join(traceback.format_exception(error)) if error else ""
                self._scenario.wrong.append(f"logged as a failure: {text}\n{shown}")


class _logs_watched:  # used as a context manager
    """Counts the truncations of logs, and checks a follower's replica after each append, because a violation may last
    only an instant.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def __enter__(self) -> None:
        self._before = (Log.truncate_to, Log.truncate_fully_and_start_at, follower_log.append_replicated)
        truncate, restart, replicate = self._before
        counts, wrong = self._scenario.history.counts, self._scenario.wrong

        def truncate_to(log: Log, offset: int) -> bool:
            counts["truncations"] += offset < log.log_end_offset
            return truncate(log, offset)

        def start_at(log: Log, offset: int) -> None:
            counts["full truncations"] += 1
            restart(log, offset)

        def append_replicated(partition: Partition, *args: Any) -> None:
            replicate(partition, *args)
            if partition.high_watermark > partition.log.log_end_offset:
                wrong.append(f"{partition!r}: high watermark beyond the log's end after an append on a follower")

        Log.truncate_to = truncate_to  # type: ignore[method-assign]
        Log.truncate_fully_and_start_at = start_at  # type: ignore[method-assign]
        follower_log.append_replicated = append_replicated

    def __exit__(self, *_: object) -> None:
        Log.truncate_to, Log.truncate_fully_and_start_at, follower_log.append_replicated = self._before  # type: ignore[method-assign]


def main() -> None:
    """`python -m tests.simulation.scenario SEED [--planted BUG] [--history]`: one run, printed in detail."""
    global LOG_LEVEL
    LOG_LEVEL = logging.INFO
    gc.disable()
    seed = int(sys.argv[1])
    if "--planted" in sys.argv:
        from .planted import plant

        plant(sys.argv[sys.argv.index("--planted") + 1])
    verdict = simulate(seed, with_history=True)
    for moment, text in verdict.notes:
        print(f"{moment:12.6f}  {text}")
    if "--history" in sys.argv:
        print("\n".join(verdict.history))
    print(verdict.counts)
    print(f"seed {seed}: digest {verdict.digest}, {verdict.virtual_s:.1f} s, {verdict.steps} steps")
    print("\n".join(verdict.wrong) or "all is well", flush=True)
    os._exit(1 if verdict.wrong else 0)  # without destroying the dead processes' objects


if __name__ == "__main__":
    main()
