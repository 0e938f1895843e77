"""One seed decides everything: the cluster's settings, the machine's behaviour, the faults and their times.

Each run favours some kinds of fault over others (a swarm). If all kinds were equally likely, few requests would ever be
served, and two faults of the same kind would hardly ever follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ottla.metadata import keys
from ottla.metadata.features import TRANSACTIONS

from . import ambushes, replaced
from .client import Bell, Client, drain, elect_preferred, finalise, reassign
from .cluster import Node, World
from .load import Load, follower_under_load
from .loop import Process
from .observer import Observer
from .store import SimulatedStore
from .topics import TOPIC
from .transactional import Habits

BURSTS = 0.7  # the share of faults that strike just after all clients were woken, so while records are written
AFTER_A_BURST_S = (0.003, 0.03)


@dataclass
class Knobs:
    """The settings of a run. Times are in seconds."""

    brokers: int = 3
    replication_factor: int = 3
    min_isr: int = 2
    partitions: int = 2
    producers: int = 2
    plain_producers: int = 1
    depth: int = 3
    padding: int = 60
    members: int = 0
    recreates: bool = False
    keys: int = 0  # the number of keys of the compacted topic; 0 if there is no compacted topic
    careless: bool = False  # whether the compacted topic also has a producer with acks=1
    loaded: bool = False  # whether there is a topic that is written without a pause while a follower comes back
    unclean: bool = False  # whether there is a topic that allows unclean elections
    spread_s: float = 0.0
    send_pause_s: float = 0.1
    client_timeout_s: float = 3.0
    store_timeout_s: float = 5.0
    faulty_s: float = 6.0
    pause_between_faults_s: float = 0.6
    network_latency_s: float = 0.0005
    partial: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)
    topic: dict[str, str] = field(default_factory=dict)
    keyed_topic: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    lineage_s: float = 5.0  # the time between two words (random strings) of the store's lineage
    transactional_ids: int = 0
    transacted_partitions: int = 2
    transacted_topic: dict[str, str] = field(default_factory=dict)
    habits: Habits = field(default_factory=Habits)  # of the transactional producers


def with_transactions(knobs: Knobs, random: Random) -> Knobs:
    """Draws the knobs of transactions. `random` is another source than that of all other knobs, so that a run without
    transactions stays what it was before there were any."""
    if random.random() < 0.4:
        return knobs
    knobs.transactional_ids = random.choice((1, 1, 2))
    if random.random() < 0.5:  # little else happens: such a run costs less, and more faults meet transactions
        knobs.producers, knobs.plain_producers, knobs.members, knobs.keys = 1, 0, 0, 0
        knobs.recreates = knobs.loaded = knobs.unclean = False
        for kind in ("the last in-sync replica is lost", "a follower under load", "a member sleeps"):
            knobs.weights[kind] = 0.0
    knobs.transacted_partitions = random.randint(1, 3)
    knobs.transacted_topic = {"min.insync.replicas": str(knobs.min_isr)}
    if random.random() < 0.5:
        knobs.transacted_topic["segment.ms"] = str(random.choice((200, 1000)))
    knobs.habits = Habits(
        timeout_ms=random.choice((500, 1500, 4000)),
        newer=random.choice((0.0, 0.5, 0.5, 1.0, 1.0)),
        aborts=random.choice((0.1, 0.4)),
        deaths=random.choice((0.0, 0.01, 0.05)),
        zombies=random.choice((0.0, 0.3, 0.7)),
        late=random.choice((0.0, 0.02, 0.1)),
        offsets=random.choice((0.0, 0.4, 0.8)),
        impatient=random.choice((0.0, 0.05, 0.2)),
        depth=random.randint(1, 3),
        pause_s=random.choice((0.01, 0.05, 0.2)),
    )
    if not knobs.habits.zombies:
        knobs.habits = replace(knobs.habits, plain=random.choice((0.0, 0.5)))
    knobs.settings["transaction.state.log.num.partitions"] = str(random.choice((1, 2)))
    knobs.settings["transaction.state.log.min.isr"] = str(knobs.min_isr)
    for name, (weight, _) in OF_TRANSACTIONS.items():
        knobs.weights[name] = random.choice((0.0, 1.0, 3.0)) * weight
    sweep_ms = random.choice((200, 1000))
    knobs.settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = str(sweep_ms)
    return knobs


def knobs_of(random: Random) -> Knobs:
    """Draws the knobs of a run."""
    brokers = random.choice((1, 3, 3, 3, 3, 3, 4))
    factor = min(brokers, random.choice((1, 2, 3, 3, 3, 3)))
    session_ms = random.choice((1500, 2000, 3000))
    lag_ms = random.choice((700, 1000, 2000))
    settings = {
        "broker.session.timeout.ms": str(session_ms),
        "replica.lag.time.max.ms": str(lag_ms),
        "replica.fetch.wait.max.ms": str(random.choice((100, 300, 500))),
        "replica.socket.timeout.ms": str(random.choice((600, 2000))),
        "replica.fetch.backoff.ms": str(random.choice((50, 200))),
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((200, 1000, 5000))),
        "log.flush.offset.checkpoint.interval.ms": str(random.choice((500, 5000, 60000))),
        "offsets.topic.num.partitions": str(random.choice((1, 2))),
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "offsets.commit.timeout.ms": str(random.choice((500, 3000))),
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "800",
        "ottla.quick.death.enable": random.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": random.choice(("1", "300")),
    }
    min_isr = random.randint(1, max(factor - 1, 1))
    settings["min.insync.replicas"] = str(min_isr)
    topic = {"min.insync.replicas": str(min_isr)}
    if random.random() < 0.3:
        topic["flush.messages"] = str(random.choice((1, 20)))
    if random.random() < 0.3:
        topic["index.interval.bytes"] = str(random.choice((0, 200)))
    if random.random() < 0.3:
        topic["segment.ms"] = str(random.choice((500, 3000)))
    if random.random() < 0.15:
        topic["compression.type"] = random.choice(("gzip", "lz4", "zstd", "uncompressed"))
    if random.random() < 0.3:
        settings["log.cleaner.enable"] = "true"
        settings["log.cleaner.backoff.ms"] = "100"
        settings["log.cleaner.min.cleanable.ratio"] = "0.01"
        settings["log.roll.ms"] = str(random.choice((300, 1000)))
    keys = random.choice((2, 3, 6)) if random.random() < 0.3 else 0
    keyed_topic = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": str(random.choice((100, 300, 1000))),
        "delete.retention.ms": random.choice(("86400000", "86400000", "0")),
        "min.insync.replicas": str(min_isr),
    }
    if keys:
        settings["log.cleaner.enable"] = "true"
        settings["log.cleaner.backoff.ms"] = str(random.choice((20, 100)))
    unclean = factor > 1 and random.random() < 0.25
    weights = {name: random.choice((0.0, 0.0, 1.0, 1.0, 3.0)) * weight for name, (weight, _) in KINDS.items()}
    loaded = factor > 1 and random.random() < 0.2
    if not unclean:
        weights["the last in-sync replica is lost"] = 0.0
    if not loaded:
        weights["a follower under load"] = 0.0
    return Knobs(
        brokers=brokers,
        replication_factor=factor,
        min_isr=min_isr,
        partitions=random.randint(1, 3),
        producers=random.randint(1, 3),
        plain_producers=random.randint(0, 1),
        members=random.choice((0, 0, 2, 3)),
        recreates=random.random() < 0.25,
        keys=keys,
        careless=random.random() < 0.5,
        unclean=unclean,
        loaded=loaded,
        depth=random.randint(1, 5),
        padding=random.choice((0, 60, 400)),
        spread_s=random.choice((0.0, 0.0, 0.005, 0.05)),
        send_pause_s=random.choice((0.2, 0.5, 1.5)),
        client_timeout_s=random.choice((0.8, 2.0)),
        store_timeout_s=random.choice((0.5, 2.0, 5.0)),
        faulty_s=random.uniform(2.5, 5.5),
        pause_between_faults_s=random.choice((0.2, 0.4, 0.8)),
        network_latency_s=random.choice((0.0002, 0.001, 0.005)),
        partial=random.choice((0.0, 0.05, 0.3)),
        settings=settings,
        topic=topic,
        keyed_topic=keyed_topic,
        weights=weights,
        lineage_s=random.choice((0.2, 0.5, 5.0)),
    )


class Faults:
    """The faults of one world, and their healing at the end."""

    def __init__(self, world: World, knobs: Knobs, random: Random, process: Process, observer: Observer) -> None:
        """`process` is the simulated process of an administrator. Its client, `admin`, makes the requests that some
        faults need."""
        self.admin: Client | None = None
        self.bell = Bell()  # wakes all clients
        self.members: list[Process] = []  # the processes of the group's members
        self.load: Load | None = None  # the load on the topic LOADED
        self.partitions = [(TOPIC, index) for index in range(knobs.partitions)]
        self.transacted: list[tuple[str, int]] = []
        self.observer = observer
        self._process = process
        self.world = world
        self.knobs = knobs
        self.random = random
        self.session_s = int(knobs.settings.get("broker.session.timeout.ms", "9000")) / 1000
        self.over = False
        self.held_before: list[tuple[Node, set[str], int]] = []  # when the store was last replaced

    def inject(self) -> None:
        """Causes one random fault, a moment later."""
        kinds = [name for name, weight in self.knobs.weights.items() if weight > 0]
        if not kinds:
            return
        kind = self.random.choices(kinds, [self.knobs.weights[name] for name in kinds])[0]
        if self.random.random() < BURSTS:
            self.bell.ring()
        self.world.loop.in_world(self.random.expovariate(1 / self.random.choice(AFTER_A_BURST_S)), self._strike, kind)

    def _strike(self, kind: str) -> None:
        if self.over:
            return
        told = (KINDS | OF_TRANSACTIONS)[kind][1](self)
        if told:
            self.world.counts[f"fault: {kind}"] += 1
            self.world.note(f"fault: {kind}: {told}")

    def heal(self) -> None:
        """Ends all faults, and starts the nodes that are down."""
        self.over = True
        world = self.world
        replaced.put_back(self)
        world.note("all is healed")
        for source, target in sorted(world.network.cut):
            world.network.heal_link(source, target)
        for member in self.members:
            world.loop.resume(member)
        for node in world.nodes.values():
            world.reach_store_again(node)
            node.disk.full = False
            node.disk.failing = frozenset()
            node.clock_ms = 0  # a broker whose clock is more than an hour behind refuses records by their timestamps
            if node.store is not None:
                node.store.unknown_chance = 0.0
                node.store.watch_delay_s = 0.0
            node.resume()
            if node.process is not None:
                node.process.fuse = 0
                node.wanted = True
            elif not node.stopping:
                self.start(node)

    # ---- choices

    def node(self) -> Node:
        """A random node."""
        return self.random.choice(list(self.world.nodes.values()))

    def running(self) -> Node | None:
        """A random node with a process that isn't stopping; None if there is none."""
        nodes = [node for node in self.world.nodes.values() if node.process is not None and not node.stopping]
        return self.random.choice(nodes) if nodes else None

    def later(self, low_s: float, high_s: float, heal: Callable[[], object]) -> None:
        """Calls `heal` after a random time, unless all faults have been healed by then."""

        def put_right() -> None:
            if not self.over:
                heal()

        self.world.loop.in_world(self.random.uniform(low_s, high_s), put_right)

    def start(self, node: Node) -> None:
        """Starts the node's process, if it has none."""
        if node.process is None:
            node.start()

    # ---- processes and hosts

    def kill(self) -> str:
        node = self.running()
        if node is None:
            return ""
        node.kill()
        self.later(0.05, 1.5 * self.session_s, lambda: self.start(node))
        return node.host

    def kill_in_a_step(self) -> str:
        node = self.running()
        if node is None or node.process is None or node.process.fuse:
            return ""
        steps = self.random.randint(1, 300)
        node.kill_after(steps)
        self.later(0.2, 1.5 * self.session_s, lambda: self.start(node))
        return f"{node.host} after {steps} steps"

    def power(self) -> str:
        node = self.running()
        if node is None:
            return ""
        node.lose_power()
        self.later(0.1, 2 * self.session_s, lambda: self.start(node))
        return node.host

    def power_everywhere(self) -> str:
        nodes = [node for node in self.world.nodes.values() if node.process is not None and not node.stopping]
        for node in nodes:
            node.lose_power()
            self.later(0.1, self.session_s, lambda node=node: self.start(node))  # type: ignore[misc]
        return ", ".join(node.host for node in nodes)

    def clean_restart(self) -> str:
        node = self.running()
        if node is None or not node.serving:
            return ""
        self.world.loop.in_world(0.0, self.restart, node)
        return node.host

    def restart(self, node: Node) -> None:
        """Stops a node's process cleanly, and starts another after a while."""

        async def restart() -> None:
            await node.stop()
            if node.process is None and not self.over:
                self.world.loop.in_world(self.random.uniform(0.0, self.session_s), self.start, node)
            elif node.process is None:
                self.start(node)

        self.world.loop.create_task(restart())

    def pause(self) -> str:
        node = self.running()
        if node is None or node.process is None or node.process.paused:
            return ""
        node.pause()
        self.later(0.05, 2 * self.session_s, node.resume)
        return node.host

    def member_sleeps(self) -> str:
        if not self.members:
            return ""
        member = self.random.choice(self.members)
        member.paused = True
        self.later(0.2, 2.5 * self.session_s, lambda: self.world.loop.resume(member))
        return member.host

    def clock(self) -> str:
        node = self.node()
        node.clock_ms += self.random.choice((-3_600_000, -5000, -50, 50, 5000, 3_600_000))
        return f"{node.host} is now off by {node.clock_ms} ms"

    # ---- network

    def cut_link(self) -> str:
        nodes = list(self.world.nodes.values())
        hosts = [node.host for node in nodes] + ["client"] + [member.host for member in self.members]
        source, target = self.random.sample(hosts, 2)
        both = self.random.random() < 0.4
        links = [(source, target)] + ([(target, source)] if both else [])
        for link in links:
            self.world.network.cut_link(*link)

        def put_right() -> None:
            for link in links:
                self.world.network.heal_link(*link)

        self.later(0.1, 2 * self.session_s, put_right)
        return f"{source} → {target}{' and back' if both else ''}"

    def isolate(self) -> str:
        node = self.node()
        others = [other.host for other in self.world.nodes.values() if other is not node]
        if not others:
            return ""
        direction = self.random.choice(("in", "out", "both"))
        with_store = self.random.random() < 0.3
        links = []
        for other in others:
            links += [(other, node.host)] if direction in ("in", "both") else []
            links += [(node.host, other)] if direction in ("out", "both") else []
        for link in links:
            self.world.network.cut_link(*link)
        if with_store:
            self.world.cut_off_from_store(node)

        def put_right() -> None:
            for link in links:
                self.world.network.heal_link(*link)
            if with_store:
                self.world.reach_store_again(node)

        self.later(0.2, 2 * self.session_s, put_right)
        return f"{node.host} from the others, {direction}{', and from the store' if with_store else ''}"

    def reset(self) -> str:
        node = self.node()
        count = self.world.network.reset_some(node.host, self.random.choice((0.3, 1.0)))
        return f"{count} connections of {node.host}" if count else ""

    def slow_connections(self) -> str:
        node = self.node()
        seconds_max = self.random.choice((0.02, 0.2, 1.0))
        count = self.world.network.stall_some(node.host, self.random.choice((0.3, 1.0)), seconds_max)
        return f"{count} connections of {node.host}, by up to {seconds_max} s" if count else ""

    # ---- the store

    def store_cut(self) -> str:
        node = self.node()
        self.world.cut_off_from_store(node)
        self.later(0.1, 3 * self.session_s, lambda: self.world.reach_store_again(node))
        return node.host

    def store_down(self) -> str:
        nodes = list(self.world.nodes.values())
        for node in nodes:
            self.world.cut_off_from_store(node)

        def put_right() -> None:
            for node in nodes:
                self.world.reach_store_again(node)

        self.later(0.1, 1.5 * self.session_s, put_right)
        return "for all"

    def unknown_outcomes(self) -> str:
        node = self.running()
        if node is None or node.store is None:
            return ""
        store = node.store
        store.unknown_chance = self.random.choice((0.1, 0.5))
        self.later(0.3, 2.5, lambda: setattr(store, "unknown_chance", 0.0))
        return node.host

    def slow_watch(self) -> str:
        node = self.running()
        if node is None or node.store is None:
            return ""
        delay_s = self.random.choice((0.1, 0.5, 1.0, 4.0))
        self.slow_down(node.store, delay_s)
        return f"{node.host} by {delay_s} s"

    def slow_down(self, store: SimulatedStore, delay_s: float) -> None:
        """Delays a process's watches of the store by `delay_s`, for a while."""
        store.watch_delay_s = delay_s
        self.later(0.3, 4.0, lambda: setattr(store, "watch_delay_s", 0.0))

    def compaction(self) -> str:
        store = self.world.store
        store.compact(store.revision - self.random.choice((0, 0, 3)))
        return f"up to revision {store.compacted}"

    def lease_loss(self) -> str:
        entries = [entry for key, entry in sorted(self.world.store.entries.items()) if key.startswith("brokers/")]
        entries = [entry for entry in entries if entry.lease]
        if not entries:
            return ""
        entry = self.random.choice(entries)
        self.world.store.revoke(entry.lease)
        return entry.key

    def controller_loss(self) -> str:
        entry = self.world.store.entries.get(keys.controller.key)
        if entry is None:
            return ""
        self.world.store.revoke(entry.lease)
        return str(entry.value)

    def empty_store(self) -> str:
        return replaced.replace_store(self, replaced.EMPTY)

    def foreign_store(self) -> str:
        return replaced.replace_store(self, replaced.FOREIGN)

    def older_store(self) -> str:
        return replaced.replace_store(self, replaced.OLDER)

    def older_store_ahead(self) -> str:
        return replaced.replace_store(self, replaced.AHEAD)

    def lagging_member(self) -> str:
        return replaced.lag(self)

    # ---- administrators

    def reassign(self) -> str:
        ids = list(self.world.nodes)
        topic, index = self.random.choice(self.partitions + self.transacted)
        target = self.random.sample(ids, self.random.randint(1, len(ids))) if self.random.random() < 0.85 else None
        return self.ask(lambda admin: reassign(admin, (topic, index), target), f"{topic}-{index} to {target}")

    def elect(self) -> str:
        indexes = list(range(self.knobs.partitions))
        return self.ask(lambda admin: elect_preferred(admin, TOPIC, indexes), "of the preferred")

    def drain(self) -> str:
        wished = self.random.sample(list(self.world.nodes), self.random.randrange(len(self.world.nodes)))
        return self.ask(lambda admin: drain(admin, wished), ", ".join(map(str, wished)) or "nobody any more")

    def feature_level(self) -> str:
        level = self.random.choice((0, 1, 2, 2))
        return self.ask(lambda admin: finalise(admin, TRANSACTIONS, level), f"{TRANSACTIONS} {level}")

    def ask(self, request: Callable[[Client], Coroutine[Any, Any, None]], told: str) -> str:
        admin = self.admin
        if admin is None or len(self.world.nodes) == 1:
            return ""
        self.world.loop.create_task(request(admin), context=self._process.context)
        return told

    # ---- disks

    def disk_full(self) -> str:
        node = self.node()
        node.disk.full = True

        def put_right() -> None:
            node.disk.full = False

        self.later(0.02, 3.0, put_right)
        return node.host

    def disk_errors(self) -> str:
        node = self.node()
        kinds = self.random.choice((("fsync",), ("write",), ("read",), ("write", "read", "fsync")))
        node.disk.failing = frozenset(kinds)

        def put_right() -> None:
            node.disk.failing = frozenset()

        self.later(0.02, 1.0, put_right)
        return f"{node.host}: {', '.join(kinds)}"


KINDS: dict[str, tuple[float, Callable[[Faults], str]]] = {
    "kill": (1.0, Faults.kill),
    "kill in a step": (1.0, Faults.kill_in_a_step),
    "power": (0.7, Faults.power),
    "power everywhere": (0.15, Faults.power_everywhere),
    "clean restart": (1.0, Faults.clean_restart),
    "pause": (1.0, Faults.pause),
    "a member sleeps": (0.7, Faults.member_sleeps),
    "clock": (0.3, Faults.clock),
    "cut link": (1.5, Faults.cut_link),
    "isolate": (1.0, Faults.isolate),
    "reset": (1.0, Faults.reset),
    "store cut": (0.5, Faults.store_cut),
    "store down": (0.2, Faults.store_down),
    "unknown outcomes": (0.7, Faults.unknown_outcomes),
    "slow watch": (0.7, Faults.slow_watch),
    "compaction": (0.3, Faults.compaction),
    "lease loss": (0.5, Faults.lease_loss),
    "controller loss": (0.5, Faults.controller_loss),
    "reassignment": (0.6, Faults.reassign),
    "wished election": (0.3, Faults.elect),
    "drain": (0.3, Faults.drain),
    "a deposed leader leads again": (1.5, ambushes.deposed_leader_leads_again),
    "restart at once": (1.2, ambushes.restart_at_once),
    "restart of all": (0.5, ambushes.restart_of_all),
    "the last in-sync replica is lost": (1.5, ambushes.last_in_sync_goes),
    "a controller sleeps": (0.5, ambushes.controller_sleeps),
    "a follower under load": (4.0, follower_under_load),
    "disk full": (0.3, Faults.disk_full),
    "disk errors": (0.2, Faults.disk_errors),
    "empty store": (0.15, Faults.empty_store),
    "foreign store": (0.15, Faults.foreign_store),
    "older store": (0.3, Faults.older_store),
    "older store, ahead": (0.3, Faults.older_store_ahead),
    "lagging member": (0.3, Faults.lagging_member),
}

OF_TRANSACTIONS: dict[str, tuple[float, Callable[[Faults], str]]] = {
    "slow connections": (2.0, Faults.slow_connections),
    "another level of a feature": (0.5, Faults.feature_level),
}
"""Kinds that happen only in runs with transactions."""
