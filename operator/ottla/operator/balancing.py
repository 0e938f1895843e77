"""Keeps a cluster's brokers in balance, as `spec.balance` says: measures their load, and suggests or makes moves of
replicas.

Loads are measured between two requests that are `WINDOW_S` apart, and only if every broker answered both. A plan is
carried out for a bounded number of partitions at a time, under the Cluster's throttle. Once all of its moves are
complete, loads are measured again. The plan is kept in memory only: after a restart, the operator measures again, and
moves that are under way complete by themselves. When brokers are added, removed or restarted, the plan is given up.
While a broker isn't ready, no more moves of the plan are begun.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from ottla.balance.measured import loads, rates
from ottla.operator.kafka import said
from ottla.operator.kafka_loads import Loads
from ottla.operator.objects import Ref
from ottla.operator.plan.balance import Balancing, Planned, moving, not_answered, wanted_moves
from ottla.operator.plan.scale import ScalePlan, moves_at_once
from ottla.operator.plan.topic import KafkaCluster
from ottla.operator.queue import Retry
from ottla.operator.scaling import begin, unthrottle
from ottla.operator.spec.balance import Balance, Mode
from ottla.operator.visit import Visit
from ottla.placement import PartitionName
from ottla.protocol.errors import KafkaError
from ottla.wording import counted

WINDOW_S = 110.0  # a little less than the pause between two reconciles of a Cluster where nothing happens
_MEASURING = Balancing("being measured")


@dataclass
class _Known:
    """The measurement and the plan of one Cluster."""

    uid: str
    wish: Balance
    looked: datetime | None = None
    before: Loads | None = None
    plan: dict[PartitionName, Planned] = field(default_factory=dict)  # the plan that is being carried out
    throttled: bool = False  # whether topics' settings may still name replicas that were throttled for a plan
    said: Balancing = _MEASURING

    def measure_anew(self, why: Balancing) -> None:
        """Drops the plan and the measurement; `why` becomes the state of the balance in the Cluster's status."""
        self.plan, self.looked, self.before, self.said = {}, None, None, why


class Balancer:
    """Balances the brokers of any cluster."""

    def __init__(self) -> None:
        self._known: dict[Ref, _Known] = {}

    def forget(self, key: Ref) -> None:
        """Drops what is known of a cluster that is gone."""
        self._known.pop(key, None)

    async def balance(self, visit: Visit) -> None:
        """One step: a measurement, a suggestion, or some moves. Raises Retry if the brokers refuse a request."""
        cluster, wish = visit.cluster, visit.cluster.balance
        known = self._known.get(cluster.ref)
        if known is None or known.uid != cluster.uid:
            known = self._known[cluster.ref] = _Known(cluster.uid, wish)
        if known.wish != wish:
            known.wish = wish
            known.measure_anew(_MEASURING)
        try:
            if wish.mode is not Mode.RUN and known.throttled:
                await self._unthrottle(visit, known, await visit.asked.look(internal=True))
            if wish.mode is Mode.OFF:
                return
            await self._step(visit, known)
        except KafkaError as error:
            known.measure_anew(_MEASURING)
            raise Retry(f"replicas can't be moved for balance: {said(error)}") from error
        visit.findings.balancing = known.said

    async def _step(self, visit: Visit, known: _Known) -> None:
        waits_for = _waits_for(visit)
        if waits_for and not known.plan:
            known.measure_anew(Balancing(f"waits for {waits_for}"))
        elif others := _others_move(visit):
            known.measure_anew(Balancing(f"waits until {others}"))
        elif known.plan:
            await self._carry_out(visit, known, hold=bool(waits_for))
        elif known.looked is None or (visit.now - known.looked).total_seconds() >= WINDOW_S:
            await self._measure(visit, known)

    async def _measure(self, visit: Visit, known: _Known) -> None:
        admin, before = visit.asked, known.before
        told = known.before = await admin.loads()
        known.looked = visit.now
        if before is None:
            known.said = _MEASURING
            return
        kafka = await admin.look(internal=True)
        measured = {each.broker for each in told.directories}
        if silent := not_answered(visit.cluster.broker_ids, kafka, (before.worked, told.worked, measured)):
            known.said = Balancing(f"waits for an answer of broker {', '.join(map(str, silent))}")
            return
        if drained := sorted(set(kafka.racks) - set(kafka.takers)):
            known.said = Balancing(f"waits until broker {', '.join(map(str, drained))} isn't drained any more")
            return
        if _moves(kafka):
            known.said = Balancing("waits until other moves of replicas are complete")
            return
        if known.wish.mode is Mode.RUN:  # an earlier plan that was given up for a roll may have left throttles
            await self._unthrottle(visit, known, kafka)
        assignments = {
            (topic.name, index): partition.target
            for topic in kafka.topics.values()
            for index, partition in topic.partitions.items()
        }
        speeds = {broker: rates(before.worked[broker], work) for broker, work in told.worked.items()}
        # In a thread: a plan for many partitions takes seconds, and the operator's lease is to be renewed meanwhile.
        found, plan = await asyncio.to_thread(
            wanted_moves, kafka, loads(assignments, kafka.racks, speeds, told.directories), known.wish
        )
        if known.wish.mode is Mode.RUN and plan:
            known.plan = plan
            await visit.tell("Balancing", found.summary)
            await self._carry_out(visit, known, hold=False)
            return
        if plan and found.out_of_balance != known.said.out_of_balance:
            await visit.tell("OutOfBalance", f"{found.summary}; to have these moves made, set spec.balance.mode to Run")
        known.said = found

    async def _carry_out(self, visit: Visit, known: _Known, *, hold: bool) -> None:
        kafka = await visit.asked.look(internal=True)
        known.said, left = moving(known.plan, kafka)
        if known.said.moves:
            visit.busy = True
            if left and not hold:
                known.throttled = True
                await begin(visit.asked, visit.cluster, kafka, ScalePlan(moves_at_once(kafka, left)))
            return
        await self._unthrottle(visit, known, kafka)
        await visit.tell("Balanced", f"the moves of {counted(len(known.plan), 'partition')} are complete")
        known.measure_anew(_MEASURING)

    async def _unthrottle(self, visit: Visit, known: _Known, kafka: KafkaCluster) -> None:
        done = await unthrottle(visit.asked, kafka)
        known.throttled = not done or _moves(kafka)


def _others_move(visit: Visit) -> str:
    """What a plan has to wait for while brokers are added, removed or restarted; empty where the plan may go on.

    A plan doesn't wait for replicas to catch up, because the replicas that the plan itself moves have to catch up, too.
    """
    scaling, decision = visit.findings.scaling, visit.findings.decision
    rolls = not visit.current or (decision is not None and decision.rolling)
    if rolls or visit.leaving or scaling.draining or scaling.goes_on:
        return "no broker is added, removed or restarted"
    return "a person has followed the advice of the condition Reassigning" if scaling.needs_person else ""


def _waits_for(visit: Visit) -> str:
    """The brokers that have to become ready before more of a plan's moves begin; empty where all brokers are ready."""
    away = [str(pod.id) for pod in visit.findings.pods or () if not pod.ready]
    return f"broker {', '.join(away)} to be ready" if away else ""


def _moves(kafka: KafkaCluster) -> bool:
    return any(partition.moving for topic in kafka.topics.values() for partition in topic.partitions.values())
