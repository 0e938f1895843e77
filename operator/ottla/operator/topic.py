"""Brings the topics of a cluster to what their resources say: all of them in one sweep.

A sweep handles all Topics of a cluster, not one. So a single look at the brokers serves thousands of topics, changes
are made in batches, and the sweep can find conflicts between Topics, and topics that have lost their resources.

A sweep observes (the resources, the Cluster, the brokers), plans (pure), makes some of the changes, and writes the
statuses that differ. If it changed something, the next sweep follows immediately: it makes the remaining changes, and
writes the statuses of changed topics by its own observation.

Each step may be repeated safely, as happens when the operator ends in the middle of a sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Unpack

from ottla.operator.kafka import CHANGED_AT_ONCE, KafkaAdmin, Refusals, said
from ottla.operator.namespaces import selected_namespaces
from ottla.operator.objects import Object, Ref
from ottla.operator.orphaned_topics import OrphanedTopics
from ottla.operator.plan.orphans import Orphan, Verdict, hold
from ottla.operator.plan.remembered import Remembered
from ottla.operator.plan.topic import (
    NOT_ENOUGH_BROKERS,
    THROTTLE_RATES,
    Configure,
    Create,
    Delete,
    Grow,
    KafkaCluster,
    KafkaTopic,
    Move,
    TopicPlan,
    conflict,
    marks,
    plan_topic,
    release,
    takes_throttle_away,
    warning,
    winners,
)
from ottla.operator.plan.topic_owner import read_mark
from ottla.operator.plan.topic_status import REPLACING, Outcome, topic_status
from ottla.operator.queue import Result, why
from ottla.operator.refusals import Refusals as Refused
from ottla.operator.reports import reports_of
from ottla.operator.spec.topic import DeletionPolicy, TopicResource
from ottla.operator.spec.topic_rules import TopicRules, parse_topic_rules
from ottla.operator.status import Condition
from ottla.operator.sweeps import BROKERS_S, Around, Kube, Sweeps
from ottla.operator.topic_memory import TopicMemory
from ottla.operator.topic_reports import news_of
from ottla.operator.topic_resources import TopicResources
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

CHANGES_MAX = 500  # for each type of step, the most changes in one sweep
AT_ONCE_S = 0.2
RESTLESS_S_MAX = 20.0  # the longest pause between sweeps that always find changes, as if another client undid them
MOVING_S = 2.0
PASSING_S = 5.0
# Refusals that pass by themselves, because another client was faster or the brokers are busy: the next look shows it.
PASSING = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.topic_already_exists,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.reassignment_in_progress,
        ErrorCode.not_controller,
        ErrorCode.broker_not_available,
    }
)


@dataclass(slots=True)
class _Sweep:
    """The findings and changes of one sweep so far."""

    rules: TopicRules
    now: datetime
    starting: bool = False  # the Cluster isn't Ready, so missing brokers are expected
    outcomes: dict[TopicResource, Outcome] = field(default_factory=dict)
    made: set[tuple[str, type]] = field(default_factory=set)  # the steps that were made: their topic and type
    left: set[str] = field(default_factory=set)  # topics that have steps left for the next sweep
    passing: bool = False  # a change was refused for a reason that passes by itself
    failed: dict[str, KafkaError] = field(default_factory=dict)  # by topic: the brokers' refusal of a step
    refused: Refused = field(default_factory=Refused)  # refusals by Kubernetes that stopped no other step


class TopicReconciler(Sweeps[TopicResource, Outcome, TopicRules]):
    """Reconciles the Topics of one cluster at a time: its keys are those of Clusters."""

    def __init__(
        self,
        kube: Kube,
        resources: TopicResources,
        *,
        held_changed: Callable[[Ref], None] = lambda _: None,
        **around: Unpack[Around],
    ) -> None:
        """`held_changed` is called when the condition `held` of a Cluster has changed."""
        super().__init__(kube, resources, topic_status, **around)
        self._resources = resources
        self._memory = TopicMemory(kube)
        self._orphaned = OrphanedTopics(kube, resources, self._memory, held_changed, self._clock)
        self._restless: dict[Ref, int] = {}  # Cluster → how many sweeps in a row made changes and left none

    def held(self, cluster: Ref) -> Condition | None:
        """The condition of a Cluster that lists the topics about which a person has to decide; None if there are
        none."""
        return self._orphaned.held(cluster)

    async def _begun(self, found: Object, mine: Sequence[TopicResource]) -> TopicRules:
        return parse_topic_rules(found)

    def _refused(self, resource: TopicResource, reason: str, message: str) -> Outcome:
        return Outcome(False, reason, message)

    def _waits(self, resource: TopicResource, reason: str, message: str, *, expected: bool) -> Outcome:
        return Outcome(False, reason, message, expected=expected)

    def _ended(self, key: Ref) -> None:
        self._orphaned.forget(key)
        self._restless.pop(key, None)

    async def _swept(
        self, begun: TopicRules, admin: KafkaAdmin, mine: list[TopicResource], *, starting: bool
    ) -> Result:
        key, sweep = begun.cluster, _Sweep(begun, self._utc(), starting)
        cluster = await admin.look()
        verdict, remembered = await self._orphaned.judge(key, sweep.rules, cluster)
        await self._sweep(sweep, admin, cluster, self._resources.of(key), verdict, remembered)
        await self._reports.statuses(reports_of(sweep.outcomes, topic_status, sweep.now), sweep.now)
        sweep.refused.told()
        moving = any(outcome.moving is not None for outcome in sweep.outcomes.values())
        too_few = any(outcome.reason == NOT_ENOUGH_BROKERS for outcome in sweep.outcomes.values())
        pauses = [PASSING_S] * sweep.passing + [MOVING_S] * moving + [BROKERS_S] * too_few
        if sweep.made:
            again = self._restless.get(key, 0) + (not sweep.left)
            self._restless[key] = again
            pauses.append(min(AT_ONCE_S * 2 ** min(max(again - 3, 0), 16), RESTLESS_S_MAX))
        else:
            self._restless.pop(key, None)
        if verdict.look_again_s is not None:
            pauses.append(verdict.look_again_s)
        return Result(min(pauses, default=None))

    async def _sweep(
        self,
        sweep: _Sweep,
        admin: KafkaAdmin,
        cluster: KafkaCluster,
        mine: list[TopicResource],
        verdict: Verdict,
        remembered: Remembered,
    ) -> None:
        """Does all of a sweep, except writing the statuses."""
        allowed = await self._allowed(sweep, mine)
        owners = winners(allowed)
        # A topic that is kept says so itself before a new resource of its name is followed, in case the operator ends.
        kept = [step for step in map(hold, (*verdict.held, *verdict.taken_over)) if step is not None]
        await self._make(sweep, admin.configure, kept)
        taken_over = {orphan.topic.name for orphan in verdict.taken_over}
        leaving = {orphan.topic.name for orphan in (*verdict.due, *verdict.settling)}
        plans: dict[TopicResource, TopicPlan] = {}
        waiting = []  # resources that wait for the deletion of their predecessor's topic
        for resource in allowed:
            owner = owners[resource.topic]
            topic = cluster.topics.get(resource.topic) if resource.topic not in leaving else None
            if owner is not resource:
                refusal = conflict(owner)
                sweep.outcomes[resource] = Outcome(False, refusal.reason, refusal.message)
            elif resource.deleting or resource.topic in taken_over:
                continue
            elif resource.paused:
                sweep.outcomes[resource] = Outcome(None, "Paused", "paused", topic, paused=True)
            else:
                try:
                    plan = plan_topic(resource, topic, cluster, sweep.rules.uid, sweep.rules.throttles)
                except Exception as error:  # any error stops only this Topic
                    logger.warning("topic %s: its plan failed", resource.ref, exc_info=error)
                    message = f"the operator failed unexpectedly ({type(error).__name__}): {why(error)}"
                    sweep.outcomes[resource] = Outcome(False, "Unexpected", message, topic)
                    continue
                if plan.steps and resource.topic in leaving:
                    waiting.append(resource)
                else:
                    plans[resource] = plan
        plans = await self._beside_others(sweep, admin, cluster, plans)
        plans = await self._certain(sweep, cluster, mine, remembered, plans)
        await self._carry_out(sweep, admin, cluster, plans)
        for resource, plan in plans.items():
            self._conclude(sweep, resource, plan, cluster.topics.get(resource.topic))
        await self._bury(sweep, admin, verdict)
        for resource in waiting:
            self._tell_replacing(sweep, resource)

    async def _allowed(self, sweep: _Sweep, mine: list[TopicResource]) -> list[TopicResource]:
        """The resources whose namespace the Cluster takes Topics from. The other resources can't claim a topic's
        name."""
        rules = sweep.rules
        selected = await selected_namespaces(self._kube, rules.namespaces) or frozenset()
        allowed = []
        for resource in mine:
            if rules.namespaces.has(resource.ref.namespace, selected):
                allowed.append(resource)
                continue
            sweep.outcomes[resource] = Outcome(
                False,
                "NamespaceNotAllowed",
                f"the Cluster {rules.cluster} takes no Topics from the namespace {resource.ref.namespace}: "
                "change its topics.allowedNamespaces, or move the Topic",
            )
        return allowed

    async def _beside_others(
        self, sweep: _Sweep, admin: KafkaAdmin, cluster: KafkaCluster, plans: dict[TopicResource, TopicPlan]
    ) -> dict[TopicResource, TopicPlan]:
        """Returns the plans. If an administrator throttles replicas by hand, plans that would change this throttle are
        replaced by plans that leave it alone."""
        topics, rules = cluster.topics, sweep.rules
        taking = [each for each, plan in plans.items() if takes_throttle_away(plan, topics.get(each.topic))]
        if not taking or not await admin.throttled_by_hand():
            return plans
        return plans | {
            each: plan_topic(each, topics.get(each.topic), cluster, rules.uid, rules.throttles, by_hand=True)
            for each in taking
        }

    async def _certain(
        self,
        sweep: _Sweep,
        cluster: KafkaCluster,
        mine: list[TopicResource],
        remembered: Remembered,
        plans: dict[TopicResource, TopicPlan],
    ) -> dict[TopicResource, TopicPlan]:
        """Returns the plans without those that would mark a topic for a resource that doesn't exist any more. Existing
        resources are added to the record of Topics that Kubernetes has had.

        A mark says that the resource existed together with this Cluster, and by its mark a topic is deleted later. The
        watch may be late, and still report Topics that were deleted with an earlier Cluster. So the resources are
        listed. If Kubernetes refuses to write the record, marks are written all the same; once the resource is gone,
        such a topic waits for a person.
        """
        new = {resource.uid for resource in mine if not remembered.has(resource.uid)}
        if not new and not any(map(marks, plans.values())):
            return plans
        there = await self._resources.there_now()
        owners = (owner.uid for topic in cluster.topics.values() if (owner := read_mark(topic.owner)) is not None)
        with sweep.refused.gathered():
            await self._memory.remember(remembered, new & there, {*owners, *(resource.uid for resource in mine)})
        return {resource: plan for resource, plan in plans.items() if resource.uid in there or not marks(plan)}

    # ---- changes

    async def _carry_out(
        self, sweep: _Sweep, admin: KafkaAdmin, cluster: KafkaCluster, plans: Mapping[TopicResource, TopicPlan]
    ) -> None:
        """Carries out the steps of all plans: all steps of one type before those of the next type. After a step that
        fails, no more steps of its topic are carried out."""
        steps = [step for plan in plans.values() for step in plan.steps]
        await self._make(sweep, admin.configure, [step for step in steps if isinstance(step, Configure)])
        await self._make(sweep, admin.create, [step for step in steps if isinstance(step, Create)])
        await self._make(sweep, admin.grow, [step for step in steps if isinstance(step, Grow)])
        moves = [step for step in steps if isinstance(step, Move)]
        if moves or any(plan.moving for plan in plans.values()):
            try:
                await self._set_rates(sweep.rules, admin, cluster)
            except KafkaError as error:  # stops only the moves, whose copies would be without a throttle
                sweep.failed.update({step.topic: error for step in moves if step.topic not in sweep.failed})
        await self._make(sweep, admin.move, moves)
        news = [
            news_of(resource, step, plan)
            for resource, plan in plans.items()
            for step in plan.steps
            if (resource.topic, type(step)) in sweep.made
        ]
        await self._reports.events(news, sweep.now)

    async def _make(
        self, sweep: _Sweep, change: Callable[[Sequence[Any]], Awaitable[Refusals]], steps: Sequence[Any]
    ) -> None:
        """Carries out steps of one type until `CHANGES_MAX` have succeeded; the next sweep does the rest."""
        wanted = [step for step in steps if step.topic not in sweep.failed and step.topic not in sweep.left]
        made = 0
        for start in range(0, len(wanted), CHANGED_AT_ONCE):
            if made >= CHANGES_MAX:
                sweep.left.update(step.topic for step in wanted[start:])
                return
            some = wanted[start : start + CHANGED_AT_ONCE]
            for topic, refusal in (await change(some)).items():
                if refusal is None:
                    sweep.made.add((topic, type(some[0])))
                    made += 1
                else:
                    sweep.failed[topic] = refusal
                    sweep.passing |= refusal.code in PASSING

    async def _set_rates(self, rules: TopicRules, admin: KafkaAdmin, cluster: KafkaCluster) -> None:
        """Sets the rates of throttled replicas for all brokers, or resets them. Raises KafkaError."""
        rate = rules.throttle_bytes_per_second
        wanted = {} if rate is None else dict.fromkeys(THROTTLE_RATES, str(rate))
        given = {name: value for name, value in wanted.items() if cluster.settings.get(name) != value}
        reset = [name for name in THROTTLE_RATES if name in cluster.settings and name not in wanted]
        if not given and not reset:
            return
        try:
            await admin.configure_brokers(given, reset)
        except KafkaError as error:
            raise KafkaError(error.code, f"the brokers refuse the throttle: {said(error)}") from error

    def _conclude(self, sweep: _Sweep, resource: TopicResource, plan: TopicPlan, topic: KafkaTopic | None) -> None:
        """Notes a resource's outcome. If this sweep changed its topic, there is no outcome yet, and the next sweep
        notes the outcome."""
        error = sweep.failed.get(resource.topic)
        if plan.refusal is not None:
            outcome = Outcome(False, plan.refusal.reason, plan.refusal.message, topic)
        elif error is not None:
            ready = None if error.code in PASSING else False
            reason = _reason(error)
            starts = sweep.starting and reason == NOT_ENOUGH_BROKERS
            outcome = Outcome(ready, reason, _sentence(error), topic, plan.moving, expected=starts)
        elif plan.steps:
            return
        else:
            told = warning(topic, sweep.rules.min_insync_replicas) if topic is not None else ""
            outcome = Outcome(True, "TooFewReplicas" if told else "Ready", told, topic, plan.moving)
        sweep.outcomes[resource] = outcome

    def _tell_replacing(self, sweep: _Sweep, resource: TopicResource) -> None:
        """Notes the outcome of a resource that waits for its predecessor's topic to be deleted. If this sweep has just
        deleted the topic, the next sweep notes the outcome."""
        if (resource.topic, Delete) in sweep.made:
            return
        told = f"topic '{resource.topic}' belongs to the deleted Topic {resource.ref}, the predecessor of this one"
        if (error := sweep.failed.get(resource.topic)) is not None:
            message = f"{told}, and can't be deleted: {said(error)}"
            sweep.outcomes[resource] = Outcome(False, "TopicNotDeleted", message)
        else:
            message = f"{told}: it is deleted in some seconds, and made anew"
            sweep.outcomes[resource] = Outcome(False, REPLACING, message, expected=True)

    # ---- topics without a resource

    async def _bury(self, sweep: _Sweep, admin: KafkaAdmin, verdict: Verdict) -> None:
        released = [orphan for orphan in verdict.due if orphan.policy is DeletionPolicy.RETAIN]
        deleted = [orphan for orphan in verdict.due if orphan.policy is DeletionPolicy.DELETE]
        await self._make(sweep, admin.configure, [release(orphan.topic) for orphan in released])
        await self._make(sweep, admin.delete, [Delete(orphan.topic.name, orphan.topic.id) for orphan in deleted])
        for orphan in verdict.due:
            if orphan.topic.name not in sweep.left:
                await self._tell_dealt_with(sweep, orphan)

    async def _tell_dealt_with(self, sweep: _Sweep, orphan: Orphan) -> None:
        topic, error = orphan.topic.name, sweep.failed.get(orphan.topic.name)
        whose = f"its Topic {orphan.owner.ref} {'was deleted, and made again' if orphan.remade else 'is gone'}"
        if error is not None:
            told = ("TopicNotDeleted", f"topic '{topic}' stays, though {whose}: {said(error)}")
        elif orphan.policy is DeletionPolicy.DELETE:
            told = ("TopicDeleted", f"topic '{topic}' was deleted: {whose}")
        else:
            told = (
                "TopicReleased",
                f"topic '{topic}' stays and follows no Topic any more: {whose}, and that Topic's policy is Retain",
            )
        logger.info("%s: %s", sweep.rules.cluster, told[1])
        await self._kube.event(dict(sweep.rules.about), *told, sweep.now, warning=error is not None)


def _reason(error: KafkaError) -> str:
    """An error's code as the reason of a condition: invalid_config → InvalidConfig."""
    if error.code == ErrorCode.invalid_replication_factor:
        return NOT_ENOUGH_BROKERS
    return "".join(part.capitalize() for part in error.code.name.split("_"))


def _sentence(error: KafkaError) -> str:
    """The broker's own message; if brokers are too few for the replicas, also what a person can do."""
    if error.code == ErrorCode.invalid_replication_factor:
        return f"{error.message} Lower replicationFactor, or add brokers."
    return said(error)
