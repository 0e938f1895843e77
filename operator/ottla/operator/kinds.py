"""The kinds of objects that the operator uses, and their paths in Kubernetes' API. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ottla.operator.objects import API_VERSION


class Kind(NamedTuple):
    """A kind's path in the API: the group and version, and the plural of the kind's name."""

    api_version: str
    plural: str


KINDS = {
    "Cluster": Kind(API_VERSION, "clusters"),
    "Topic": Kind(API_VERSION, "topics"),
    "User": Kind(API_VERSION, "users"),
    "ConfigMap": Kind("v1", "configmaps"),
    "CustomResourceDefinition": Kind("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "Event": Kind("v1", "events"),
    "Namespace": Kind("v1", "namespaces"),
    "Node": Kind("v1", "nodes"),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Pod": Kind("v1", "pods"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "StorageClass": Kind("storage.k8s.io/v1", "storageclasses"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "ControllerRevision": Kind("apps/v1", "controllerrevisions"),
    "Deployment": Kind("apps/v1", "deployments"),
    "SubjectAccessReview": Kind("authorization.k8s.io/v1", "subjectaccessreviews"),
    "EndpointSlice": Kind("discovery.k8s.io/v1", "endpointslices"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "CronJob": Kind("batch/v1", "cronjobs"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
}
