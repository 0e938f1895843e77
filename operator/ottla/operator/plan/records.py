"""What the operator remembers about a Cluster inside of Kubernetes: ConfigMaps that the Cluster owns. Pure.

A record is restored together with the resources that it is about. It goes with its Cluster: the record of an earlier
Cluster of the same name counts as empty.

A ConfigMap of a record's name may belong to something else. Then it says nothing, and the operator doesn't take it
over, because it would be deleted with the Cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.operator.objects import API_VERSION, Object, Ref, is_owned_by_one_named
from ottla.operator.plan import names


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read: the ConfigMap of that name, or None. Its text is under one key of the data."""

    cluster: Ref
    cluster_uid: str
    name: str
    key: str
    found: Object | None

    @property
    def text(self) -> str:
        """The text; empty where this Cluster hasn't written any."""
        owners = self.found["metadata"].get("ownerReferences") or () if self.found is not None else ()
        if self.found is None or not any(owner["uid"] == self.cluster_uid for owner in owners):
            return ""
        return str((self.found.get("data") or {}).get(self.key, ""))

    @property
    def is_somebody_elses(self) -> bool:
        """Whether neither this Cluster nor an earlier one of its name has made the ConfigMap of the record's name.

        A record may have lost its owner: its Cluster's objects were orphaned, or a tool restored it without owners. It
        is recognised by the record's labels, and has no other data than the text.
        """
        if self.found is None or is_owned_by_one_named(self.found, "Cluster", self.cluster.name):
            return False
        meta = self.found["metadata"]
        left = not meta.get("ownerReferences") and (self.found.get("data") or {}).keys() <= {self.key}
        return not (left and _labels(self.cluster).items() <= (meta.get("labels") or {}).items())

    def with_text(self, text: str) -> Object:
        """The ConfigMap with this text. It lacks the label of objects that the operator watches and repairs."""
        owner = {
            "apiVersion": API_VERSION,
            "kind": "Cluster",
            "name": self.cluster.name,
            "uid": self.cluster_uid,
            "controller": True,
        }
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.name,
                "namespace": self.cluster.namespace,
                "labels": _labels(self.cluster),
                "ownerReferences": [owner],
            },
            "data": {self.key: text},
        }


def _labels(cluster: Ref) -> Mapping[str, str]:
    return {"app.kubernetes.io/name": "ottla", names.INSTANCE: cluster.name, names.COMPONENT: "operator"}
