"""The run of one seed: a Cluster, the actions of people, accidents, the faults of the operator's requests, and the
checks.

`python -m tests.simulation_operator.scenario 42` prints one run in detail. First there are faults of all kinds for some
rounds. Then they are healed: the Cluster has to converge to its spec within `ROUNDS_MAX` rounds, with a true status.
Then the converged Cluster gets one more change, whose own outcome is checked, and it has to converge again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import traceback
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from random import Random
from typing import Any
from unittest.mock import patch

from ottla.operator import kafka
from ottla.operator.access import Access
from ottla.operator.cluster import ClusterReconciler
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, Ref, condition
from ottla.operator.queue import Retry
from ottla.operator.topic import TopicReconciler
from ottla.operator.topic_resources import TopicResources
from tests.simulation_operator.agreement import Agreement
from tests.simulation_operator.brokers import Brokers, EtcdMembers
from tests.simulation_operator.connection import Admin, Chances, Connection, Died
from tests.simulation_operator.invariants import Invariants, Wishes
from tests.simulation_operator.kubelets import Kubelets
from tests.simulation_operator.kubernetes import NAMESPACE, ApiServer
from tests.simulation_operator.person import NAME, Person
from tests.unit.operator.kubernetes_world import copied
from tests.unit.operator.resources import quality_of_service

KEY = Ref(NAMESPACE, NAME)
BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)
ROUNDS_MAX = 90
QUIET_ROUNDS = 3
SEVERAL_VOLUMES = 0.4  # the share of Clusters that begin with several volumes per broker
HEALED_ROUND_S = 31.0
NEEDS_MORE = (
    "raise the number of brokers of its pool until that broker comes back"  # a person does this when the status says it
)
LINKS_CHANGE = 0.25  # the share of Clusters whose links between brokers are encrypted at some time
RESIZED = 0.4  # the share of Clusters that get other resources at the end, on nodes that delay the resize


@dataclass(frozen=True)
class Verdict:
    """The result of a run."""

    digest: str
    wrong: list[str]
    counts: Counter[str]


class Process:
    """One process of the operator, without the memory of the former process."""

    def __init__(self, run: Run) -> None:
        server = run.server
        self.connection = Connection(
            run.random,
            server,
            run.brokers,
            run.etcd,
            run.kubelets,
            run.invariants,
            run.counts,
            run.chances,
            run.world_goes_on,
        )
        kube: Any = self.connection
        self.resources = TopicResources(kube)
        self.topics = TopicReconciler(
            kube, self.resources, clock=lambda: server.now.timestamp(), utc=lambda: server.now
        )
        keeper = EtcdKeeper(kube, lambda _: kube, lambda: server.now.timestamp(), lambda: server.now)
        self.clusters = ClusterReconciler(
            kube,
            kube,
            keeper,
            run.person.defaults,
            topics_held=self.topics.held,
            utc=lambda: server.now,
            probe=kube,
        )
        self.access = Access(kube)
        self.told: dict[str, Object] = {}  # the Topics as of the watch's last events


class Run:
    """The world of one seed: the operator, Kubernetes, the brokers and the people."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.server = ApiServer(self.random, BEGIN)
        self.brokers = Brokers(self.server, NAME)
        self.etcd = EtcdMembers(self.server, NAME)
        self.kubelets = Kubelets(self.server, NAME, self.counts)
        wishes = Wishes()
        self.invariants = Invariants(self.server, self.brokers, wishes, self.counts)
        self.person = Person(self.random, self.server, self.brokers, wishes, self.counts)
        self.agreement = Agreement(self.server, self.brokers, self.person)
        self.server.pod_serves = self._pod_serves
        self.server.pod_may_serve = self.kubelets.may_serve
        self._links = Random(f"links of {seed}")
        self._links_change = self._links.random() < LINKS_CHANGE
        self._secrets = Random(f"secrets of {seed}")
        spec = self._spec() | _racks(Random(f"racks of {seed}"))
        for listener in spec.get("listeners", ()) if self._links_change else ():
            if listener["type"] == "NodePort":
                listener["tls"] = self._secrets.random() < 0.5
        self.server.make("Cluster", NAME, spec | self._internal_tls())
        if Random(f"volumes of {seed}").random() < SEVERAL_VOLUMES:
            self.person.add_volume()
        self.chances = Chances()
        self.process = Process(self)
        self._acts = self.random.choice((0.2, 0.4, 0.6))
        self._moved = 0
        self._told_of = self.person.uid  # the uid of the Cluster at the watch's last look
        self._late_rounds = 0
        self._resized_last = Random(f"resized of {seed}").random() < RESIZED

    def _spec(self) -> Object:
        random = self.random
        storage = {"size": "1Gi"}
        brokers: Object = {"replicas": random.choice((1, 2, 3, 3, 4)), "storage": storage}
        if random.random() < 0.25:
            pools = [{"name": "a", "firstId": 0, "replicas": 2}, {"name": "b", "firstId": 100, "replicas": 1}]
            brokers = {"pools": pools, "storage": storage}
        spec: Object = {"brokers": brokers, "metadata": {"etcd": {"members": random.choice((1, 3))}}}
        if random.random() < 0.5:
            spec["listeners"] = [
                {"name": "plain", "port": 9092, "type": "Internal"},
                {"name": "node", "port": 9095, "type": "NodePort"},
            ]
        if random.random() < 0.2:
            spec["controllers"] = {"replicas": 2}
        if random.random() < 0.3:
            spec["networkPolicy"] = {"enabled": True}
        self.server.resizes, self.server.lowers_memory = random.random() < 0.8, random.random() < 0.7
        if random.random() < 0.3:
            spec["scaling"] = {"throttleBytesPerSecond": 1000000, "rebalance": random.choice(("New", "Balance"))}
        return spec

    def _internal_tls(self) -> Object:
        """What a spec says about the links between brokers. Most seeds' Clusters have plain links from the beginning to
        the end."""
        said = self._links.choice((None, True, False)) if self._links_change else False
        return {} if said is None else {"internalTls": said}

    def _knobs(self) -> Chances:
        def one(*some: float) -> float:
            return self.random.choice(some)

        return Chances(
            refused=one(0, 0.002, 0.01, 0.05),
            lost=one(0, 0.01, 0.05),
            twice=one(0, 0.02, 0.1),
            late=one(0, 0.01, 0.05),
            death=one(0, 0.005, 0.02, 0.1),
            silent=one(0, 0.01, 0.1),
        )

    def _pod_serves(self, name: str, pod: Object) -> None:
        self.kubelets.serves(name, pod)
        self.invariants.connects(self.kubelets.strangers())
        self.invariants.serves(name, pod)
        if name in self.server.made("broker"):
            self.brokers.started(int(name.rpartition("-")[2]))

    def world_goes_on(self) -> None:
        """One step of time: Kubernetes' controllers and the brokers each make a step."""
        self._moved += 1
        self.server.now += timedelta(seconds=self.random.choice((0, 0, 1, 5)))
        self.server.step(0.5)
        self._files_reach_pods()
        self.brokers.step()

    def _files_reach_pods(self) -> None:
        self.kubelets.step()
        self.invariants.connects(self.kubelets.strangers())

    def play(self, acts: Coroutine[Any, Any, None]) -> None:
        """Runs the coroutine `acts` to its end on an event loop of its own, in which the operator's admin clients reach
        the brokers of this world.
        """

        def admin(bootstrap: str, _: object) -> Admin:
            return Admin(self.process.connection, bootstrap)

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # ignores tasks of a process that died
            await acts

        with patch.object(kafka, "KafkaAdmin", admin):
            asyncio.run(main())

    # ---- the three acts

    async def everything(self) -> None:
        """The whole run: the Cluster forms, works under faults, comes to rest, and gets one last change."""
        for _ in range(self.random.randint(0, 4)):
            self.person.add_topic()
        await self.settle("forming", ROUNDS_MAX)
        if self.invariants.wrong:
            return
        self._set(self._knobs())
        for _ in range(self.random.randint(5, 25)):
            while self.random.random() < self._acts:
                self.person.act()
            if self._links_change and self._links.random() < 0.1:
                self.person.change_links(self._internal_tls())
            if self._links_change and self._secrets.random() < 0.1:
                self._secrets_change()
            await self._round()
        self._set(Chances())
        self._take_over_if_dead()
        self.person.heal()
        await self.settle("after the faults", ROUNDS_MAX)
        if not self.invariants.wrong:
            await self._epilogue()
        if not self.invariants.wrong and self._resized_last:
            await self._resized()

    def _secrets_change(self) -> None:
        """A person deletes Secrets of brokers, or has an authority replaced, or nodes get another address."""
        what = self._secrets.choice(("both", "both", "authority", "files", "operator's", "replaced", "renewed", "node"))
        if what == "node":
            self.person.move_nodes()
        elif what in ("replaced", "renewed"):
            self.person.ask_for_authority("replace" if what == "replaced" else "renew")
        else:
            lost = {
                "both": ("k-cluster-ca", "k-brokers-tls"),
                "authority": ("k-cluster-ca",),
                "files": ("k-brokers-tls",),
                "operator's": ("k-cluster-ca", "k-brokers-tls", "k-operator-tls"),
            }
            self.person.lose_secrets(*lost[what])

    def _set(self, chances: Chances) -> None:
        self.chances = chances
        self.process.connection.chances = chances

    async def _round(self) -> None:
        """One round: the world makes steps, the watch sends events, and the operator reconciles."""
        for _ in range(self.random.randint(0, 3)):
            self.world_goes_on()
        self.server.now += timedelta(seconds=self.random.choice((1, 3, 10, 30, 120)))
        self._take_over_if_dead()
        if self.person.operator_upgraded:
            self._take_over()
        self._watch()
        what = self.random.random()
        if what < 0.5:
            await self._looked_at()
        elif what < 0.75:
            await self.done(self.process.topics.reconcile(KEY))
        else:
            both = self.process.topics.reconcile(KEY), self.process.clusters.reconcile(KEY)
            await asyncio.gather(*map(self.done, both))
        if self.random.random() < 0.1:
            await self._rights_told()

    async def _looked_at(self) -> None:
        """Reconciles the Cluster. If no fault disturbed that, checks the status and the budget."""
        connection = self.process.connection
        served = self.agreement.served() if self.person.cluster is not None else frozenset()
        before = (connection.troubled, self._moved)
        whole = await self.done(self.process.clusters.reconcile(KEY))
        if whole and before == (connection.troubled, self._moved) and self.person.cluster is not None:
            self.counts["statuses compared"] += 1
            self.invariants.wrong += self.agreement.status_lies(served)
            refused = {request.split(" ", 1)[1] for request in self.server.refusals}
            if "PodDisruptionBudget k-brokers" not in refused:
                self.invariants.wrong += self.agreement.budget_lies()

    async def _rights_told(self) -> None:
        with_rights = not self.server.no_rights
        try:
            before = self.process.connection.troubled
            await self.process.access.look()
        except Died:
            return
        trouble = self.process.access.trouble
        if not with_rights and not trouble:
            self.invariants.wrong.append("the operator has no right to read anything, but reports no trouble")
        if with_rights and trouble and before == self.process.connection.troubled:
            self.invariants.wrong.append(f"the operator has the right to read everything, but reports: {trouble}")
        self.counts["rights looked at"] += 1

    async def done(self, work: Coroutine[Any, Any, object]) -> bool:
        """Runs a reconcile. Returns whether the reconcile came to its end."""
        self.counts["reconciles"] += 1
        try:
            await work
        except (Died, Retry, TimeoutError):
            return False
        except Exception:
            self.invariants.wrong.append(f"a reconcile failed: {traceback.format_exc()}")
            return False
        return True

    # ---- the operator's process, and its watch

    def _take_over_if_dead(self) -> None:
        if self.process.connection.dead or (self.chances.death and self.random.random() < 0.03):
            self._take_over()

    def _take_over(self) -> None:
        self.counts["another process took over"] += 1
        self.process.connection.dead = True
        self.person.operator_upgraded = False
        self.invariants.new_process()
        self.process = Process(self)

    def _watch(self, *, reliable: bool = False) -> None:
        """Sends the events of Topics, perhaps late, perhaps twice. After a watch has ended, the events of deletions are
        missing.

        After a Cluster was recreated, events may be late for some rounds.
        """
        chance = 0.0 if reliable else self.random.random()
        told, resources = self.process.told, self.process.resources
        if self.person.uid != self._told_of:
            self._told_of = self.person.uid
            self._late_rounds = self.random.choice((0, 1, 6, 20))
        if not reliable and self._late_rounds:
            self._late_rounds -= 1
            self.counts["fault: events late after a Cluster was made again"] += 1
            return
        there = {item["metadata"]["uid"]: copied(item) for item in self.server.all("Topic")}
        if chance > 0.9:
            self.counts["fault: events come later"] += bool(there)
            return
        if chance > 0.8:
            self.counts["fault: watch ended"] += 1
            for item in there.values():
                resources.seen(None, item)
            self.process.told = there
            return
        if self.person.restored:  # the watch has ended, and the next one doesn't report deletions
            self.person.restored = False
            told = {uid: item for uid, item in told.items() if uid in there}
        for uid, item in list(told.items()):
            if uid not in there:
                resources.seen("DELETED", item)
        for uid, item in there.items():
            if told.get(uid) != item:
                resources.seen("MODIFIED", item)
                if chance > 0.7:
                    self.counts["fault: event told twice"] += 1
                    resources.seen("MODIFIED", item)
        self.process.told = there

    # ---- convergence

    async def settle(self, when: str, rounds: int) -> None:
        """Runs healed rounds until the Cluster has converged and the operator writes no more."""
        quiet = 0
        left: list[str] = []
        for number in range(rounds):
            before = self.process.connection.writes
            await self.healed_round()
            left = self.agreement.differences() if self.person.cluster is not None else ["there is no Cluster"]
            quiet = quiet + 1 if not left and self.process.connection.writes == before else 0
            if self.invariants.wrong or quiet >= QUIET_ROUNDS:
                self.counts["rounds to rest"] += number
                return
        said = self.person.cluster["status"].get("message", "") if self.person.cluster is not None else ""
        wrote = self.server.writes[-3:]
        self.invariants.wrong.append(
            f"{when}: not converged after {rounds} rounds: {left[:4] or wrote}; the status says: {said}"
        )

    async def healed_round(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.server.now += timedelta(seconds=HEALED_ROUND_S)
            self._watch(reliable=True)
            if self.person.operator_upgraded:
                self._take_over()
            await self.done(self.process.clusters.reconcile(KEY))
            await self.done(self.process.topics.reconcile(KEY))
            for _ in range(2):
                self.server.step()
                self._files_reach_pods()
                self.brokers.step()
            if self.person.cluster is not None and NEEDS_MORE in self.person.cluster["status"].get("message", ""):
                self.person.bring_back()

    async def _epilogue(self) -> None:
        """One more change of a converged Cluster, whose outcome is checked."""
        names = ["paused", "invalid", "refused", "rights", "scaled down and back"]
        if pair := self._pair_of_two_racks():
            names += ["restarted in two racks"] * 5
        name = self.random.choice(names)
        self.counts[f"epilogue: {name}"] += 1
        await {
            "paused": self._paused,
            "invalid": self._invalid,
            "refused": self._refused,
            "rights": self._without_rights,
            "scaled down and back": self._scaled_down_and_back,
            "restarted in two racks": lambda: self._restarted_in_two_racks(pair),
        }[name]()
        self.person.heal()
        if not self.invariants.wrong:
            await self.settle(f"after it was {name}", ROUNDS_MAX)

    async def _paused(self) -> None:
        self.person.pause()
        self.person.change_image()
        await self.healed_round(3)
        self._expect("Paused", "True", "SpecPaused")
        self._expect("Rolling", "False", "SpecPaused")

    async def _invalid(self) -> None:
        self.person.spoil()
        self._take_over()
        self.server.remove("Service", "k-bootstrap")
        await self.healed_round(3)
        self._expect("Ready", "False", "InvalidSpec")
        if self.server.get_now("Service", "k-bootstrap") is None:
            self.invariants.wrong.append("a Service that was deleted isn't made again while the spec is invalid")

    async def _refused(self) -> None:
        """Makes the API server always refuse one object: the operator still has to do all other work."""
        request = self.random.choice(("apply Service k-bootstrap", "apply ConfigMap k-client"))
        self.server.refusals[request] = KubeError(403, request, "a webhook says no")
        self.brokers.blocking = {min(self.brokers.running())}
        await self.healed_round(2)
        self._expect("Ready", "False", "NotApplied")
        self.invariants.wrong += self.agreement.budget_lies()
        self.brokers.blocking.clear()
        self.person.change_image()
        for _ in range(ROUNDS_MAX):
            await self.healed_round()
            running = {pod["spec"]["containers"][0]["image"] for pod in self.server.pods("broker").values()}
            if running == {self.person.image}:
                return
        self.invariants.wrong.append(f"a roll doesn't end while {request} is refused")

    async def _resized(self) -> None:
        """Gives brokers more CPU, which nodes grant only later. If a resize in place is possible, no broker may
        restart."""
        pods = self.server.pods("broker")
        before = next(iter(pods.values()))["spec"]["containers"][0]["resources"]
        cpu = "300m" if before["requests"]["cpu"] != "300m" else "400m"
        wanted = {**before, "requests": {**before["requests"], "cpu": cpu}}
        in_place = self.server.resizes and quality_of_service(before) == quality_of_service(wanted)
        self.counts[f"epilogue: resized {'in place' if in_place else 'by restarts'}"] += 1
        births = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
        self.server.node_says = dict.fromkeys(pods, self.random.choice(("Deferred", "InProgress")))
        self.person.edit(brokers={**self.person.spec["brokers"], "resources": wanted})
        await self.healed_round(3)
        if in_place:
            self._expect("Rolling", "True", "Resizing")
        self.server.node_says.clear()
        if self.invariants.wrong:
            return
        await self.settle("after it was resized", ROUNDS_MAX)
        now = {name: pod["metadata"]["uid"] for name, pod in self.server.pods("broker").items()}
        if in_place and now != births:
            self.invariants.wrong.append(f"brokers were restarted for other CPU: {births}, and now {now}")

    async def _without_rights(self) -> None:
        self.person.take_rights()
        await self.healed_round()
        await self._rights_told()

    async def _scaled_down_and_back(self) -> None:
        brokers = self.person.spec["brokers"]
        pool = (brokers.get("pools") or [brokers])[0]
        before = pool["replicas"]
        if before < 3:
            return
        pool["replicas"] = before - 1
        self.person.edit(brokers=brokers)
        await self.settle("scaled down", ROUNDS_MAX)
        pool["replicas"] = before
        self.person.edit(brokers=brokers)

    def _pair_of_two_racks(self) -> tuple[int, ...]:
        """Two brokers that could be away at the same time, if they weren't in different racks. Empty if there are none,
        or if only one broker may be away.
        """
        brokers, running = self.brokers, self.brokers.running()
        assert self.person.cluster is not None
        if self.person.spec.get("rolling", {}).get("maxUnavailable", 1) < 2:
            return ()
        joining = sorted(running)[1:]  # the first one is the active controller, which restarts alone
        pairs = [
            pair
            for pair in combinations(joining, 2)
            if brokers.rack(pair[0]) != brokers.rack(pair[1]) and not brokers.lost_by(set(pair))
        ]
        return self.random.choice(pairs) if pairs else ()

    async def _restarted_in_two_racks(self, brokers: tuple[int, ...]) -> None:
        """Asks for the restart of two brokers in different racks, and of no others. The brokers must restart one after
        the other.
        """
        pods = self.brokers.running()
        for broker in brokers:
            self.person.ask_for_restart(pods[broker])

    def _expect(self, kind: str, holds: str, reason: str) -> None:
        assert self.person.cluster is not None
        found = condition(self.person.cluster.get("status"), kind)
        if (found.get("status"), found.get("reason")) != (holds, reason):
            self.invariants.wrong.append(f"{kind} is {found}, and should be {holds}, {reason}")


def _racks(random: Random) -> Object:
    """For some Clusters: racks, and a limit of several brokers that may be restarted at the same time."""
    if random.random() > 0.4:
        return {}
    brokers: Object = {
        "storage": {"size": "1Gi"},
        "pools": [
            {"name": f"r{number}", "firstId": 100 * number, "replicas": count, "rack": f"z{number}"}
            for number, count in enumerate(random.choice(((2, 3), (3, 2), (4, 1))))
        ],
    }
    if random.random() < 0.2:
        brokers = {"storage": {"size": "1Gi"}, "replicas": 4, "rack": "z"}
    return {"brokers": brokers, "rolling": {"maxUnavailable": random.choice((1, 2, 2, 3))}}


def simulate(seed: int) -> Verdict:
    """Runs a seed."""
    run = Run(seed)
    run.play(run.everything())
    told = [*run.server.writes, *map(str, run.server.events), *sorted(map(str, run.counts.items()))]
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
    return Verdict(digest, run.invariants.wrong, run.counts)


def main() -> int:
    """Runs the seed of the command line. Returns the exit code: 1 if there was a violation, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--planted", default="", help="with this bug planted")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    from tests.simulation_operator.planted import planted

    with planted(options.planted):
        verdict = simulate(options.seed)
    for name, count in sorted(verdict.counts.items()):
        print(f"{count:6d}  {name}")
    print(f"digest {verdict.digest}")
    for sentence in verdict.wrong:
        print(sentence)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
