"""The API server of the operator's simulation: the objects, and Kubernetes' own controllers, in small steps.

It extends the in-memory world of the unit tests by processes that take time in Kubernetes: StatefulSets notice a change
later, pods end and start in stages, volumes are bound, node ports are assigned, and objects without an owner are
collected. Each controller makes a step when the scenario calls for it, also between two requests of one reconcile.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import itemgetter
from random import Random
from typing import Any

from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, going, holds, timestamp
from ottla.operator.orphaned_topics import DEFINITION
from ottla.operator.plan.names import COMPONENT, INSTANCE
from tests.unit.operator.kubernetes_world import World, copied
from tests.unit.operator.resources import resources_told

NAMESPACE = "shop"
FIRST_NODE_PORT = 30000
Key = tuple[str, str, str]


class ApiServer(World):
    """Objects, versions, and the controllers of Kubernetes. `now` is the time of all clocks."""

    def __init__(self, random: Random, now: datetime) -> None:
        super().__init__()
        self.now = now
        self.claim_deleted: Callable[[str], None] = lambda name: None
        self.pod_serves: Callable[[str, Object], None] = lambda name, pod: None
        self.pod_may_serve: Callable[[Object], bool] = lambda pod: True
        self.node_address = "192.0.2.1"
        self.no_rights = False  # whether the operator's requests are forbidden
        self._random = random
        self._made: set[str] = set()  # uids of the pods that a StatefulSet created
        self._next_port = FIRST_NODE_PORT
        self.define_topics()

    # ---- requests that the world of the unit tests doesn't have

    async def apply(self, wanted: Object, observed: Object | None = None) -> Object:
        key = (wanted["kind"], wanted["metadata"].get("namespace", ""), wanted["metadata"]["name"])
        await super().apply(wanted, observed)
        used = self.node_ports(but=key)
        item = self.objects[key]
        if key[0] == "Service" and item["spec"].get("type") == "NodePort":
            for port in item["spec"]["ports"]:
                if "nodePort" not in port:
                    while self._next_port in used | self.taken_ports:
                        self._next_port += 1
                    port["nodePort"] = self._next_port
                    self._next_port += 1
        return copied(item)

    async def create_new(self, wanted: Object) -> Object:
        """As `Kube.create`."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        self._may("create", kind)
        if (kind, NAMESPACE, name) in self.objects:
            raise KubeError(409, f"creating {kind}", f"{name} already exists")
        self.writes.append(f"create {kind} {name}")
        self.create(copied(wanted))
        return copied(self.objects[kind, NAMESPACE, name])

    async def knows(self, kind: str, namespace: str = "") -> bool:
        """As `Kube.knows`."""
        await self.list(kind, namespace)
        return True

    # ---- actions of people

    def make(self, kind: str, name: str, spec: Object, **meta: Any) -> Object:
        """A user creates an object."""
        item: Object = {
            "apiVersion": "ottla.dev/v1alpha1",
            "kind": kind,
            "metadata": {"namespace": NAMESPACE, "name": name, "creationTimestamp": timestamp(self.now), **meta},
            "spec": spec,
        }
        self.create(item)
        return item

    def remove(self, kind: str, name: str, *, orphan: bool = False) -> Object | None:
        """A user deletes an object. The objects that it owned are collected, or with `orphan` lose their owner."""
        key = (kind, NAMESPACE, name)
        item = self.objects.get(key)
        if item is not None:
            if orphan:
                self._orphan(key)
            self._remove(key)
        return item

    def define_topics(self) -> None:
        """Creates the definition of the Topic kind."""
        meta = {"name": DEFINITION, "creationTimestamp": timestamp(self.now)}
        self.create({"kind": "CustomResourceDefinition", "metadata": meta})

    def undefine_topics(self) -> list[Object]:
        """Deletes the definition of the Topic kind, and with it all Topics. Returns these Topics."""
        del self.objects["CustomResourceDefinition", "", DEFINITION]
        gone = self.all("Topic")
        for item in gone:
            self._remove(("Topic", NAMESPACE, item["metadata"]["name"]))
        return gone

    def topics_now(self) -> dict[Key, Object]:
        """All Topics, and the ConfigMaps by which the operator remembers them: a part of a backup of Kubernetes."""
        return {
            key: copied(item)
            for key, item in self.objects.items()
            if key[0] == "Topic" or (key[0] == "ConfigMap" and key[2].endswith("-topics"))
        }

    def restore_topics(self, backup: dict[Key, Object]) -> None:
        """Restores Topics and their ConfigMaps from a backup."""
        for key in self.topics_now():
            del self.objects[key]
        self.objects |= {key: copied(item) for key, item in backup.items()}

    # ---- state

    @property
    def defined(self) -> bool:
        """Whether there is a definition of the Topic kind."""
        return ("CustomResourceDefinition", "", DEFINITION) in self.objects

    def get_now(self, kind: str, name: str) -> Object | None:
        """The object itself, not a copy; None if there is none."""
        return self.objects.get((kind, NAMESPACE, name))

    def all(self, kind: str, component: str = "") -> list[Object]:
        """All objects of a kind; with `component` only those of that component."""
        found = [
            (key, item)
            for key, item in self.objects.items()
            if key[0] == kind and (not component or (item["metadata"].get("labels") or {}).get(COMPONENT) == component)
        ]
        return [item for _, item in sorted(found, key=itemgetter(0))]

    def pods(self, component: str) -> dict[str, Object]:
        """The pods that an existing StatefulSet owns."""
        sets = {item["metadata"]["uid"] for item in self.all("StatefulSet")}
        return {
            pod["metadata"]["name"]: pod
            for pod in self.all("Pod", component)
            if any(owner["uid"] in sets for owner in pod["metadata"].get("ownerReferences") or ())
        }

    def made(self, component: str) -> dict[str, Object]:
        """The pods that any StatefulSet created, also a StatefulSet that is deleted by now: its pods may still run."""
        return {
            pod["metadata"]["name"]: pod for pod in self.all("Pod", component) if pod["metadata"]["uid"] in self._made
        }

    def serves(self, pod: str) -> bool:
        """Whether the pod is ready and isn't being deleted."""
        item = self.get_now("Pod", pod)
        return item is not None and not going(item) and holds(item.get("status"), "Ready")

    def etcd_serves(self, cluster: str) -> bool:
        """Whether a majority of etcd's members is ready."""
        members = self.get_now("StatefulSet", f"{cluster}-etcd")
        wanted = members["spec"]["replicas"] if members is not None else 1
        return sum(map(self.serves, self.pods("etcd"))) > wanted // 2

    # ---- Kubernetes' controllers

    def step(self, chance: float = 1.0) -> None:
        """Each controller handles each of its objects, with probability `chance`."""
        self._collect()
        for item in self.all("StatefulSet"):
            if self._random.random() < chance:
                self._keep_set(item)
        for pod in self.all("Pod"):
            if self._random.random() < chance:
                self._run_pod(pod)

    def end(self, key: Key) -> None:
        """Begins the deletion of an object."""
        if not going(item := self.objects[key]):
            item["metadata"]["deletionTimestamp"] = timestamp(self.now)
            self._put(key, item, spec_changed=False)

    def crash(self, pod: str) -> None:
        """A pod's container ends and starts again."""
        self._says(self.objects["Pod", NAMESPACE, pod], ready=False, since=self.now)

    def _collect(self) -> None:
        alive = {item["metadata"]["uid"] for item in self.objects.values()}
        for key, item in list(self.objects.items()):
            owners = item["metadata"].get("ownerReferences")
            if owners and not any(owner["uid"] in alive for owner in owners):
                if key[0] == "Pod":
                    self.end(key)
                else:
                    self._remove(key)
                    self._volumes_follow(item)

    def _volumes_follow(self, item: Object) -> None:
        """Deletes the volumes of a deleted StatefulSet if its policy says so."""
        if item["kind"] != "StatefulSet":
            return
        if item["spec"].get("persistentVolumeClaimRetentionPolicy", {}).get("whenDeleted") == "Delete":
            for template in item["spec"]["volumeClaimTemplates"]:
                prefix = f"{template['metadata']['name']}-{item['metadata']['name']}-"
                for claim in self.all("PersistentVolumeClaim"):
                    if (name := claim["metadata"]["name"]).startswith(prefix):
                        self._remove(("PersistentVolumeClaim", NAMESPACE, name))
                        self.claim_deleted(name)

    def _make_pod(self, owner: Object, namespace: str, name: str, revision: str) -> None:
        super()._make_pod(owner, namespace, name, revision)
        meta = self.objects["Pod", namespace, name]["metadata"]
        meta["creationTimestamp"] = timestamp(self.now)
        self._made.add(meta["uid"])

    def _keep_set(self, item: Object) -> None:
        name, spec, meta = item["metadata"]["name"], item["spec"], item["metadata"]
        if going(item):
            if not self.pods_of(name):
                self._remove(("StatefulSet", NAMESPACE, name))
                self._volumes_follow(item)
            return
        if (item.get("status") or {}).get("observedGeneration") != meta["generation"]:
            self._revise(item)
            return  # the pods are handled in the next step
        first = spec.get("ordinals", {}).get("start", 0)
        wanted = [f"{name}-{ordinal}" for ordinal in range(first, first + spec["replicas"])]
        for key, pod in list(self.objects.items()):
            if key[0] == "Pod" and "ownerReferences" not in pod["metadata"] and _is_member(pod, name, spec):
                pod["metadata"]["ownerReferences"] = [{"name": name, "uid": meta["uid"]}]
        for each in self.pods_of(name):
            if each not in wanted:
                self.end(("Pod", NAMESPACE, each))
        for each in wanted:
            if self._lacks_a_volume(item, NAMESPACE, each):
                break  # Kubernetes can't give the pod its volumes, and doesn't handle the later pods
            if ("Pod", NAMESPACE, each) not in self.objects:
                self._make_pod(item, NAMESPACE, each, item["status"]["updateRevision"])

    def _run_pod(self, pod: Object) -> None:
        meta = pod["metadata"]
        if going(pod):
            self._remove(("Pod", NAMESPACE, meta["name"]))
        elif "status" not in pod:
            self._says(pod, ready=False, since=self.now)
        elif not holds(pod["status"], "Ready"):
            bad = pod["spec"]["containers"][0]["image"] in self.bad_images
            broker = meta.get("labels", {}).get(COMPONENT) != "etcd"
            if bad:
                if not pod["status"]["containerStatuses"][0]["state"].get("waiting"):
                    waits = {"reason": "ImagePullBackOff", "message": "no such image"}
                    pod["status"]["containerStatuses"] = [{"state": {"waiting": waits}, "lastState": {}}]
                    self._put(("Pod", NAMESPACE, meta["name"]), pod, spec_changed=False)
            elif not broker or (self.etcd_serves(meta["labels"][INSTANCE]) and self.pod_may_serve(pod)):
                self._says(pod, ready=True, since=self.now)
                self.pod_serves(meta["name"], pod)
        elif pod["spec"]["containers"][0].get("resources", {}) != pod["status"]["containerStatuses"][0]["resources"]:
            self._says(pod, ready=True, since=self.now)  # or sets the reason again why the pod isn't resized

    def _says(self, pod: Object, *, ready: bool, since: datetime) -> None:
        told, container = resources_told(pod, self.node_says.get(pod["metadata"]["name"], ""))
        pod["status"] = {
            "podIP": f"ip-{pod['metadata']['name']}",
            "hostIP": self.node_address,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp(since)},
                *told,
            ],
            "containerStatuses": [{**container, "state": {"running": {}}, "lastState": {}}],
        }
        self._put(("Pod", NAMESPACE, pod["metadata"]["name"]), pod, spec_changed=False)

    def _deleted(self, key: Key, propagation: str) -> None:
        kind, namespace, name = key
        if kind == "Pod":
            self.end(key)
        elif kind == "StatefulSet" and propagation == "Foreground":
            self.end(key)
            for pod in self.pods_of(name):
                self.end(("Pod", namespace, pod))
        else:
            if propagation == "Orphan":
                self._orphan(key)
            self._remove(key)

    def _orphan(self, key: Key) -> None:
        uid = self.objects[key]["metadata"]["uid"]
        for item in self.objects.values():
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or ()):
                del item["metadata"]["ownerReferences"]

    def _remove(self, key: Key) -> None:
        del self.objects[key]


def _is_member(pod: Object, name: str, spec: Object) -> bool:
    of, _, ordinal = pod["metadata"]["name"].rpartition("-")
    labels = pod["metadata"].get("labels") or {}
    return of == name and ordinal.isdecimal() and spec["selector"]["matchLabels"].items() <= labels.items()
