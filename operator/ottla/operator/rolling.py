"""Carries out the decisions of `plan/roll.py`: reads brokers' reports, plans the PodDisruptionBudget, restarts a pod.

Each reconcile restarts at most one pod, even if several pods may be away at the same time. So each pod is chosen by
the state after the restarts before it.

Controllers with pods of their own are restarted by the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ottla.operator.brokers import BrokerPages, PageAt, encrypted, pages_of
from ottla.operator.kube import Kube, KubeError
from ottla.operator.link import identity_of
from ottla.operator.objects import Object
from ottla.operator.plan import disruption, names
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.plan.etcd_pods import ETCD
from ottla.operator.plan.observed import broker_pod, is_current, versions
from ottla.operator.plan.roll import NOBODY, Decision, Pod, Report, decide, joining
from ottla.operator.queue import Retry
from ottla.operator.resizing import Resizing
from ottla.operator.restarts import restart_chosen
from ottla.operator.visit import Visit, ordinal


class Rolling:
    """Restarts the pods of brokers and controllers of any cluster."""

    def __init__(self, kube: Kube, pages: BrokerPages, resizing: Resizing) -> None:
        self._kube = kube
        self._pages = pages
        self._resizing = resizing

    async def look(self, visit: Visit) -> None:
        """Notes the state of the brokers' pods in the findings, with the brokers' reports."""
        cluster, found = visit.cluster, visit.found
        pods = visit.broker_pods()
        reports = await self._pages.reports(await self._pages_of(visit, pods))
        claims = found.by_name("PersistentVolumeClaim", BROKER)
        files = _files(visit)
        resizes = await self._resizing.look(visit, found.by_name("StatefulSet", BROKER), pods)
        seen: list[Pod] = []
        # A broker that isn't wanted any more is among them, also while its pod is missing: until it is drained, other
        # brokers' restarts wait for its return.
        for broker, name in sorted(visit.pod_names().items()):
            stateful_set = found.get("StatefulSet", names.set_of(name))
            pod, report, resize = pods.get(broker), reports.get(broker), resizes.get(broker)
            known = (claims, visit.now, files, visit.absent_since, resize)
            seen.append(broker_pod(broker, name, stateful_set, pod, report, *known))
        of_pools = [found.get("StatefulSet", names.broker_set(cluster, pool)) for pool in cluster.pools]
        visit.current &= all(each is not None and is_current(each) for each in of_pools)
        visit.findings.pods = seen
        visit.findings.version = versions(pods.values())

    async def decide(self, visit: Visit) -> None:
        """Decides whether a pod is to be restarted or resized, and whether one may be evicted."""
        await self._decide(visit)

    async def _decide(self, visit: Visit) -> Decision:
        findings = visit.findings
        assert findings.pods is not None
        held = visit.draining
        hold, others = visit.waits_for_others(ETCD, CONTROLLER), visit.waits_for_pods(ETCD, CONTROLLER)
        limit = visit.cluster.rolling.limit(len(visit.cluster.broker_ids))
        together = await self._together(visit, findings.pods, limit, held) if visit.window_open and not hold else NOBODY
        decision = decide(
            findings.pods,
            window_open=visit.window_open,
            hold=hold,
            others=others,
            held=held,
            limit=limit,
            together=together,
            cut_off=visit.cut_off,
        )
        if visit.awaited_keys or not visit.current:
            decision = _later(decision, visit)
        findings.decision = decision
        visit.rolls(decision)
        visit.busy |= not decision.evictable
        return decision

    async def _together(
        self, visit: Visit, pods: Sequence[Pod], limit: int, held: Collection[int]
    ) -> Mapping[int, Report]:
        """For each broker that may be restarted while others are away: its report on the risks of its stop while these
        are away."""
        away, able = joining(pods, limit, held)
        if not able:
            return NOBODY
        where = await self._pages_of(visit, visit.broker_pods())
        asked = {pod.id: where[pod.id] for pod in able if pod.id in where}
        return await self._pages.together(asked, [pod.id for pod in away])

    async def _pages_of(self, visit: Visit, pods: Mapping[int, Object]) -> dict[int, PageAt]:
        """Where these pods' pages are. Encrypted ones are left out while the operator's certificate can't be read."""
        if visit.identity is None and any(map(encrypted, pods.values())):
            with suppress(Retry):
                visit.identity = await identity_of(self._kube, visit.cluster.ref)
        return pages_of(pods, visit.identity)

    def budget(self, visit: Visit) -> list[Object]:
        """The PodDisruptionBudget of the brokers; without a decision it allows no eviction."""
        decision = visit.findings.decision
        return [disruption.brokers(visit.cluster, evictable=decision is not None and decision.evictable)]

    async def restart_one(self, visit: Visit) -> None:
        """Restarts the pod that was decided on, if a second decision just before chooses the same pod."""

        async def decide_again() -> Decision:
            visit.current = True
            await self.look(visit)
            return await self._decide(visit)

        assert visit.findings.decision is not None
        await restart_chosen(self._kube, visit, visit.findings.decision, decide_again)

    async def roll_controllers(self, visit: Visit) -> None:
        """Restarts one controller with a pod of its own, if one is due; the active controller is the last."""
        if not visit.cluster.controllers.replicas:
            return
        decision = await self._decide_controllers(visit)
        await restart_chosen(self._kube, visit, decision, lambda: self._decide_controllers(visit))

    async def _decide_controllers(self, visit: Visit) -> Decision:
        cluster, found = visit.cluster, visit.found
        name = names.controller_set(cluster)
        stateful_set = found.get("StatefulSet", name)
        pods = {ordinal(pod): pod for pod in found.all("Pod", CONTROLLER)}
        reports = await self._pages.deciding(await self._pages_of(visit, pods))
        seen = [
            broker_pod(number, f"{name}-{number}", stateful_set, pods.get(number), reports.get(number), {}, visit.now)
            for number in range(cluster.controllers.replicas)
        ]
        hold = visit.waits_for_others(ETCD, BROKER)
        decision = decide(seen, window_open=visit.window_open, hold=hold)
        if visit.awaited_keys or stateful_set is None or not is_current(stateful_set):
            decision = _later(decision, visit)
        visit.findings.controller_roll = decision
        visit.rolls(decision)
        return decision


def _files(visit: Visit) -> Mapping[str, str] | None:
    """The files of settings with which brokers would be started now: the data of the present ConfigMap in Kubernetes.
    None where it can't be read or doesn't exist."""
    with suppress(KubeError):
        if (present := visit.found.get("ConfigMap", names.broker_config(visit.cluster))) is not None:
            return present.get("data") or {}
    return None


def _later(decision: Decision, visit: Visit) -> Decision:
    """The decision without its restart, resize and evictions, because a broker couldn't start now without its key, or
    it isn't known yet which pods are outdated."""
    waits_for = visit.awaited_keys or decision.waits_for or "Kubernetes to observe the change of a StatefulSet"
    return replace(decision, restart=None, resize=None, waits_for=waits_for, evictable=False)
