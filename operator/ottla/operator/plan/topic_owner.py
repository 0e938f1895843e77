"""The mark by which a topic names its owner: a Topic resource, and the Cluster for which it was listed. Pure.

A mark is written only by a reconcile that has read the Cluster first and then listed the resource. So the mark is a
durable record that this Topic existed together with this Cluster; events of a watch may be from before this Cluster.
Both uids matter. A resource that was deleted and made again under its name is another resource. If a Cluster was made
again (after its namespace was deleted, from a backup, over volumes that were kept), it isn't known yet which Topics
belong to it. Its topics have the marks of the earlier Cluster until their Topics are applied.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.operator.objects import Ref
from ottla.operator.spec.topic import TopicResource

OWNER = "ottla.owner"


class Owner(NamedTuple):
    """The owner that a topic's mark names. `cluster_uid` is empty in marks of releases that didn't record it."""

    ref: Ref
    uid: str
    created: str
    cluster_uid: str = ""


def mark(resource: TopicResource, cluster_uid: str) -> str:
    """The value of `ottla.owner` for a topic that follows `resource` in the Cluster of that uid."""
    return "/".join((*resource.ref, resource.uid, resource.created, cluster_uid))


def read_mark(text: str) -> Owner | None:
    """Reads what `mark` has written; None for an empty text, and for a text that isn't a mark."""
    parts = text.split("/")
    if len(parts) not in (4, 5):
        return None
    return Owner(Ref(parts[0], parts[1]), *parts[2:])
