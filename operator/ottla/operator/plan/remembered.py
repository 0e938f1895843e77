"""Which Topics Kubernetes itself remembers to have had: a ConfigMap that goes with the Cluster names them. Pure.

That a Topic was there stands in its topic (`topic_owner.py`), outside of Kubernetes. When Kubernetes is restored from a
backup that is older than the Topic, the topic still says so, and nobody has deleted the Topic. So there is a second
record, inside of Kubernetes, which is restored together with the Topics: a Kubernetes that has this record of a Topic
has had the Topic, and lacks it only because somebody has deleted it. Only then does a Topic that isn't there count as
deleted.

The record gets the uids only of Topics that a list has just shown, and is changed only if it is still what it was
before that list. So nothing gets into it that an operator which lived through the restore merely has in memory.

A ConfigMap of that name may be somebody else's. It says nothing about Topics, and isn't taken over: it would be deleted
with the Cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.operator.objects import API_VERSION, Object, Ref, is_owned_by_one_named
from ottla.operator.plan import names

_UIDS = "uids"
_UID_CHARACTERS = 13  # 48 random bits of a uid: 70,000 Topics fit into a ConfigMap's 1 MiB


@dataclass(frozen=True, slots=True)
class Remembered:
    """The record of a Cluster, as it was read. `found` None: there is no such ConfigMap."""

    cluster: Ref
    cluster_uid: str
    found: Object | None
    uids: frozenset[str]  # as `shortened` makes them

    def has(self, uid: str) -> bool:
        """Whether a Topic of that uid was there."""
        return shortened(uid) in self.uids

    @property
    def is_somebody_elses(self) -> bool:
        """Whether a ConfigMap has the record's name that neither this Cluster nor one of its name before it has made.

        A record without an owner was left by a Cluster whose objects were orphaned, or restored by a tool that leaves
        owners out: it has the record's labels, and nothing but uids.
        """
        if self.found is None or is_owned_by_one_named(self.found, "Cluster", self.cluster.name):
            return False
        meta = self.found["metadata"]
        left = not meta.get("ownerReferences") and (self.found.get("data") or {}).keys() <= {_UIDS}
        return not (left and _labels(self.cluster).items() <= (meta.get("labels") or {}).items())


def shortened(uid: str) -> str:
    """The part of a Topic's uid that is kept."""
    return uid[:_UID_CHARACTERS]


def read_record(cluster: Ref, cluster_uid: str, found: Object | None) -> Remembered:
    """What a ConfigMap says; that of another Cluster, which had this name before, says nothing about this one."""
    owners = found["metadata"].get("ownerReferences") or () if found is not None else ()
    ours = any(owner["uid"] == cluster_uid for owner in owners)
    text = (found.get("data") or {}).get(_UIDS, "") if found is not None and ours else ""
    return Remembered(cluster, cluster_uid, found, frozenset(text.split()))


def record(cluster: Ref, cluster_uid: str, uids: Iterable[str]) -> Object:
    """The ConfigMap that names these. It lacks the label of what the operator mends: nobody watches it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.remembered_topics(cluster.name),
            "namespace": cluster.namespace,
            "labels": _labels(cluster),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "Cluster",
                    "name": cluster.name,
                    "uid": cluster_uid,
                    "controller": True,
                }
            ],
        },
        "data": {_UIDS: "\n".join(sorted(uids))},
    }


def _labels(cluster: Ref) -> dict[str, str]:
    return {"app.kubernetes.io/name": "ottla", names.INSTANCE: cluster.name, names.COMPONENT: "operator"}
