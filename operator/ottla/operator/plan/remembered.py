"""The record of the Topics that this Kubernetes has had: a ConfigMap, owned by the Cluster, names their uids. Pure.

A topic's mark (`topic_owner.py`) says that its Topic existed, but the mark is outside of Kubernetes. When Kubernetes is
restored from a backup that is older than the Topic, the mark is still there, although nobody has deleted the Topic. So
there is a second record, inside of Kubernetes, which is restored together with the Topics. If a Topic is in this record
but not in Kubernetes, somebody has deleted it. A missing Topic that isn't in this record doesn't count as deleted.

Only uids of Topics that a list has just shown are added to the record, and only if the record is still the same as
before that list. So an operator that ran throughout the restore never adds a Topic that it merely has in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.operator.objects import Object, Ref
from ottla.operator.plan import names
from ottla.operator.plan.records import Record

_UIDS = "uids"
_UID_CHARACTERS = 13  # 48 random bits of a uid: 70,000 Topics fit into a ConfigMap's 1 MiB


@dataclass(frozen=True, slots=True)
class Remembered:
    """The record of a Cluster as it was read."""

    record: Record
    uids: frozenset[str]  # as `shortened` makes them

    def has(self, uid: str) -> bool:
        """Whether the record has a Topic's uid."""
        return shortened(uid) in self.uids

    @property
    def cluster_uid(self) -> str:
        """The Cluster's uid."""
        return self.record.cluster_uid


def shortened(uid: str) -> str:
    """The part of a Topic's uid that is kept."""
    return uid[:_UID_CHARACTERS]


def read_record(cluster: Ref, cluster_uid: str, found: Object | None) -> Remembered:
    """Reads the record of a Cluster from a ConfigMap."""
    record = Record(cluster, cluster_uid, names.remembered_topics(cluster.name), _UIDS, found)
    return Remembered(record, frozenset(record.text.split()))


def record(remembered: Remembered, uids: Iterable[str]) -> Object:
    """The ConfigMap with these uids."""
    return remembered.record.with_text("\n".join(sorted(uids)))
