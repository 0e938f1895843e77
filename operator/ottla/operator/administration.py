"""The parts of a reconcile that use Kafka's admin protocol: settings, addresses, moves of replicas, lost volumes.

A broker that stops closes its connections, and that is no failure of the cluster. So a part whose request gets no
answer waits, and isn't reported as failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from ottla.operator.balancing import Balancer
from ottla.operator.broker_sets import BrokerSets
from ottla.operator.emptying import Emptying
from ottla.operator.exposure import Exposure
from ottla.operator.kafka import KafkaAdmins, Unreachable, said
from ottla.operator.kube import Kube
from ottla.operator.link import bootstrap_of, link_of
from ottla.operator.objects import Ref
from ottla.operator.overrides import apply_overrides
from ottla.operator.parts import NotYet
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.lost import only_there, waits_for_its_volume
from ottla.operator.plan.roll import Pod
from ottla.operator.plan.scale import holders
from ottla.operator.plan.storage import Storage
from ottla.operator.queue import Retry
from ottla.operator.scaling import scale
from ottla.operator.settings import apply_settings
from ottla.operator.visit import Visit, ordinal
from ottla.operator.volumes import begin_anew
from ottla.protocol.errors import KafkaError

_Does = Callable[[Visit], Awaitable[None]]


def asking(does: _Does) -> _Does:
    """Wraps `does`, the function of a part of a reconcile (`parts.py`). While no broker answers, the wrapped function
    raises NotYet: the part waits, and doesn't count as failed."""

    async def part(visit: Visit) -> None:
        try:
            await does(visit)
        except Unreachable as error:
            visit.findings.brokers_wait_for = str(error)
            visit.busy = True
            raise NotYet(str(error)) from error

    return part


class Administration:
    """The parts of a reconcile that send requests to the brokers, for any cluster."""

    def __init__(self, kube: Kube, exposure: Exposure, sets: BrokerSets) -> None:
        self._kube = kube
        self._exposure = exposure
        self._sets = sets
        self._admins = KafkaAdmins()
        self._balancer = Balancer()
        self._emptying = Emptying(kube)

    def close(self) -> None:
        """Ends all connections to brokers."""
        self._admins.close()

    def forget(self, key: Ref) -> None:
        """Ends the connection to the brokers of a cluster that is gone."""
        self._admins.forget(key)
        self._balancer.forget(key)

    async def answer(self, visit: Visit) -> None:
        """Asks for the cluster's id, and notes whether any broker answers. Raises NotYet where no broker is ready."""
        if not any(pod.ready for pod in visit.findings.pods or ()):
            raise NotYet("no broker is ready")
        cluster = visit.cluster.ref
        link = visit.link = await link_of(self._kube, cluster, encrypted=visit.findings.encrypted_links)
        admin = self._admins.get(cluster, bootstrap_of(*cluster, link), link)
        visit.findings.answers = False
        visit.findings.cluster_id = await admin.cluster_id()
        visit.findings.answers = True
        visit.admin = admin

    async def settings(self, visit: Visit) -> None:
        """Applies the dynamic settings of all brokers."""
        visit.findings.config_waits_for = await apply_settings(visit.asked, visit.cluster, visit.tell)

    async def overrides(self, visit: Visit) -> None:
        """Applies the dynamic settings of single brokers."""
        findings = visit.findings
        try:
            told = await apply_overrides(visit.asked, visit.cluster, visit.broker_pods(), visit.link, visit.tell)
        except KafkaError as error:
            raise Retry(f"the dynamic settings of single brokers can't be read: {said(error)}") from error
        findings.overrides_wait_for = told.waits_for
        visit.own_settings = told.present
        if told.refusal:
            findings.config_waits_for = findings.config_waits_for or told.refusal

    async def addresses(self, visit: Visit) -> None:
        """Tells brokers their external addresses. A later change of a Service causes a new reconcile, by the watch.
        While keys are lost, no certificate can be for another address, so brokers keep the addresses that they have."""
        if visit.awaited_keys:
            visit.findings.listeners_wait_for = visit.awaited_keys
            return
        waits_for = await self._exposure.tell(visit.broker_pods(), visit.addresses, visit.link, visit.tell)
        visit.findings.listeners_wait_for = waits_for

    async def scale(self, visit: Visit) -> None:
        """Drains the brokers that are to be removed, and then removes their pods; or moves replicas to new brokers."""
        cluster, findings, leaving = visit.cluster, visit.findings, visit.leaving
        before = findings.scaling
        try:
            scaling = findings.scaling = await scale(
                visit.asked, cluster, before, leaving, lacking=_lacks_replicas(findings.pods or ())
            )
        except KafkaError as error:
            raise Retry(f"replicas can't be moved: {said(error)}") from error
        if stay := sorted(broker for broker in before.draining - scaling.draining if _stays(visit, broker)):
            who, is_not = ("brokers", "aren't") if len(stay) > 1 else ("broker", "isn't")
            await visit.tell("DrainEnded", f"{who} {', '.join(map(str, stay))} {is_not} removed after all")
        if scaling.progress and scaling.progress != before.progress:
            await visit.tell("MovingReplicas", scaling.progress)
        visit.busy |= scaling.goes_on
        if leaving and scaling.drained:
            await self._sets.shrink(visit)

    async def free_ids(self, visit: Visit) -> None:
        """Gives up the volumes of brokers that are gone, if other pools wait for their ids and no partition has a
        replica on these ids."""
        if not (gone := visit.findings.held_back.undrained):
            return
        kafka = await visit.asked.look(internal=True)
        for broker in gone.keys() - holders(kafka):
            await self._sets.free(visit, gone[broker])
            visit.busy = True

    async def balance(self, visit: Visit) -> None:
        """Balances the brokers' load, if the spec asks for it."""
        await self._balancer.balance(visit)

    async def empty_volumes(self, visit: Visit) -> None:
        """Moves replicas away from volumes that the spec doesn't want any more."""
        await self._emptying.empty(visit)

    async def replace_lost(self, visit: Visit) -> None:
        """Replaces the lost volume of one broker, if every partition of this broker has in-sync replicas on other
        brokers."""
        after_s = visit.cluster.lost_after_s
        lost = [
            pod
            for pod in visit.found.all("Pod", BROKER)
            if after_s is not None and waits_for_its_volume(pod, after_s, visit.now)
        ]
        if not lost:
            return
        pod, name = lost[0], lost[0]["metadata"]["name"]
        if left := only_there(await visit.asked.look(internal=True), ordinal(pod)):
            message = f"the volume of {name} is lost, and no other broker has an in-sync replica of partition {left[0]}"
            visit.findings.storage_is(Storage("Lost", message))
            return
        assert after_s is not None
        await begin_anew(self._kube, visit, pod, after_s)


def _stays(visit: Visit, broker: int) -> bool:
    """Whether a broker that was drained is wanted again. If it is gone, the spec may want another pool's broker of the
    same id, which has no pod yet and was never drained."""
    return broker in visit.cluster.broker_ids and visit.pod_names()[broker] in visit.found.by_name("Pod", BROKER)


def _lacks_replicas(pods: Collection[Pod]) -> bool:
    """Whether partitions lack replicas or a leader, although all brokers' pods are ready and all brokers answer."""
    if not all(pod.ready and pod.report is not None for pod in pods):
        return False
    return any(pod.report.under_replicated or pod.report.without_leader for pod in pods if pod.report)
