"""The common parts of all pods of a cluster: security, placement on nodes, volumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.operator.objects import OPERATOR, Object
from ottla.operator.plan.names import COMPONENT, INSTANCE, MANAGED_BY, labels, metadata
from ottla.operator.spec.cluster import Cluster, Template, Volume

USER = 10001

# Pod Security `restricted` requires these fields, except for the read-only root file system, which the operator adds.
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
TMP: Object = {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}
TMP_MOUNT: Object = {"name": "tmp", "mountPath": "/tmp"}


def http_probe(
    path: str,
    port: int | str,
    period_s: int,
    failures: int,
    *,
    first_s: int = 0,
    timeout_s: int = 5,
    encrypted: bool = False,
) -> Object:
    """A probe by HTTP GET, with `encrypted` over TLS, where the kubelet accepts any certificate. `first_s`: its initial
    delay. A probe before that time would fail, and cause a needless Event."""
    return {
        "httpGet": {"path": path, "port": port, **({"scheme": "HTTPS"} if encrypted else {})},
        **({"initialDelaySeconds": first_s} if first_s else {}),
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": timeout_s,
    }


def container(cluster: Cluster, name: str, image: str, **fields: Any) -> Object:
    """A container with the common security context; `fields` are Kubernetes' own."""
    made = {"name": name, "image": image, "securityContext": CONTAINER_SECURITY, **fields}
    if cluster.pull_policy:
        made["imagePullPolicy"] = cluster.pull_policy
    return made


def pod_template(
    cluster: Cluster,
    component: str,
    template: Template,
    containers: list[Object],
    volumes: list[Object],
    *,
    more_labels: Mapping[str, str] | None = None,
    more_annotations: Mapping[str, str] | None = None,
) -> Object:
    """The template of a component's pods: the operator's fields and the person's `template`. If both have a label, the
    operator's value holds."""
    spec: Object = {
        "containers": containers,
        "volumes": [*volumes, TMP],
        "securityContext": POD_SECURITY,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": template.grace_s,
        "affinity": template.affinity if template.affinity is not None else apart(cluster, component),
        "topologySpreadConstraints": spread(cluster, component, template),
    }
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        spec["tolerations"] = list(template.tolerations)
    if template.priority_class:
        spec["priorityClassName"] = template.priority_class
    meta: Object = {"labels": {**template.labels, **labels(cluster, component), **(more_labels or {})}}
    if annotations := {**template.annotations, **(more_annotations or {})}:
        meta["annotations"] = annotations
    return {"metadata": meta, "spec": spec}


def found_by(cluster: Cluster, component: str) -> dict[str, str]:
    """The labels that find a component's pods; they never change, because selectors can't."""
    return {INSTANCE: cluster.name, COMPONENT: component, MANAGED_BY: OPERATOR}


def apart(cluster: Cluster, component: str) -> Object:
    """A preference for different nodes, so that one node's failure doesn't take two pods of a component."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": found_by(cluster, component)}}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    }


def spread(cluster: Cluster, component: str, template: Template) -> list[Object]:
    """The topology spread constraints: those of the template, else a preference for different zones."""
    selector = {"matchLabels": found_by(cluster, component)}
    if template.spread:
        return [{"labelSelector": selector, **constraint} for constraint in template.spread]
    zones = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    return [{**zones, "labelSelector": selector}]


def claim(name: str, volume: Volume, labelled: dict[str, str]) -> Object:
    """The template of a claim: each pod of a StatefulSet gets one like it."""
    return volume_claim({"name": name, "labels": labelled}, volume)


def volume_claim(meta: Object, volume: Volume) -> Object:
    """A PersistentVolumeClaim with the access mode ReadWriteOnce."""
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": volume.size}}}
    if volume.class_name is not None:
        spec["storageClassName"] = volume.class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def stateful_set(
    cluster: Cluster,
    name: str,
    component: str,
    *,
    service: str,
    replicas: int,
    template: Object,
    claims: list[Object],
    first: int = 0,
    keep_volumes: bool = True,
    more_labels: Mapping[str, str] | None = None,
) -> Object:
    """A StatefulSet whose pods start in parallel, and are replaced only when the operator deletes them.

    `first`: the first ordinal; `keep_volumes`: whether the claims outlive the StatefulSet.
    """
    spec: Object = {
        "serviceName": service,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": {**found_by(cluster, component), **(more_labels or {})}},
        "template": template,
    }
    if first:
        spec["ordinals"] = {"start": first}
    if claims:
        spec["volumeClaimTemplates"] = claims
        spec["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": "Retain" if keep_volumes else "Delete",
            "whenScaled": "Retain",
        }
    meta = metadata(cluster, name, component, dict(more_labels or {}))
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}
