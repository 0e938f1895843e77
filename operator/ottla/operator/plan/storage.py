"""Volumes that grow: the claims that are there, and the StatefulSet that would make new ones. Pure.

A claim is made larger in place. What a StatefulSet says of its claims can't change, so it is deleted without its pods
and made again. A claim that is larger than the spec says is left as it is: somebody else may look after sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ottla.operator.objects import Object, condition, seconds_since
from ottla.operator.plan.etcd_pods import size_bytes

GROWS_S_MAX = 300.0


def grown(wanted: Object, claims: Iterable[Object]) -> list[tuple[str, str]]:
    """Claims of the pods of a StatefulSet that are to be larger, and how large."""
    sizes = _sizes(wanted)
    name = wanted["metadata"]["name"]
    larger = []
    for claim in claims:
        present = claim["spec"]["resources"]["requests"]["storage"]
        template = claim["metadata"]["name"].rpartition(f"-{name}-")[0]
        if template in sizes and size_bytes(sizes[template]) > size_bytes(present):
            larger.append((claim["metadata"]["name"], sizes[template]))
    return larger


def grows_at_its_start(pod: Object, claims: Mapping[str, Object], now: datetime) -> str:
    """Which volume of a pod is larger, but for its file system, which some drivers only grow while no pod has it.

    Nothing for drivers that do it by themselves, which takes them seconds; and nothing for a second start in vain.
    """
    for name in claims_of(pod):
        pending = condition(claims.get(name, {}).get("status"), "FileSystemResizePending")
        since = pending.get("lastTransitionTime") or ""
        if pod["metadata"].get("creationTimestamp", "") < since and seconds_since(since, now) > GROWS_S_MAX:
            return name
    return ""


def claims_of(pod: Object) -> list[str]:
    """The names of the pod's claims."""
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]


def has_to_be_made_again(wanted: Object, present: Object) -> bool:
    """Whether a StatefulSet has fewer or smaller claims than it should have."""
    before = _sizes(present)
    return any(
        name not in before or size_bytes(size) > size_bytes(before[name]) for name, size in _sizes(wanted).items()
    )


def kept(wanted: Object, present: Object | None) -> Object:
    """What can be applied: a StatefulSet whose claims are larger than wanted keeps them as they are."""
    if present is None or "volumeClaimTemplates" not in wanted["spec"]:
        return wanted
    before = _sizes(present)
    claims = [
        claim if (name := claim["metadata"]["name"]) not in before else _sized(claim, before[name])
        for claim in wanted["spec"]["volumeClaimTemplates"]
    ]
    return {**wanted, "spec": {**wanted["spec"], "volumeClaimTemplates": claims}}


def _sized(claim: Object, size: str) -> Object:
    return {**claim, "spec": {**claim["spec"], "resources": {"requests": {"storage": size}}}}


def _sizes(stateful_set: Object) -> dict[str, str]:
    return {
        claim["metadata"]["name"]: claim["spec"]["resources"]["requests"]["storage"]
        for claim in stateful_set["spec"].get("volumeClaimTemplates") or ()
    }
