"""Decides about topics that have lost their Topic resources, and keeps the condition about topics that wait for a
person.

The rules are those of `plan/orphans.py`. Before a topic counts as one without a resource, the resources are listed
anew, and the definition of their kind is read. The record of Topics that Kubernetes has had is read after that list. So
if Kubernetes is restored in between, the record has fewer Topics than the list, and topics are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from ottla.operator.definitions import Reader, definition
from ottla.operator.objects import Ref
from ottla.operator.plan.orphans import Definition, Disappearances, Orphan, Unreadable, Verdict, orphans
from ottla.operator.plan.remembered import Remembered
from ottla.operator.plan.topic import KafkaCluster
from ottla.operator.plan.topic_owner import read_mark
from ottla.operator.spec.topic_rules import CONFIRM, TopicRules
from ottla.operator.status import Condition
from ottla.operator.topic_memory import TopicMemory
from ottla.operator.topic_resources import TopicResources
from ottla.wording import first_named

logger = logging.getLogger(__name__)

DEFINITION = "topics.ottla.dev"
NAMES_TOLD = 5


class _Held(NamedTuple):
    """The topics of one Cluster that wait for a person, with the text and the condition about these topics."""

    topics: frozenset[UUID]
    told: str
    condition: Condition


class OrphanedTopics:
    """Keeps for every Cluster the Topics that have disappeared lately, and the topics that wait for a person."""

    def __init__(
        self,
        kube: Reader,
        resources: TopicResources,
        memory: TopicMemory,
        held_changed: Callable[[Ref], None],
        clock: Callable[[], float],
    ) -> None:
        """`held_changed` is called when a Cluster's condition has changed; `clock`: seconds of a monotonic clock."""
        self._kube = kube
        self._resources = resources
        self._memory = memory
        self._held_changed = held_changed
        self._clock = clock
        self._disappearances: dict[Ref, Disappearances] = {}
        self._held: dict[Ref, _Held] = {}

    def held(self, cluster: Ref) -> Condition | None:
        """The condition TopicsHeld of a Cluster; None where no topic waits for a person."""
        held = self._held.get(cluster)
        return held.condition if held is not None else None

    def forget(self, cluster: Ref) -> None:
        """Drops everything about a Cluster that is gone."""
        self._disappearances.pop(cluster, None)
        self._held.pop(cluster, None)

    async def judge(self, key: Ref, rules: TopicRules, cluster: KafkaCluster) -> tuple[Verdict, Remembered]:
        """The verdict about the orphans among a Cluster's topics, and the record of the Topics that Kubernetes has had.
        Raises KubeError."""
        found = self._orphans(key, cluster)
        defined: Definition | Unreadable | None = Definition("")
        if found:
            await self._resources.up_to_date(self._clock(), within_s=0.0)
            defined = await definition(self._kube, DEFINITION)
            found = self._orphans(key, cluster)
        remembered = await self._memory.read(key, rules.uid)
        owned = sum(read_mark(topic.owner) is not None for topic in cluster.topics.values())
        watch = self._disappearances.setdefault(key, Disappearances())
        verdict = watch.judge(self._clock(), found, owned, defined, remembered, rules.confirmed)
        self._tell_held(key, verdict)
        return verdict, remembered

    def _orphans(self, key: Ref, cluster: KafkaCluster) -> list[Orphan]:
        known = self._resources
        return orphans(cluster.topics.values(), known.of(key), known.vanished, known.answered, known.namespaces)

    def _tell_held(self, key: Ref, verdict: Verdict) -> None:
        """Keeps the condition up to date. The condition's message has a token for confirming the deletion, which is
        valid for exactly the topics that wait now. Logs a line when more topics wait, or no topic waits any more."""
        before, after = self._held.get(key), _held(key, verdict)
        if before == after:
            return
        if after is None:
            del self._held[key]
            logger.info("%s: no topic waits for a person any more", key)
        else:
            self._held[key] = after
            if before is None or after.topics - before.topics:
                logger.warning("%s: %s; the condition TopicsHeld says how to delete these topics", key, after.told)
        self._held_changed(key)


def _held(key: Ref, verdict: Verdict) -> _Held | None:
    if not verdict.held:
        return None
    names = sorted(orphan.topic.name for orphan in verdict.held)
    told = f"{verdict.why}. Kept until their Topics are back: {first_named(names, NAMES_TOLD)}"
    how = f"kubectl -n {key.namespace} annotate --overwrite clusters.ottla.dev {key.name} {CONFIRM}={verdict.token}"
    condition = Condition("TopicsHeld", True, verdict.reason, f"{told}. To have these topics deleted: {how}")
    return _Held(frozenset(orphan.topic.id for orphan in verdict.held), told, condition)
