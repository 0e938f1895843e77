"""The StatefulSet of etcd's members, and what its pods need. Pure.

A member that has data starts on it by itself; etcd then ignores the flags about its initial cluster. A member without
data forms a new cluster only while the cluster has never been formed. Afterwards it waits until the operator has added
it as a new member, because a member that comes back without its votes could lose entries that a majority has committed.
Its termination message says that it has no data. What a member may do at its start is written in a ConfigMap, whose
data follow from the list of members alone (`etcd_members.py`).
"""

from __future__ import annotations

import math

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_file import ETCD_PORT
from ottla.operator.plan.pods import TMP_MOUNT, claim, container, http_probe, pod_template, stateful_set
from ottla.operator.plan.services import headless
from ottla.operator.spec.cluster import Cluster, Etcd, Volume
from ottla.operator.spec.quantity import amount

ETCD = "etcd"
PEER_PORT = 2380
METRICS_PORT = 2381
PORTS = {"client": ETCD_PORT, "peer": PEER_PORT, "metrics": METRICS_PORT}
_LISTEN_CLIENTS = "--listen-client-urls="
ENCRYPTED_CLIENTS = f"{_LISTEN_CLIENTS}https:"  # the beginning of the argument of a member whose clients use TLS
NO_DATA = "this member has no data"
CONFIG_FOLDER = "/etc/etcd"
DATA_FOLDER = "/data"
TLS_FOLDER = "/etc/etcd-tls"
DEFAULT_RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
FIRST_S, TOGETHER_S = 3, 6  # seconds until a started member answers, and until new members have a leader
NOT_FULL = "exclude=NOSPACE"
QUOTA_SHARE = 0.4  # of the volume's size, because a defragmentation writes the database a second time
QUOTA_BYTES_MAX = 8 * 2**30

_START = f"""\
#!/bin/sh
# Starts this member, or says that it has no data and may not begin by itself. A member has data, and an identity, from
# its first write-ahead log on: a start that fails before that, as it reaches no other member, leaves folders behind.
set -eu
has_data() {{ ls {DATA_FOLDER}/etcd/member/wal/*.wal >/dev/null 2>&1; }}
state=$(cat {CONFIG_FOLDER}/state)
if [ "$state" != new ] && [ ! -e "{CONFIG_FOLDER}/join-$POD_NAME" ] && ! has_data; then
  echo "{NO_DATA}" | tee /dev/termination-log
  exit 1
fi
exec etcd --name "$POD_NAME" --initial-cluster "$(cat {CONFIG_FOLDER}/initial-cluster)" \\
  --initial-cluster-state "$state" "$@"
"""


def peer_url(cluster: Cluster, pod: str) -> str:
    """The URL at which the other members reach a member."""
    return f"{_peer_scheme(cluster)}://{names.pod_host(cluster, pod, names.etcd_set(cluster))}:{PEER_PORT}"


def _peer_scheme(cluster: Cluster) -> str:
    etcd = cluster.metadata
    return "https" if isinstance(etcd, Etcd) and etcd.tls and not etcd.plain_peers else "http"


def member_names(cluster: Cluster, etcd: Etcd) -> list[str]:
    """The members' names, which are the names of their pods, too."""
    return [f"{names.etcd_set(cluster)}-{number}" for number in range(etcd.members)]


def config_map(cluster: Cluster, data: dict[str, str]) -> Object:
    """The ConfigMap with the start script, and `data`: the rules of `etcd_members.start_rules`."""
    return names.config_map(cluster, names.etcd_set(cluster), ETCD, {"start.sh": _START, **data})


def _arguments(cluster: Cluster, etcd: Etcd) -> list[str]:
    scheme = "https" if etcd.tls else "http"
    host = names.pod_host(cluster, "$(POD_NAME)", names.etcd_set(cluster))
    arguments = [
        f"--data-dir={DATA_FOLDER}/etcd",
        f"{_LISTEN_CLIENTS}{scheme}://0.0.0.0:{ETCD_PORT}",
        f"--advertise-client-urls={scheme}://{host}:{ETCD_PORT}",
        f"--listen-peer-urls={_peer_scheme(cluster)}://0.0.0.0:{PEER_PORT}",
        f"--initial-advertise-peer-urls={peer_url(cluster, '$(POD_NAME)')}",
        f"--listen-metrics-urls=http://0.0.0.0:{METRICS_PORT}",
        f"--initial-cluster-token={cluster.namespace}/{cluster.name}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        f"--quota-backend-bytes={quota_bytes(etcd.volume)}",
    ]
    if etcd.tls:
        arguments += _proofs("")
    if _peer_scheme(cluster) == "https":
        arguments += _proofs("peer-")
    return arguments


def _proofs(whose: str) -> list[str]:
    return [
        f"--{whose}client-cert-auth",
        f"--{whose}cert-file={TLS_FOLDER}/server.crt",
        f"--{whose}key-file={TLS_FOLDER}/server.key",
        f"--{whose}trusted-ca-file={TLS_FOLDER}/ca.crt",
    ]


def member_set(cluster: Cluster, etcd: Etcd, replicas: int) -> Object:
    """The StatefulSet of etcd's members."""
    process = container(
        cluster,
        ETCD,
        etcd.image,
        command=["/bin/sh", f"{CONFIG_FOLDER}/start.sh"],
        args=_arguments(cluster, etcd),
        env=[
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "HOME", "value": "/tmp"},
            *etcd.template.env,
        ],
        ports=[{"name": name, "containerPort": number} for name, number in PORTS.items()],
        volumeMounts=[
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "data", "mountPath": DATA_FOLDER},
            TMP_MOUNT,
            *([{"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}] if etcd.tls else []),
        ],
        resources=etcd.resources or DEFAULT_RESOURCES,
        # These probes pass while a database has reached its quota: a restart doesn't help, and the operator frees space
        # (etcd_upkeep.py).
        startupProbe=http_probe(f"/health?serializable=true&{NOT_FULL}", "metrics", 3, 100, first_s=FIRST_S),
        livenessProbe=http_probe(f"/health?serializable=true&{NOT_FULL}", "metrics", 10, 6),
        # Only a member that reaches a majority answers this probe.
        readinessProbe=http_probe(f"/health?{NOT_FULL}", "metrics", 3, 3, first_s=TOGETHER_S),
    )
    volumes: list[Object] = [{"name": "config", "configMap": {"name": names.etcd_set(cluster)}}]
    if etcd.tls:
        items = [{"key": key, "path": key} for key in ("ca.crt", "server.crt", "server.key")]
        volumes.append({"name": "tls", "secret": {"secretName": names.etcd_certificates(cluster), "items": items}})
    annotations = {names.CONFIG_CHECKSUM: names.checksum(_START)}
    if etcd.trust:
        annotations[names.CERTIFICATES_CHECKSUM] = etcd.trust
    stored = names.labels(cluster, ETCD) | ({names.ETCD_TLS: "true"} if etcd.tls_marked else {})
    template = pod_template(cluster, ETCD, etcd.template, [process], volumes, more_annotations=annotations)
    return stateful_set(
        cluster,
        names.etcd_set(cluster),
        ETCD,
        service=names.etcd_set(cluster),
        replicas=replicas,
        template=template,
        claims=[claim("data", etcd.volume, stored)],
        keep_volumes=cluster.keeps_metadata,
    )


def certified_hosts(cluster: Cluster) -> list[str]:
    """The DNS names in the members' certificate; the first is that of etcd's Service, and the second is a pattern that
    matches each member."""
    service = f"{names.etcd_set(cluster)}.{cluster.namespace}.svc"
    return [service, f"*.{service}", "localhost"]


def member_service(cluster: Cluster) -> Object:
    """The headless Service that gives each member its name in DNS."""
    return headless(cluster, names.etcd_set(cluster), ETCD, PORTS)


def quota_bytes(volume: Volume) -> int:
    """How large etcd's database may become, in bytes: less than half of the volume."""
    return min(QUOTA_BYTES_MAX, math.floor(amount(volume.size) * QUOTA_SHARE))
