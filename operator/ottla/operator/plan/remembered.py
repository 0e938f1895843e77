"""The record of the Topics that this Kubernetes has had: a ConfigMap, owned by the Cluster, names their uids. Pure.

A topic's mark (`topic_owner.py`) says that its Topic existed, but the mark is outside of Kubernetes. When Kubernetes is
restored from a backup that is older than the Topic, the mark is still there, although nobody has deleted the Topic. So
there is a second record, inside of Kubernetes, which is restored together with the Topics. If a Topic is in this record
but not in Kubernetes, somebody has deleted it. A missing Topic that isn't in this record doesn't count as deleted.

Only uids of Topics that a list has just shown are added to the record, and only if the record is still the same as
before that list. So an operator that ran throughout the restore never adds a Topic that it merely has in memory.

A ConfigMap of that name may belong to something else. Then it says nothing about Topics, and the operator doesn't take
it over, because it would be deleted with the Cluster.
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
    """The record of a Cluster as it was read. `found`: the ConfigMap; None where there is none."""

    cluster: Ref
    cluster_uid: str
    found: Object | None
    uids: frozenset[str]  # as `shortened` makes them

    def has(self, uid: str) -> bool:
        """Whether the record has a Topic's uid."""
        return shortened(uid) in self.uids

    @property
    def is_somebody_elses(self) -> bool:
        """Whether neither this Cluster nor an earlier one of its name has made the ConfigMap of the record's name.

        A record may have lost its owner: its Cluster's objects were orphaned, or a tool restored it without owners. It
        is recognised by the record's labels, and has no other data than uids.
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
    """Reads the record of a Cluster from a ConfigMap. The record of an earlier Cluster of this name counts as empty."""
    owners = found["metadata"].get("ownerReferences") or () if found is not None else ()
    ours = any(owner["uid"] == cluster_uid for owner in owners)
    text = (found.get("data") or {}).get(_UIDS, "") if found is not None and ours else ""
    return Remembered(cluster, cluster_uid, found, frozenset(text.split()))


def record(cluster: Ref, cluster_uid: str, uids: Iterable[str]) -> Object:
    """The ConfigMap with these uids. It lacks the label of objects that the operator watches and repairs."""
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
