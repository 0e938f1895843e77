"""Kubernetes' objects as the operator has them: dictionaries, and what is read from any of them. Pure.

Here and nowhere else: how a resource is named, how times are written, what a condition says.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

GROUP = "ottla.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
OPERATOR = "ottla-operator"  # who manages objects and fields, and asks brokers

Object = dict[str, Any]

_TIME = "%Y-%m-%dT%H:%M:%SZ"


class Ref(NamedTuple):
    """A namespaced resource; its kind is known where it is used."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def ref_of(found: Mapping[str, Any]) -> Ref:
    """Which one it is."""
    return Ref(found["metadata"]["namespace"], found["metadata"]["name"])


def going(found: Mapping[str, Any]) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in found["metadata"]


def is_owned_by_one_named(found: Mapping[str, Any], kind: str, name: str) -> bool:
    """Whether a resource of ours of that kind and name owns it, or one that had the name before."""
    return any(
        (owner.get("kind"), owner.get("apiVersion"), owner.get("name")) == (kind, API_VERSION, name)
        for owner in found["metadata"].get("ownerReferences") or ()
    )


def annotation(found: Mapping[str, Any], name: str) -> str:
    """Its value; empty where there is none."""
    return str((found["metadata"].get("annotations") or {}).get(name, ""))


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """The JSON merge patch (RFC 7396) from one to the other: at every depth, what there isn't any more is null."""
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
    """Whether the condition is True."""
    return condition(status, kind).get("status") == "True"


def timestamp(now: datetime) -> str:
    """As Kubernetes writes it; `now` is in UTC."""
    return now.strftime(_TIME)


def seconds_since(text: str, now: datetime) -> float:
    """How long ago that was, 0 if it lies ahead: clocks differ."""
    return max(0.0, (now - datetime.strptime(text, _TIME).replace(tzinfo=UTC)).total_seconds())
