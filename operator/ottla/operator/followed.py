"""The last spec of a Cluster that could be followed, kept in a ConfigMap beside the Cluster.

A mistake in a spec mustn't keep the operator from repairing the cluster, even after a restart of the operator. So the
last spec that could be followed is written down. The Cluster owns the ConfigMap, so a Cluster that was made again under
its name has none.
"""

from __future__ import annotations

import json

from ottla.operator.kube import Kube
from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.spec.broker_config import still_known
from ottla.operator.spec.cluster import Cluster, Defaults, parse_cluster
from ottla.operator.spec.spec_error import SpecError

_SPEC = "spec.json"


def followed_spec(cluster: Cluster, spec: Object) -> Object:
    """The ConfigMap that keeps `spec`, from which `cluster` was read. Pure."""
    return names.config_map(
        cluster, names.followed(cluster.name), "operator", {_SPEC: json.dumps(spec, sort_keys=True)}
    )


async def last_followed(kube: Kube, resource: Object, defaults: Defaults) -> tuple[Cluster, Object] | None:
    """The Cluster and its spec as followed last; None where no kept spec can be followed. Raises KubeError."""
    meta = resource["metadata"]
    return kept_by(await kube.get("ConfigMap", meta["namespace"], names.followed(meta["name"])), resource, defaults)


def kept_by(kept: Object | None, resource: Object, defaults: Defaults) -> tuple[Cluster, Object] | None:
    """The Cluster and the spec that a ConfigMap keeps; None where this Cluster doesn't own the ConfigMap, or the spec
    can't be followed. Pure."""
    uid = resource["metadata"]["uid"]
    if kept is None or all(owner["uid"] != uid for owner in kept["metadata"].get("ownerReferences") or ()):
        return None
    try:
        spec: Object = json.loads(kept["data"][_SPEC])
        try:
            return parse_cluster({**resource, "spec": spec}, defaults), spec
        except SpecError:
            spec = _without_refused(spec)
            return parse_cluster({**resource, "spec": spec}, defaults), spec
    except (ValueError, KeyError, TypeError, AttributeError, SpecError):  # another release wrote it
        return None


def _without_refused(spec: Object) -> Object:
    """The spec without the brokers' settings that the operator refuses."""
    overrides = [
        {**each, "config": still_known(each.get("config") or {}, of_one=True)}
        for each in spec.get("configOverrides") or ()
    ]
    return {**spec, "config": still_known(spec.get("config") or {}), "configOverrides": overrides}
