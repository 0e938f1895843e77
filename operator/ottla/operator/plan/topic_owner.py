"""The mark by which a topic says whose it is: the Topic resource, and the Cluster under which that was seen. Pure.

A mark is written only by a sweep that has read the Cluster and then listed the resource, so it is the durable record of
what the operator has seen: what the watch tells may be from before this Cluster. Both uids matter. A resource that was
deleted and made again under its name is another one; and of a Cluster that was made again (after its namespace went,
from a backup, over volumes that were kept) nobody knows yet which Topics belong to it: its topics carry the marks of
the Cluster before it until their Topics are applied.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.operator.objects import Ref
from ottla.operator.spec.topic import TopicResource

OWNER = "ottla.owner"


class Owner(NamedTuple):
    """Whom a topic names as its owner. `cluster_uid` is empty in marks from before it was recorded."""

    ref: Ref
    uid: str
    created: str
    cluster_uid: str = ""


def mark(resource: TopicResource, cluster_uid: str) -> str:
    """The value of `ottla.owner` for a topic that follows `resource` in the Cluster of that uid."""
    return "/".join((*resource.ref, resource.uid, resource.created, cluster_uid))


def read_mark(text: str) -> Owner | None:
    """What `mark` has written; None for nothing, and for what isn't a mark of ours."""
    parts = text.split("/")
    if len(parts) not in (4, 5):
        return None
    return Owner(Ref(parts[0], parts[1]), *parts[2:])
