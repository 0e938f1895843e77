"""Keeps a cluster's brokers in balance, as `spec.balance` says: measures, suggests, moves.

Loads are measured between two looks that are `WINDOW_S` apart. A plan is carried out a bounded number of partitions at
once, under the Cluster's throttle, and is looked for anew once it is done. It lives in memory: another process of the
operator measures again, and what is under way ends by itself. Nothing is begun while brokers come, go or restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ottla.balance.measured import Worked, loads, rates
from ottla.operator.kafka import KafkaAdmin, said
from ottla.operator.objects import Ref
from ottla.operator.plan.balance import Balancing, moving, wanted_moves
from ottla.operator.plan.scale import ScalePlan, moves_at_once, unthrottled
from ottla.operator.plan.topic import KafkaCluster, Replicas
from ottla.operator.queue import Retry
from ottla.operator.scaling import begin, make
from ottla.operator.spec.balance import Balance, Mode
from ottla.operator.visit import Visit
from ottla.placement import PartitionName
from ottla.protocol.errors import KafkaError

WINDOW_S = 110.0  # a little less than what lies between two looks where nothing happens


@dataclass
class _Known:
    """Of one Cluster."""

    wish: Balance
    looked: datetime | None = None
    worked: Mapping[int, Worked] = field(default_factory=dict)
    plan: dict[PartitionName, Replicas] = field(default_factory=dict)  # that is carried out
    said: Balancing = field(default_factory=lambda: Balancing("being measured"))


class Balancer:
    """Balances any cluster's brokers."""

    def __init__(self) -> None:
        self._known: dict[Ref, _Known] = {}

    def forget(self, key: Ref) -> None:
        """Drops what is known of a cluster that is gone."""
        self._known.pop(key, None)

    async def balance(self, visit: Visit) -> None:
        """One step: a look, a suggestion, or some moves."""
        cluster = visit.cluster
        wish = cluster.balance
        if wish.mode is Mode.OFF:
            self.forget(cluster.ref)
            return
        known = self._known.get(cluster.ref)
        if known is None or known.wish != wish:
            known = self._known[cluster.ref] = _Known(wish)
        visit.findings.balancing = known.said
        if _unsettled(visit):
            known.plan, known.looked = {}, None
            known.said = visit.findings.balancing = Balancing("waits until brokers neither come, go nor restart")
            return
        try:
            if known.plan:
                await self._carry_out(visit, known)
            elif known.looked is None or (visit.now - known.looked).total_seconds() >= WINDOW_S:
                await self._measure(visit, known)
        except KafkaError as error:
            raise Retry(f"replicas can't be moved for balance: {said(error)}") from error
        visit.findings.balancing = known.said

    async def _measure(self, visit: Visit, known: _Known) -> None:
        admin, before, first = visit.asked, known.worked, known.looked is None
        told = await admin.loads()
        known.looked, known.worked = visit.now, told.worked
        if first:
            known.said = Balancing("being measured")
            return
        kafka = await admin.look(internal=True)
        if _moves(kafka):
            known.said = Balancing("waits for replicas that are moved for something else")
            return
        if known.wish.mode is Mode.RUN:  # what an earlier plan left, which was given up for a roll
            await make(await admin.configure(unthrottled(kafka)))
        assignments = {
            (topic.name, index): partition.target
            for topic in kafka.topics.values()
            for index, partition in topic.partitions.items()
        }
        speeds = {broker: rates(before[broker], work) for broker, work in told.worked.items() if broker in before}
        found, plan = wanted_moves(kafka, loads(assignments, kafka.racks, speeds, told.directories), known.wish)
        if known.wish.mode is Mode.RUN and plan:
            known.plan = plan
            await visit.tell("Balancing", found.summary)
            await self._carry_out(visit, known)
            return
        if plan and found.summary != known.said.summary:
            await visit.tell("OutOfBalance", f"{found.summary}; spec.balance.mode: Run makes them")
        known.said = found

    async def _carry_out(self, visit: Visit, known: _Known) -> None:
        admin: KafkaAdmin = visit.asked
        kafka = await admin.look(internal=True)
        known.said, left = moving(known.plan, kafka)
        if known.said.moves:
            visit.busy = True
            if left:
                await begin(admin, visit.cluster, kafka, ScalePlan(moves_at_once(kafka, left)))
            return
        await make(await admin.configure(unthrottled(kafka)))
        await visit.tell("Balanced", f"{len(known.plan)} partitions were moved")
        known.plan, known.looked = {}, None
        known.said = Balancing("being measured")


def _unsettled(visit: Visit) -> bool:
    scaling, decision = visit.findings.scaling, visit.findings.decision
    rolling = decision is not None and (decision.rolling or bool(decision.waits_for))
    return bool(visit.leaving or scaling.reason or scaling.waits_for or scaling.draining or rolling)


def _moves(kafka: KafkaCluster) -> bool:
    return any(partition.moving for topic in kafka.topics.values() for partition in topic.partitions.values())
