"""The part of Kubernetes that the operator's reconcilers use, in memory: objects, merge patches, events, a watch.

It checks no schema: tests on the real API server do that.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import datetime
from itertools import count
from typing import Any

from ottla.operator.kube import KubeError

Object = dict[str, Any]
Watcher = Callable[[str | None, Object], Any]


class KubeStandIn:
    """Objects by kind, namespace and name. The function in `watchers` is called for each change of a resource of its
    kind."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.writes: list[str] = []
        self.events: list[tuple[str, str, str]] = []  # (the object's name, reason, message)
        self.watchers: dict[str, Watcher] = {}
        self.refused: dict[str, int] = {}  # kind → HTTP status with which every request for it is refused
        self.refused_writes: dict[str, int] = {}  # the same, only for requests that change something
        self._uids = count(1)
        self._versions = count(1)

    # ---- requests of a person

    def put(self, kind: str, name: str, namespace: str = "shop", **parts: Any) -> Object:
        """Creates an object, or changes parts (`spec`, `metadata`) of an existing one."""
        key = (kind, namespace, name)
        made = key not in self.objects
        if made:
            metadata = {"namespace": namespace, "name": name, "uid": f"uid-{next(self._uids)}", "generation": 1}
            metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
            self.objects[key] = {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": metadata}
        found = self.objects[key]
        if "spec" in parts and not made and parts["spec"] != found.get("spec"):
            found["metadata"]["generation"] += 1
        for part, value in parts.items():
            found[part] = {**found["metadata"], **value} if part == "metadata" else value
        self._changed(found)
        self._tell("ADDED" if made else "MODIFIED", found)
        return found

    def remove(self, kind: str, name: str, namespace: str = "shop") -> None:
        """Deletes an object."""
        self._tell("DELETED", self.objects.pop((kind, namespace, name)))

    def backup(self) -> dict[tuple[str, str, str], Object]:
        """A copy of all objects, for `restore`."""
        return deepcopy(self.objects)

    def restore(self, backup: dict[tuple[str, str, str], Object]) -> None:
        """Makes all objects as they were in the backup. No event of the watch reports the objects that are gone
        afterwards."""
        self.objects = deepcopy(backup)

    def topic(self, name: str, namespace: str = "shop") -> Object:
        """The Topic of this name."""
        return self.objects["Topic", namespace, name]

    def condition(
        self, name: str, kind: str = "Ready", namespace: str = "shop", of: str = "Topic"
    ) -> tuple[str, str, str]:
        """Status, reason and message of a condition of a Topic, or of a resource of another kind (`of`); dashes if the
        resource doesn't have the condition."""
        for condition in self.objects[of, namespace, name].get("status", {}).get("conditions", ()):
            if condition["type"] == kind:
                return condition["status"], condition["reason"], condition["message"]
        return "-", "-", "-"

    # ---- requests of the operator

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        self._check(kind)
        return deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind, by namespace and labels."""
        self._check(kind)
        wanted = dict(part.split("=") for part in labels.split(",") if part)
        return [
            deepcopy(found)
            for key, found in self.objects.items()
            if key[0] == kind
            and namespace in ("", key[1])
            and wanted.items() <= found["metadata"].get("labels", {}).items()
        ]

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """Applies a merge patch."""
        self._check(kind, writes=True)
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise KubeError(404, f"patching {name}", "not found")
        meta = found["metadata"]
        if any(patch.get("metadata", {}).get(part, meta[part]) != meta[part] for part in ("uid", "resourceVersion")):
            raise KubeError(409, f"patching {name}", "another one")
        self.writes.append(f"{kind} {name}")
        if subresource:
            assert subresource == "status"
            found["status"] = _merged(found.get("status", {}), patch["status"])
        else:
            found |= _merged(found, patch)
        self._changed(found)
        self._tell("MODIFIED", found)
        return deepcopy(found)

    async def create(self, wanted: Object) -> Object:
        """Creates an object. Raises KubeError if it exists."""
        meta = wanted["metadata"]
        self._check(wanted["kind"], writes=True)
        if (wanted["kind"], meta["namespace"], meta["name"]) in self.objects:
            raise KubeError(409, f"creating {wanted['kind']}", "it is there already")
        self.writes.append(f"{wanted['kind']} {meta['name']}")
        more = {name: value for name, value in wanted.items() if name not in ("kind", "apiVersion")}
        return deepcopy(self.put(wanted["kind"], meta["name"], meta["namespace"], **more))

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        """Notes an Event."""
        self.writes.append(f"event {reason}")
        self.events.append((about["metadata"]["name"], reason, message))

    def _check(self, kind: str, *, writes: bool = False) -> None:
        refused = self.refused | self.refused_writes if writes else self.refused
        if kind in refused:
            raise KubeError(refused[kind], kind, "refused")

    def _changed(self, found: Object) -> None:
        found["metadata"]["resourceVersion"] = str(next(self._versions))

    def _tell(self, event: str, found: Object) -> None:
        if (watcher := self.watchers.get(found["kind"])) is not None:
            watcher(event, deepcopy(found))


def _merged(present: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    base = dict(present) if isinstance(present, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = _merged(base.get(name), value)
    return base
