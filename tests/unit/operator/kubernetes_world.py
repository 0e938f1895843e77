"""A Kubernetes in memory for the reconciler of Clusters: apply without schemas, and StatefulSets that make pods.

Everything else that an API server does (defaults, validation, CEL, garbage collection) is tested on a real API server.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import marshal
from collections.abc import Callable
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from ottla.operator.kinds import KINDS
from ottla.operator.kube import KubeError
from ottla.operator.objects import API_VERSION, merge_patch, timestamp
from ottla.operator.plan.names import POD_NAME
from ottla.operator.rights import IN_NAMESPACES, OF_NO_NAMESPACE, asked, each
from tests.unit.operator.resources import check_resize, filled_in, resources_told

Object = dict[str, Any]
GRANTED = frozenset(each((*IN_NAMESPACES, *OF_NO_NAMESPACE)))
CUSTOM = frozenset(name for name, kind in KINDS.items() if kind.api_version == API_VERSION)


class World:
    """The objects, the operator's requests, and the controllers of Kubernetes, whose work `settle` does.

    A request for which the operator has no right in the chart is refused.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.events: list[tuple[str, str]] = []
        self.warnings: list[tuple[str, str]] = []  # the events that are warnings
        self.foreground: list[str] = []  # names of objects that are deleted only after the objects that they own
        self.writes: list[str] = []
        self.bad_images: set[str] = set()
        self.silent_images: set[str] = set()  # images whose containers run, but never become ready
        self.crashing_images: set[str] = set()
        self.homeless_images: set[str] = set()  # images whose pods get no node
        # Storage classes of which nothing makes volumes. Pods that wait for volumes of these classes get no node.
        self.idle_classes: set[str] = set()
        self.refused_pods: set[str] = set()  # pods that a quota refuses
        self.alarms: list[Object] = []  # etcd's alarms
        self.used_bytes = 1000  # the bytes that etcd uses
        self.taken_ports: set[int] = set()  # node ports of other Services
        self.resizes = True  # whether the API server has the subresource `resize`
        self.lowers_memory = True  # whether a running pod's memory limit may be lowered
        # Pod → the node's answer to its resize. Without an entry, the node does the resize.
        self.node_says: dict[str, str] = {}
        # Changes a patch before it is applied, as a webhook does. Called with the subresource (or else the kind) and
        # the object.
        self.webhook: Callable[[str, Object], None] = lambda what, item: None
        # "verb kind name" (a list has no name) → the error that the request raises
        self.refusals: dict[str, Exception] = {}
        self.clock: Callable[[], datetime] = lambda: datetime(2026, 5, 1, 12, tzinfo=UTC)
        self._versions = itertools.count(1)

    # ---- the methods of `Kube`

    def _asked(self, request: str) -> None:
        if request in self.refusals:
            raise self.refusals[request]

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self._may("get", kind)
        self._asked(f"get {kind} {name}")
        found = self.objects.get((kind, namespace, name))
        return copied(found) if found is not None else None

    async def offers(self, kind: str, subresource: str) -> bool:
        self._asked(f"offers {kind} {subresource}")
        return self.resizes

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        self._may("list", kind)
        self._asked(f"list {kind}")
        wanted = dict(part.split("=") for part in labels.split(",") if part)
        found = [
            (key, item)
            for key, item in self.objects.items()
            if key[0] == kind
            and namespace in ("", key[1])
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        ]
        items = [copied(item) for _, item in sorted(found, key=itemgetter(0))]
        if kind not in CUSTOM:  # the API server leaves the kind out of the items of a list, unless a CRD defines them
            for item in items:
                item.pop("kind", None)
                item.pop("apiVersion", None)
        return items

    async def apply(self, wanted: Object, observed: Object | None = None) -> Object:
        key = (wanted["kind"], wanted["metadata"].get("namespace", ""), wanted["metadata"]["name"])
        self._asked(f"apply {key[0]} {key[2]}")
        present = self.objects.get(key)
        self._may("patch", key[0])
        if present is None:
            self._may("create", key[0])
        merged = copied(wanted)
        if present is not None:
            merged["metadata"] = {**present["metadata"], **merged["metadata"]}
            if "status" in present:
                merged["status"] = present["status"]
            _keep_node_ports(merged, present)
            if merged == present:
                return copied(present)
        taken = self.taken_ports | self.node_ports(but=key) if key[0] == "Service" else set()
        if any(port.get("nodePort") in taken for port in merged.get("spec", {}).get("ports", ())):
            raise KubeError(422, f"applying {key[2]}", "provided port is already allocated")
        self.writes.append(f"apply {key[0]} {key[2]}")
        self._put(key, merged, spec_changed=present is None or merged.get("spec") != present.get("spec"))
        return copied(self.objects[key])

    def node_ports(self, but: tuple[str, str, str]) -> set[int]:
        """The node ports of all Services but one."""
        return {
            port["nodePort"]
            for key, item in self.objects.items()
            if key[0] == "Service" and key != but
            for port in item["spec"].get("ports", ())
            if "nodePort" in port
        }

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        self._may("patch", kind, subresource)
        self._asked(f"{subresource or 'merge'} {kind} {name}")
        if subresource == "resize" and not self.resizes:
            raise KubeError(404, f"patching {kind} {name}", "the server could not find the requested resource")
        if (item := self.objects.get((kind, namespace, name))) is None:
            raise KubeError(404, f"patching {kind} {name}", "not found")
        for part, what in (("uid", "the object has another uid"), ("resourceVersion", "it has changed")):
            if patch.get("metadata", {}).get(part) not in (None, item["metadata"].get(part)):
                raise KubeError(409, f"patching {kind} {name}", what)
        if subresource == "resize":
            check_resize(item, patch, lowers_memory=self.lowers_memory)
        self.writes.append(f"{subresource or 'merge'} {kind} {name}")
        _merge(item, {name: value for name, value in patch.items() if name != "metadata"})
        self.webhook(subresource or kind, item)
        _merge(item["metadata"], {k: v for k, v in patch.get("metadata", {}).items() if k != "resourceVersion"})
        self._put((kind, namespace, name), item, spec_changed="spec" in patch)
        return copied(item)

    async def write_status(self, resource: Object, status: Object) -> None:
        meta = resource["metadata"]
        key = (resource["kind"], meta["namespace"], meta["name"])
        self._may("patch", key[0], "status")
        if key not in self.objects:
            raise KubeError(404, "writing", "not found")
        if self.objects[key]["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise KubeError(409, "writing", "it has changed")
        self.writes.append(f"status {key[2]}")
        _merge(self.objects[key].setdefault("status", {}), merge_patch(resource.get("status") or {}, status))
        self._put(key, self.objects[key], spec_changed=False)

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
    ) -> bool:
        self._may("delete", kind)
        self._asked(f"delete {kind} {name}")
        if not self.would_delete(kind, namespace, name, uid=uid, version=version):
            return False
        self.writes.append(f"delete {kind} {name}")
        self._deleted((kind, namespace, name), propagation)
        return True

    def would_delete(
        self, kind: str, namespace: str, name: str, *, uid: str | None = None, version: str | None = None
    ) -> bool:
        """Whether a deletion with these preconditions would succeed: the object exists, and still has this uid and this
        resource version."""
        if (found := self.objects.get((kind, namespace, name))) is None:
            return False
        meta = found["metadata"]
        return uid in (None, meta["uid"]) and version in (None, meta["resourceVersion"])

    def _deleted(self, key: tuple[str, str, str], propagation: str) -> None:
        """Deletes an object. If it is a StatefulSet, its pods lose their owner with the `propagation` Orphan, and are
        deleted otherwise."""
        kind, namespace, name = key
        if propagation == "Foreground":
            self.foreground.append(name)
        pods = self.pods_of(name) if kind == "StatefulSet" else []
        for pod in pods:
            if propagation == "Orphan":
                del self.objects["Pod", namespace, pod]["metadata"]["ownerReferences"]
            else:
                del self.objects["Pod", namespace, pod]
        del self.objects[key]

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        self._may("create", "Event")
        self.events.append((reason, message))
        if warning:
            self.warnings.append((reason, message))

    def _may(self, verb: str, kind: str, subresource: str = "") -> None:
        if asked(verb, kind, subresource) not in GRANTED:
            raise KubeError(403, f"{verb} {kind}", "the operator has no right to that")

    # ---- actions of people and controllers

    def create(self, item: Object) -> None:
        meta = item["metadata"]
        self._put((item["kind"], meta.get("namespace", ""), meta["name"]), item, spec_changed=True)

    def edit(self, kind: str, name: str, change: Any) -> None:
        """Changes the spec of an object as a person does: `change` is called with the spec."""
        key = next(key for key in self.objects if key[0] == kind and key[2] == name)
        change(self.objects[key]["spec"])
        self._put(key, self.objects[key], spec_changed=True)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """A person deletes an object, also one that the operator has no right to delete."""
        self._deleted((kind, namespace, name), "Background")

    def pods_of(self, stateful_set: str) -> list[str]:
        return [
            name
            for (kind, _, name), item in self.objects.items()
            if kind == "Pod"
            and stateful_set in [owner["name"] for owner in item["metadata"].get("ownerReferences", ())]
        ]

    def settle(self) -> None:
        """Does the work of Kubernetes: StatefulSets create and delete pods, and pods become ready."""
        for (kind, namespace, name), item in list(self.objects.items()):
            if kind != "StatefulSet":
                continue
            revision = self._revise(item)
            first = item["spec"].get("ordinals", {}).get("start", 0)
            wanted = [f"{name}-{ordinal}" for ordinal in range(first, first + item["spec"]["replicas"])]
            for pod in self.pods_of(name):
                if pod not in wanted:
                    del self.objects["Pod", namespace, pod]
            stopped = False  # a pod lacks a volume: then Kubernetes creates no pods with higher ordinals
            for pod in wanted:
                stopped |= self._lacks_a_volume(item, namespace, pod)
                if ("Pod", namespace, pod) not in self.objects and pod not in self.refused_pods and not stopped:
                    self._make_pod(item, namespace, pod, revision)
                if (made := self.objects.get(("Pod", namespace, pod))) is not None:
                    made["metadata"].setdefault("ownerReferences", _owner(item))
        for (kind, _, name), item in self.objects.items():
            if kind == "Pod":
                self._run(item, name)

    def _lacks_a_volume(self, owner: Object, namespace: str, name: str) -> bool:
        """Whether the pod exists, but lacks a volume that its StatefulSet would give it."""
        if (pod := self.objects.get(("Pod", namespace, name))) is None:
            return False
        has = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        return any(volume["metadata"]["name"] not in has for volume in owner["spec"].get("volumeClaimTemplates") or ())

    def _revise(self, stateful_set: Object) -> str:
        """Makes the StatefulSet observe its template. Returns the name of the ControllerRevision with the template."""
        template, meta = stateful_set["spec"]["template"], stateful_set["metadata"]
        digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
        revision = f"{meta['name']}-{digest}"
        stateful_set["status"] = {"observedGeneration": meta["generation"], "updateRevision": revision}
        if ("ControllerRevision", meta["namespace"], revision) not in self.objects:
            data = {"spec": {"template": {**copied(template), "$patch": "replace"}}}
            named = {"namespace": meta["namespace"], "name": revision, "ownerReferences": _owner(stateful_set)}
            self.create({"kind": "ControllerRevision", "metadata": named, "data": data})
        return revision

    def _make_pod(self, owner: Object, namespace: str, name: str, revision: str) -> None:
        template = copied(owner["spec"]["template"])
        labels = {**template["metadata"]["labels"], "controller-revision-hash": revision, POD_NAME: name}
        for volume in owner["spec"].get("volumeClaimTemplates") or ():
            claim = f"{volume['metadata']['name']}-{name}"
            mounted = {"name": volume["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim}}
            template["spec"]["volumes"] = [*template["spec"].get("volumes", ()), mounted]
            if ("PersistentVolumeClaim", namespace, claim) not in self.objects:
                meta = {"labels": volume["metadata"]["labels"], "namespace": namespace, "name": claim}
                made: Object = {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": copied(volume["spec"])}
                if volume["spec"].get("storageClassName") in self.idle_classes:
                    meta["creationTimestamp"] = "2026-05-01T12:00:00Z"
                    made["status"] = {"phase": "Pending"}
                self.create(made)
        pod = {
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "labels": labels,
                "name": name,
                "namespace": namespace,
                "creationTimestamp": timestamp(self.clock()),
                "ownerReferences": _owner(owner),
            },
            "spec": filled_in(template["spec"]),
        }
        self._put(("Pod", namespace, name), pod, spec_changed=True)

    def _run(self, pod: Object, name: str) -> None:
        image = pod["spec"]["containers"][0]["image"]
        state, last_state = self._state(image)
        ready = "running" in state and image not in self.silent_images
        scheduled: Object = {"type": "PodScheduled", "status": "True"}
        if image in self.homeless_images or self._waits_for_a_volume(pod):
            scheduled |= {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
            ready = False
        told, container = resources_told(pod, self.node_says.get(name, ""))
        pod["status"] = {
            "podIP": f"ip-{name}",
            "conditions": [
                scheduled,
                {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-05-01T00:00:00Z"},
                *told,
            ],
            "containerStatuses": [{**container, "state": state, "lastState": last_state}],
        }

    def _waits_for_a_volume(self, pod: Object) -> bool:
        named = (each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["spec"].get("volumes", ()))
        claims = (self.objects.get(("PersistentVolumeClaim", pod["metadata"]["namespace"], name)) for name in named)
        return any(claim is not None and claim.get("status", {}).get("phase") == "Pending" for claim in claims)

    def _state(self, image: str) -> tuple[Object, Object]:
        """The state of a container with this image, and the state in which it ended before."""
        if image in self.bad_images:
            return {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, {}
        if image in self.crashing_images:
            return {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"message": "there is no such module"}}
        return {"running": {}}, {}

    def _put(self, key: tuple[str, str, str], item: Object, *, spec_changed: bool) -> None:
        meta = item["metadata"]
        version = next(self._versions)
        meta.setdefault("uid", f"uid-{version}")
        meta["resourceVersion"] = str(version)
        meta["generation"] = meta.get("generation", 0) + int(spec_changed)
        self.objects[key] = item


def copied(item: Object) -> Object:
    """A deep copy of JSON data, which the caller may change."""
    made: Object = marshal.loads(marshal.dumps(item))
    return made


def _owner(item: Object) -> list[Object]:
    return [{"name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}]


def _keep_node_ports(wanted: Object, present: Object) -> None:
    """Keeps node ports that the API server filled in, unless the new object names others."""
    if wanted["kind"] == "Service":
        numbers = {port["name"]: port["nodePort"] for port in present["spec"]["ports"] if "nodePort" in port}
        for port in wanted["spec"]["ports"]:
            if port["name"] in numbers:
                port.setdefault("nodePort", numbers[port["name"]])


def _merge(target: Object, patch: Object) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(target.get(name), dict):
                target[name] = {}
            _merge(target[name], value)
        else:
            target[name] = copied(value)
