"""The names and labels of a cluster's objects. Pure.

Users' scripts rely on these names, so they are defined only here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ottla.operator.objects import API_VERSION, OPERATOR, Object
from ottla.operator.spec.cluster import Cluster, Listener, Pool

MANAGED_BY = "app.kubernetes.io/managed-by"
POD_NAME = "statefulset.kubernetes.io/pod-name"  # a label that a StatefulSet gives to its pods
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
POOL = "ottla.dev/pool"
CERTIFICATES_CHECKSUM = "ottla.dev/certificates-checksum"
CONFIG_CHECKSUM = "ottla.dev/config-checksum"
FILES_CHECKSUM = "ottla.dev/files-checksum"  # on the brokers' Secret: its data; on a pod: those that it has to mount
FILES_CHANGED = "ottla.dev/files-changed"  # on the brokers' Secret: when the operator has changed its data last
TRUSTED_SINCE = "ottla.dev/trusted-since"  # on the brokers' Secret: when it has got the present cluster-ca.crt
CUT_OFF = "ottla.dev/cut-off"  # on the brokers' Secret: true while brokers may run that don't trust its keys
ETCD_TLS = "ottla.dev/etcd-tls"  # a label of the volumes of an etcd that has TLS though its spec doesn't say so
LINKS = "ottla.dev/links"  # on a pod: the stage of the links between brokers that it was made for; none: PLAIN
PAGES = "ottla.dev/pages"  # on a pod: https if its process serves its HTTP pages over TLS; none: http
RESTARTED_FOR = "ottla.dev/restarted-for"  # on a pod: the Cluster's `ottla.dev/restart` when the pod was made
RESIZE = "ottla.dev/resize"  # on a pod: the state of its resize in place
VOLUME = "data-"  # followed by the volume's id: the name of a broker's volume in its pod
DATA = "/data"  # followed by "/" and the volume's id: its mount path
POD_INDEX = "apps.kubernetes.io/pod-index"
REVISION = "controller-revision-hash"


def labels(cluster: Cluster, component: str) -> dict[str, str]:
    """The labels of every object of one component of the cluster; selectors of pods use some of them (`found_by`)."""
    return {
        "app.kubernetes.io/name": "ottla",
        INSTANCE: cluster.name,
        COMPONENT: component,
        MANAGED_BY: OPERATOR,
    }


def selector(name: str) -> str:
    """The label selector that finds all objects of the cluster of that name."""
    return f"{MANAGED_BY}={OPERATOR},{INSTANCE}={name}"


def metadata(cluster: Cluster, name: str, component: str, more: dict[str, str] | None = None) -> Object:
    """The metadata of an object that Kubernetes deletes with the Cluster, its owner; `more`: further labels."""
    return {
        "name": name,
        "namespace": cluster.namespace,
        "labels": {**labels(cluster, component), **(more or {})},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": "Cluster",
                "name": cluster.name,
                "uid": cluster.uid,
                "controller": True,
            }
        ],
    }


def config_map(cluster: Cluster, name: str, component: str, data: dict[str, str]) -> Object:
    """A ConfigMap that Kubernetes deletes with the Cluster."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(cluster, name, component), "data": data}


def secret(cluster: Cluster, name: str, component: str, data: dict[str, str]) -> Object:
    """A Secret that Kubernetes deletes with the Cluster; `data` are in base64."""
    meta = metadata(cluster, name, component)
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta, "data": data}


def broker_set(cluster: Cluster, pool: Pool) -> str:
    """The name of a pool's StatefulSet."""
    return f"{cluster.name}-{pool.name}"


def broker_service(cluster: Cluster) -> str:
    """The name of the headless Service that gives each broker its name in DNS."""
    return f"{cluster.name}-brokers"


def bootstrap_service(cluster: Cluster, listener: Listener | None = None) -> str:
    """The name of the Service by which clients bootstrap. Each external listener has such a Service of its own."""
    return f"{cluster.name}-bootstrap" + (f"-{listener.name}" if listener is not None and listener.external else "")


def external_service(cluster: Cluster, pod: str, listener: Listener) -> str:
    """The name of the Service of one broker for clients outside."""
    return f"{pod}-{listener.name}"


def broker_config(cluster: Cluster) -> str:
    """The name of the ConfigMap with the brokers' file of settings."""
    return f"{cluster.name}-config"


def followed(name: str) -> str:
    """The name of the ConfigMap with the spec that the Cluster of that name followed last."""
    return f"{name}-followed"


def remembered_topics(name: str) -> str:
    """The name of the ConfigMap with the Topics that the Cluster of that name has had."""
    return f"{name}-topics"


def recorded_users(name: str) -> str:
    """The name of the ConfigMap with the users to whom the Cluster of that name has given something."""
    return f"{name}-users"


def client_config(cluster: Cluster) -> str:
    """The name of the ConfigMap with the settings that a client needs to connect."""
    return f"{cluster.name}-client"


def cluster_ca(name: str) -> str:
    """The name of the Secret with the key of the authority that signs the brokers' certificates. `name`: that of the
    Cluster."""
    return f"{name}-cluster-ca"


def clients_ca(name: str) -> str:
    """The name of the Secret with the key of the authority that signs clients' certificates."""
    return f"{name}-clients-ca"


def trust_of(authority: str) -> str:
    """The name of the Secret with the trusted certificates of an authority, which clients may read."""
    return f"{authority}-cert"


def broker_certificates(name: str) -> str:
    """The name of the Secret with the brokers' certificates, their keys, and the authorities that brokers trust."""
    return f"{name}-brokers-tls"


def operator_certificate(name: str) -> str:
    """The name of the Secret with the certificate and the key by which the operator connects to brokers."""
    return f"{name}-operator-tls"


def etcd_set(cluster: Cluster) -> str:
    """The name that etcd's StatefulSet, headless Service, ConfigMap and PodDisruptionBudget have."""
    return f"{cluster.name}-etcd"


def etcd_authority(cluster: Cluster) -> str:
    """The name of the Secret with the key of the certificate authority; no pod mounts this Secret."""
    return f"{cluster.name}-etcd-authority"


def etcd_certificates(cluster: Cluster) -> str:
    """The name of the Secret with the certificates and keys of etcd's members and clients."""
    return f"{cluster.name}-etcd-tls"


def volume(number: int) -> str:
    """The name of a broker's volume in its pod; the claim's name is `<volume>-<pod>`."""
    return f"{VOLUME}{number}"


def log_directory(number: int) -> str:
    """The path of the log directory on a broker's volume."""
    return f"{DATA}/{number}/log"


def snapshots(cluster: Cluster) -> str:
    """The name of the CronJob that takes snapshots of etcd, and of the claim of its volume."""
    return f"{cluster.name}-etcd-snapshots"


def controller_set(cluster: Cluster) -> str:
    """The name of the StatefulSet of controllers that have pods of their own."""
    return f"{cluster.name}-controller"


def sets(cluster: Cluster) -> list[str]:
    """The names of all StatefulSets that a cluster may have."""
    return [*(broker_set(cluster, pool) for pool in cluster.pools), etcd_set(cluster), controller_set(cluster)]


def set_of(pod: str) -> str:
    """The name of a pod's StatefulSet. `pod`: the pod's name, which is the StatefulSet's, a hyphen and the ordinal."""
    return pod.rpartition("-")[0]


def is_set_of(cluster: Cluster, name: str, labels: Mapping[str, str]) -> bool:
    """Whether the operator gives this name to a StatefulSet with these labels, by this spec or an earlier one. The pods
    of a StatefulSet have its labels, too."""
    pool = labels.get(POOL)
    expected = [etcd_set(cluster), controller_set(cluster)] if pool is None else [f"{cluster.name}-{pool}"]
    return name in expected


def pod_host(cluster: Cluster, pod: str, service: str) -> str:
    """A pod's name in DNS, under a headless Service."""
    return f"{pod}.{service}.{cluster.namespace}.svc"


def checksum(text: str) -> str:
    """A short digest. In an annotation of a pod template, such a digest makes the template change when the mounted
    content changes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
