"""The connections of one operator process to the world, and their faults.

A request may be refused, carried out with a lost answer, carried out twice, or answered late, after further steps of
the world. The process may die before or after any write, and a dead process writes no more. The answers that the
process got last are passed to the invariants, because these depend on what the process could know.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from ottla.operator.brokers import PageAt
from ottla.operator.certificates import Issued, each_in
from ottla.operator.etcd_client import EtcdUnreachable
from ottla.operator.exposure import ADDRESSES
from ottla.operator.kafka import Unreachable
from ottla.operator.kube import KubeError
from ottla.operator.objects import Object
from ottla.operator.plan.etcd_members import Member
from ottla.operator.plan.etcd_upkeep import MemberStatus
from ottla.operator.plan.roll import Report
from ottla.operator.plan.topic import Configure, Create, Delete, Grow, KafkaCluster, Move
from ottla.operator.plan.volumes import LogDirectory
from ottla.operator.spec.cluster import ENCRYPTED_REPLICATION_PORT
from ottla.placement import PartitionName
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.simulation_operator.brokers import Brokers, EtcdMembers, Refusals, altered
from tests.simulation_operator.invariants import Invariants
from tests.simulation_operator.kubelets import Kubelets
from tests.simulation_operator.kubernetes import ApiServer

T = TypeVar("T")
REFUSED = (403, 409, 422, 429, 500, 503)
LATE_STEPS = 3
CHANGES_ARE_RARE = 5.0  # changes of brokers are rarer than requests to Kubernetes, so their faults are likelier


class Died(BaseException):
    """The operator's process died. It's a BaseException, so that none of the operator's code catches it."""


@dataclass
class Chances:
    """The probability of each fault, for each request; by default all are 0."""

    refused: float = 0.0
    lost: float = 0.0  # the request is carried out, but its answer is lost
    twice: float = 0.0
    late: float = 0.0
    death: float = 0.0
    silent: float = 0.0  # a broker's page, etcd, or the brokers' Kafka protocol gives no answer


class Connection:
    """The connections of one process. It has the methods of `Kube`."""

    def __init__(
        self,
        random: Random,
        server: ApiServer,
        brokers: Brokers,
        etcd: EtcdMembers,
        kubelets: Kubelets,
        invariants: Invariants,
        counts: Counter[str],
        chances: Chances,
        world_goes_on: Callable[[], None],
    ) -> None:
        self.dead = False
        self.troubled = 0  # faults of requests, and steps of the world between requests
        self.writes = 0
        self._random = random
        self._server = server
        self.brokers = brokers
        self._etcd = etcd
        self._kubelets = kubelets
        self._invariants = invariants
        self._counts = counts
        self.chances = chances
        self._world_goes_on = world_goes_on

    # ---- Kubernetes

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        found = await self._read(kind, lambda: self._server.get(kind, namespace, name))
        if kind == "Cluster":
            self._invariants.read_cluster(found)
        return found

    async def knows(self, kind: str, namespace: str = "") -> bool:
        return await self._read(kind, lambda: self._server.knows(kind, namespace))

    async def offers(self, kind: str, subresource: str) -> bool:
        return await self._read(kind, lambda: self._server.offers(kind, subresource))

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        return await self._read(kind, lambda: self._server.list(kind, namespace, labels))

    async def apply(self, wanted: Object, observed: Object | None = None) -> Object:
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        check = lambda: self._invariants.applies(wanted)  # noqa: E731
        return await self._write(kind, name, lambda: self._server.apply(wanted, observed), check)

    async def create(self, wanted: Object) -> Object:
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        check = lambda: self._invariants.applies(wanted)  # noqa: E731
        return await self._write(kind, name, lambda: self._server.create_new(wanted), check)

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        check = lambda: self._invariants.patches(kind, name, subresource)  # noqa: E731
        return await self._write(
            kind, name, lambda: self._server.merge(kind, namespace, name, patch, subresource), check
        )

    async def write_status(self, resource: Object, status: Object) -> None:
        name = resource["metadata"]["name"]
        await self._write("Cluster", name, lambda: self._server.write_status(resource, status), lambda: None)

    async def delete(
        self, kind: str, namespace: str, name: str, *, propagation: str = "Background", **only: Any
    ) -> bool:
        def check() -> None:
            if self._server.would_delete(kind, namespace, name, **only):
                self._invariants.deletes(kind, name, propagation)

        done = self._server.delete
        return await self._write(
            kind, name, lambda: done(kind, namespace, name, propagation=propagation, **only), check
        )

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        self._alive()
        self._invariants.told(reason, message)
        await self._server.event(about, reason, message, now, warning=warning)

    # ---- brokers and etcd

    async def reports(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        """As `BrokerPages.reports`."""
        self._alive()
        told = {}
        for broker in pages:
            if broker not in self.brokers.running() or not self._reads(broker, pages[broker]):
                continue
            if self._happens("silent"):
                self._note("broker's page silent")
                continue
            told[broker] = self.brokers.report(broker)
        self._invariants.reported(told)
        return told

    async def together(self, pages: Mapping[int, PageAt], away: Collection[int]) -> dict[int, Report]:
        """As `BrokerPages.together`."""
        self._alive()
        self._move_on()
        told = {}
        for broker, page in pages.items():
            if broker in self.brokers.running() and self._reads(broker, page) and not self._happens("silent"):
                told[broker] = self.brokers.report(broker, frozenset({*away, broker}))
        self._invariants.reported_together(told)
        return told

    def _reads(self, broker: int, page: PageAt) -> bool:
        """Whether the operator reads the broker's pages as they are served, and both accept each other over TLS."""
        name = self.brokers.running()[broker]
        pod = self._server.get_now("Pod", name)
        assert pod is not None
        (probe,) = {each["readinessProbe"]["httpGet"].get("scheme", "HTTP") for each in pod["spec"]["containers"]}
        if page.identity is None:
            return bool(probe == "HTTP")
        pair = Issued(page.identity.certificate, page.identity.key)
        shown = any(self._kubelets.shows(name, each) for each in each_in([page.identity.authority]))
        return probe == "HTTPS" and shown and self._kubelets.accepts(name, pair)

    async def deciding(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        """As `BrokerPages.deciding`."""
        self._alive()
        return {number: Report(controls=number == 0) for number in pages}

    async def members(self, addresses: Sequence[str]) -> list[Member]:
        """As `EtcdClient.members`."""
        self._alive()
        found = self._etcd.members()
        if self._happens("silent"):
            self._note("etcd silent")
            found = None
        if found is None:
            raise EtcdUnreachable("no majority answers")
        return list(found)

    async def status(self, address: str) -> MemberStatus:
        """As `EtcdClient.status`."""
        if not await self.members([address]):
            raise EtcdUnreachable("nobody")
        return MemberStatus(leads="etcd-0" in address, size_bytes=1000, used_bytes=1000, version="3.6.0", revision=7)

    async def alarms(self, addresses: Sequence[str]) -> list[Object]:
        """As `EtcdClient.alarms`: there are none."""
        return []

    async def close(self) -> None:
        """Does nothing: there is no connection to close."""

    async def kafka(self, does: Callable[[], T], what: str = "") -> T:
        """Sends a request by Kafka's protocol. `what` names the change; it is empty for a request that only reads."""
        self._alive()
        self._move_on()
        if not self.brokers.running():
            raise Unreachable("no broker runs")
        if self._happens("silent"):
            self._note("kafka: not done, no answer" if what else "kafka: no answer")
            raise Unreachable("no answer came")
        if what:
            self._dies("before a change of the brokers", CHANGES_ARE_RARE)
            self._invariants.asks_brokers()
        done = does()
        if what:
            self.writes += 1
            self._dies("after a change of the brokers", CHANGES_ARE_RARE)
            if self._happens("lost", CHANGES_ARE_RARE):
                self._note("kafka: done, no answer")
                raise Unreachable("the answer was lost")
        return done

    async def accepted(self, hosts: Iterable[str], port: int, pair: Issued) -> bool:
        """Whether brokers accept a certificate of another authority, as `TrustProbe` asks."""
        self._alive()
        self._move_on()
        pods = [host.removeprefix("ip-") for host in hosts]
        heard = port != ENCRYPTED_REPLICATION_PORT or all(self._kubelets.accepts(pod, pair) for pod in pods)
        return heard and not self._happens("silent")

    async def shown(self, hosts: Iterable[str], port: int, pair: Issued, authority: bytes) -> bool:
        """Whether brokers show certificates of another authority, as `TrustProbe` asks."""
        pods = [host.removeprefix("ip-") for host in hosts]
        seen = port != ENCRYPTED_REPLICATION_PORT or all(self._kubelets.shows(pod, authority) for pod in pods)
        return seen and await self.accepted(hosts, port, pair)

    def tells_addresses(self, told: str) -> None:
        """Checks the invariants before a broker is told its addresses outside."""
        self._invariants.tells_addresses(told)

    def refuses_topic(self) -> bool:
        """Whether the brokers refuse changes of this topic now."""
        if self._happens("silent", CHANGES_ARE_RARE):
            self._note("kafka: a topic's change refused")
            return True
        return False

    def deletes_topic(self, step: Delete) -> None:
        """Checks the invariants before a topic is deleted."""
        self._invariants.deletes_topic(self.brokers.topics.get(step.topic), step)

    def marks_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """Checks the invariants before a topic gets settings."""
        self._invariants.marks_topic(name, settings)

    # ---- faults

    async def _read(self, kind: str, does: Callable[[], Awaitable[T]]) -> T:
        self._alive()
        await asyncio.sleep(0)
        self._move_on()
        if self._server.no_rights:
            raise KubeError(403, f"reading {kind}", "the operator has no rights")
        if self._happens("refused"):
            self._refuse(f"reading {kind}")
        answer = await does()
        if self._happens("late"):
            self._note("read answered late")
            for _ in range(LATE_STEPS):
                self._world_goes_on()
        return answer

    async def _write(self, kind: str, name: str, does: Callable[[], Awaitable[T]], check: Callable[[], None]) -> T:
        self._alive()
        await asyncio.sleep(0)
        self._alive()
        self._move_on()
        self._dies("before a write")
        if self._server.no_rights:
            raise KubeError(403, f"writing {kind}", "the operator has no rights")
        if self._happens("refused"):
            self._refuse(f"writing {kind} {name}")
        check()
        before = len(self._server.writes)
        answer = await does()
        changed = len(self._server.writes) > before
        self.writes += changed
        if changed:
            self._invariants.written(kind, name)
            if self._happens("twice"):
                self._note("write done twice")
                answer = await does()
            self._dies("after a write")
            if self._happens("lost"):
                self._note("write done, no answer")
                raise KubeError(0, f"writing {kind} {name}", "timed out")
            if self._happens("late"):
                self._note("write answered late")
                self._world_goes_on()
        return answer

    def _alive(self) -> None:
        if self.dead:
            raise Died

    def _dies(self, when: str, times: float = 1.0) -> None:
        if self._happens("death", times):
            self._note(f"operator died {when}")
            self.dead = True
            raise Died

    def _refuse(self, doing: str) -> None:
        status = self._random.choice((0, *REFUSED))
        self._note("request timed out, not done" if status == 0 else f"request refused: {status}")
        raise KubeError(status, doing, "timed out" if status == 0 else "refused")

    def _move_on(self) -> None:
        if self._happens("late"):
            self.troubled += 1
            self._world_goes_on()

    def _happens(self, what: str, times: float = 1.0) -> bool:
        chance: float = getattr(self.chances, what) * times
        return chance > 0 and self._random.random() < chance

    def _note(self, kind: str) -> None:
        self.troubled += 1
        self._counts[f"fault: {kind}"] += 1


class Admin:
    """A stand-in for `KafkaAdmin`, for one process and one Cluster."""

    def __init__(self, connection: Connection, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._to = connection

    def close(self) -> None:
        """Does nothing: there is no connection to close."""

    async def cluster_id(self) -> str:
        return await self._to.kafka(lambda: "4L6g3nShT-eMCtK--X86sw")

    async def look(self, *, internal: bool = False) -> KafkaCluster:
        return await self._to.kafka(lambda: self._to.brokers.now(internal=internal))

    async def throttled_by_hand(self) -> bool:
        return await self._to.kafka(lambda: False)

    async def settings(self, kind: int, name: str) -> dict[str, str]:
        brokers = self._to.brokers
        return await self._to.kafka(lambda: dict(brokers.own.get(int(name), {}) if name else brokers.settings))

    async def configure_brokers(self, given: Mapping[str, str], reset: Iterable[str] = (), *, broker: str = "") -> None:
        brokers = self._to.brokers
        self._to.tells_addresses(given.get(ADDRESSES, ""))
        settings = brokers.own.setdefault(int(broker), {}) if broker else brokers.settings
        await self._to.kafka(lambda: altered(settings, given, reset), "settings")

    async def own_settings(self, brokers: Iterable[int]) -> dict[int, dict[str, str]] | None:
        own = self._to.brokers.own
        return await self._to.kafka(lambda: {broker: dict(own.get(broker, {})) for broker in brokers})

    async def log_directories(self) -> list[LogDirectory]:
        broker = self._only_one()
        return await self._to.kafka(lambda: self._to.brokers.directories.describe(broker))

    async def move_to_directories(self, moves: Mapping[str, Sequence[PartitionName]]) -> None:
        broker = self._only_one()
        await self._to.kafka(lambda: self._to.brokers.directories.move(broker, moves), "directories")

    def _only_one(self) -> int:
        """The id of the broker whose pod has the bootstrap address."""
        for broker, pod in self._to.brokers.running().items():
            if self.bootstrap.startswith(f"ip-{pod}:"):
                return broker
        raise Unreachable("it doesn't serve")

    async def create(self, steps: Sequence[Create]) -> Refusals:
        def one(step: Create) -> KafkaError | None:
            self._to.marks_topic(step.topic, step.config)
            return self._to.brokers.create(step)

        return await self._each(steps, one)

    async def configure(self, steps: Sequence[Configure]) -> Refusals:
        def one(step: Configure) -> KafkaError | None:
            self._to.marks_topic(step.topic, step.given)
            return self._to.brokers.configure(step)

        return await self._each(steps, one)

    async def grow(self, steps: Sequence[Grow]) -> Refusals:
        return await self._each(steps, self._to.brokers.grow)

    async def move(self, steps: Sequence[Move]) -> Refusals:
        return await self._each(steps, self._to.brokers.move)

    async def delete(self, steps: Sequence[Delete]) -> Refusals:
        def one(step: Delete) -> KafkaError | None:
            self._to.deletes_topic(step)
            return self._to.brokers.delete(step)

        return await self._each(steps, one)

    async def _each(self, steps: Sequence[Any], does: Callable[[Any], KafkaError | None]) -> Refusals:
        def asked(step: Any) -> KafkaError | None:
            if self._to.refuses_topic():
                return KafkaError(ErrorCode.not_controller, "another broker decides by now")
            return does(step)

        if not steps:
            return {}
        return await self._to.kafka(lambda: {step.topic: asked(step) for step in steps}, "topics")
