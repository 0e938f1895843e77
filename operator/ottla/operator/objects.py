"""Functions that read facts from Kubernetes' objects of any kind, which the operator has as dictionaries. Pure.

Only this module knows how a resource is identified, how Kubernetes writes times, and how a condition is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

GROUP = "ottla.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
OPERATOR = "ottla-operator"  # the operator's name as manager of objects and fields, and as client of brokers

Object = dict[str, Any]

_TIME = "%Y-%m-%dT%H:%M:%SZ"


class Ref(NamedTuple):
    """The namespace and name of a resource. The code that uses a Ref knows the resource's kind."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def ref_of(found: Mapping[str, Any]) -> Ref:
    """The namespace and name of an object."""
    return Ref(found["metadata"]["namespace"], found["metadata"]["name"])


def going(found: Mapping[str, Any]) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in found["metadata"]


def is_owned_by_one_named(found: Mapping[str, Any], kind: str, name: str) -> bool:
    """Whether an Ottla resource of this kind and name owns an object: the present resource, or an earlier one."""
    return any(
        (owner.get("kind"), owner.get("apiVersion"), owner.get("name")) == (kind, API_VERSION, name)
        for owner in found["metadata"].get("ownerReferences") or ()
    )


def is_owned_by_former(found: Mapping[str, Any], kind: str, name: str, uid: str) -> bool:
    """Whether an earlier Ottla resource of this kind and name owns an object, and not the present one with this uid:
    Kubernetes is about to delete the object."""
    owners = found["metadata"].get("ownerReferences") or ()
    return is_owned_by_one_named(found, kind, name) and all(owner.get("uid") != uid for owner in owners)


def annotation(found: Mapping[str, Any], name: str) -> str:
    """The value of an annotation; empty where the object doesn't have it."""
    return str((found["metadata"].get("annotations") or {}).get(name, ""))


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """The JSON merge patch (RFC 7396) from one document to the other: at every depth, a key that `after` lacks is
    null."""
    patch: Object = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if value != old:
                patch[name] = merge_patch(old, value)
        elif name not in before or value != old:
            patch[name] = value
    return patch


def condition(status: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty where the status has none."""
    return next((each for each in (status or {}).get("conditions") or () if each["type"] == kind), {})


def holds(status: Mapping[str, Any] | None, kind: str) -> bool:
    """Whether the status has the condition of that type as True."""
    return condition(status, kind).get("status") == "True"


def timestamp(now: datetime) -> str:
    """The time as Kubernetes writes it (RFC 3339, whole seconds); `now` is in UTC."""
    return now.strftime(_TIME)


def seconds_since(text: str, now: datetime) -> float:
    """How many seconds ago a time was that Kubernetes wrote; 0 if it is in the future, because clocks differ."""
    return max(0.0, (now - datetime.strptime(text, _TIME).replace(tzinfo=UTC)).total_seconds())
