"""The Topic resources in memory, and what the operator remembers of the Topics that have vanished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ottla.operator.objects import Ref, condition
from ottla.operator.plan.topic_status import REPLACING
from ottla.operator.resources import Lister, Resources
from ottla.operator.spec.topic import DeletionPolicy, TopicResource, parse_topic

VANISHED_MAX = 20_000


class TopicResources(Resources[TopicResource]):
    """All Topic resources of the watched namespaces."""

    kind = "Topic"

    def __init__(
        self,
        kube: Lister,
        namespaces: frozenset[str] | None = None,
        read: Callable[[Ref, str], None] = lambda ref, version: None,
    ) -> None:
        """`read` is called with the version of each resource that a list shows."""
        super().__init__(kube, namespaces, read)
        self.vanished: dict[str, DeletionPolicy] = {}  # by uid: the policy that a deleted resource had last
        self.answered: set[str] = set()  # uids of resources whose first seen status had an earlier operator's answer

    def parsed(self, body: Mapping[str, Any]) -> TopicResource:
        """Reads a Topic."""
        return parse_topic(body)

    def met(self, before: TopicResource | None, resource: TopicResource) -> None:
        """Notes a Topic that the watch reported or a list showed."""
        if before is not None and before.uid == resource.uid:
            return
        if before is not None:  # the watch missed the deletion of `before`
            self.gone(before)
        if condition(resource.status, "Ready").get("reason", REPLACING) != REPLACING:
            self.answered.add(resource.uid)

    def gone(self, resource: TopicResource) -> None:
        """Remembers the policy of a Topic that doesn't exist any more."""
        self.answered.discard(resource.uid)
        self.vanished[resource.uid] = resource.deletion_policy
        while len(self.vanished) > VANISHED_MAX:
            del self.vanished[next(iter(self.vanished))]
