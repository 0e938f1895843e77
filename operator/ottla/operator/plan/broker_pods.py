"""The brokers: a StatefulSet for each pool, with the mounts and the environment of its pods. Pure.

A pod's ordinal is its broker's id. A pool's ordinals begin at its first id, and Kubernetes puts a pod's ordinal into
one of the pod's labels, which becomes `node.id`. Only the operator replaces pods (`OnDelete`); `roll.py` decides when.
"""

from __future__ import annotations

from ottla.operator.objects import Object
from ottla.operator.plan import broker_tls, names
from ottla.operator.plan.broker_file import SECRETS, between_brokers, own_properties, server_properties
from ottla.operator.plan.pods import TMP_MOUNT, claim, container, http_probe, pod_template, stateful_set
from ottla.operator.spec.cluster import HTTP_PORT, Cluster, ExternalEtcd, Pool, Template
from ottla.operator.spec.security import Links

BROKER = "broker"
CONTROLLER = "controller"
CONFIG_FOLDER = "/etc/ottla"
RACK = "ottla.dev/rack"  # an annotation of a pod whose rack follows from its node
RACK_VARIABLE = "OTTLA_BROKER_RACK"  # a variable of containers whose rack the Cluster's spec says
RACK_FOLDER = "/etc/ottla-rack"
OF_ALL = "server.properties"
# A shell that waits is the container's first process, which a signal ends only if there is a trap for it. (A process
# that follows by `exec` has no trap.)
_MAY_END = "trap 'exit 143' TERM; "
_WAIT = '[ -s "$file" ] || echo "waiting for the file $file"; until [ -s "$file" ]; do sleep 0.2; done; '
_RACK_KNOWN = f'file={RACK_FOLDER}/rack; {_WAIT}export {RACK_VARIABLE}="$(cat {RACK_FOLDER}/rack)"; '
# All pods of a pool have one template, which has no settings of single brokers: a change of them would restart the
# other brokers, too. Instead, each pod reads a file of its own, if there is one.
_START = (
    f'own={CONFIG_FOLDER}/broker-$OTTLA_NODE_ID.properties; [ -e "$own" ] || own=; '
    f"cat {CONFIG_FOLDER}/{OF_ALL} $own > /tmp/{OF_ALL} && exec ottla broker --config /tmp/{OF_ALL}"
)
DEFAULT_RESOURCES: Object = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
# If the Secret with the keys was lost, a container may start before there are keys again.
_KEYS_THERE = "for file in {files}; do " + _WAIT + "done; "
FIRST_S, REGISTERED_S = 4, 6  # seconds until the process answers, and until it serves, after a start without recovery
START_S_MAX = 600  # seconds until the process answers at all; it also answers while it recovers its logs


def config_map(cluster: Cluster) -> Object:
    """The ConfigMap with the file of all brokers, and the files of single brokers."""
    own = {of_one(broker): text for broker, text in own_properties(cluster).items()}
    return names.config_map(cluster, names.broker_config(cluster), BROKER, {OF_ALL: server_properties(cluster), **own})


def of_one(broker: int) -> str:
    """The name of a broker's own file."""
    return f"broker-{broker}.properties"


def broker_set(cluster: Cluster, pool: Pool, replicas: int) -> Object:
    """A pool's StatefulSet. `replicas` is greater than the pool's while brokers are drained before they go."""
    labelled = {names.POOL: pool.name}
    environment = [
        *_environment(cluster, pool.template),
        {"name": "OTTLA_ADVERTISED_LISTENERS", "value": _advertised(cluster)},
        {"name": "OTTLA_LOG_DIRS", "value": ",".join(names.log_directory(volume.id) for volume in pool.volumes)},
    ]
    mounts: list[Object] = [{"name": name, "mountPath": path} for name, path in _mounts(pool).items()]
    volumes = _volumes(cluster)
    if pool.rack:
        environment.append({"name": RACK_VARIABLE, "value": pool.rack})
    elif pool.rack_key:
        mounts.append({"name": "rack", "mountPath": RACK_FOLDER, "readOnly": True})
        items = [{"path": "rack", "fieldRef": {"fieldPath": f"metadata.annotations['{RACK}']"}}]
        volumes.append({"name": "rack", "downwardAPI": {"items": items}})
    ports = [{"name": name.lower(), "containerPort": port} for name, port in between_brokers(cluster).items()]
    ports += [{"name": listener.name, "containerPort": listener.port} for listener in cluster.listeners]
    waiting = _keys_there(cluster) + (_RACK_KNOWN if pool.rack_key and not pool.rack else "")
    start = (_MAY_END if waiting else "") + waiting + _START
    process = _process(cluster, BROKER, ["/bin/sh", "-c", start], environment, mounts, ports, pool.resources)
    template = pod_template(
        cluster,
        BROKER,
        pool.template,
        [process],
        volumes,
        more_labels=labelled,
        more_annotations=_annotations(cluster),
    )
    stored = {**names.labels(cluster, BROKER), **labelled}
    return stateful_set(
        cluster,
        names.broker_set(cluster, pool),
        BROKER,
        service=names.broker_service(cluster),
        replicas=replicas,
        first=pool.first_id,
        template=template,
        claims=[claim(name, volume, stored) for name, volume in zip(_mounts(pool), pool.volumes, strict=True)],
        keep_volumes=pool.keep_volumes,
        more_labels=labelled,
    )


def controller_set(cluster: Cluster) -> Object:
    """The StatefulSet of controllers that have pods of their own."""
    wanted = cluster.controllers
    environment = [
        *_environment(cluster, wanted.template),
        {"name": "OTTLA_PROCESS_ROLES", "value": "controller"},
        {"name": "OTTLA_LOG_DIRS", "value": "/tmp/log"},
        {"name": "OTTLA_ADVERTISED_LISTENERS", "value": _advertised(cluster)},
    ]
    command = ["ottla", "broker", "--config", f"{CONFIG_FOLDER}/{OF_ALL}"]
    if waiting := _keys_there(cluster):
        command = ["/bin/sh", "-c", f"{_MAY_END}{waiting}exec {' '.join(command)}"]
    process = _process(cluster, CONTROLLER, command, environment, [], [], wanted.resources)
    template = pod_template(
        cluster, CONTROLLER, wanted.template, [process], _volumes(cluster), more_annotations=_annotations(cluster)
    )
    return stateful_set(
        cluster,
        names.controller_set(cluster),
        CONTROLLER,
        service=names.broker_service(cluster),
        replicas=wanted.replicas,
        template=template,
        claims=[],
    )


def _keys_there(cluster: Cluster) -> str:
    """The part of a start script that waits for all key stores; empty where there are none."""
    files = [f"{broker_tls.FOLDER}/{file}" for file in broker_tls.key_files(cluster)]
    return _KEYS_THERE.format(files=" ".join(files)) if files else ""


def _process(
    cluster: Cluster,
    name: str,
    command: list[str],
    environment: list[Object],
    mounts: list[Object],
    ports: list[Object],
    resources: Object,
) -> Object:
    mounts = [{"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}, TMP_MOUNT, *mounts]
    mounts += [
        {"name": f"etcd-{kind}", "mountPath": f"{SECRETS}/{kind}", "readOnly": True} for kind in etcd_secrets(cluster)
    ]
    if broker_tls.uses_tls(cluster):
        mounts.append({"name": "tls", "mountPath": broker_tls.FOLDER, "readOnly": True})
    encrypted = broker_tls.pages_encrypted(cluster)
    return container(
        cluster,
        name,
        cluster.image,
        command=command,
        env=environment,
        ports=[*ports, {"name": "http", "containerPort": HTTP_PORT}],
        volumeMounts=mounts,
        resources=resources or DEFAULT_RESOURCES,
        startupProbe=http_probe("/healthz", "http", 3, START_S_MAX // 3, first_s=FIRST_S, encrypted=encrypted),
        # This probe checks only the event loop's heartbeat. A restart doesn't help a broker that can't reach etcd or
        # isn't in sync.
        livenessProbe=http_probe("/healthz", "http", 10, 6, encrypted=encrypted),
        readinessProbe=http_probe("/readyz", "http", 3, 2, first_s=REGISTERED_S, encrypted=encrypted),
    )


def _environment(cluster: Cluster, template: Template) -> list[Object]:
    environment: list[Object] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {
            "name": "OTTLA_NODE_ID",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.POD_INDEX}']"}},
        },
        {"name": "HOME", "value": "/tmp"},
    ]
    if isinstance(cluster.metadata, ExternalEtcd) and (secret := cluster.metadata.credentials_secret):
        user = {"secretKeyRef": {"name": secret, "key": "username"}}
        environment.append({"name": "OTTLA_METADATA_ETCD_USER", "valueFrom": user})
    if broker_tls.pages_encrypted(cluster):
        environment.append({"name": "OTTLA_HTTP_SECURITY_PROTOCOL", "value": "SSL"})
    return [*environment, *template.env]


def _advertised(cluster: Cluster) -> str:
    """The advertised addresses of the listeners inside Kubernetes. Brokers are told the addresses of external listeners
    while they run (`external.py`)."""
    host = names.pod_host(cluster, "$(POD_NAME)", names.broker_service(cluster))
    told = [f"{name}://{host}:{port}" for name, port in between_brokers(cluster).items()]
    told += [f"{each.kafka_name}://{host}:{each.port}" for each in cluster.listeners if not each.external]
    return ",".join(told)


def _mounts(pool: Pool) -> dict[str, str]:
    """The mount paths of a broker's volumes, by the volumes' names."""
    return {names.volume(volume.id): f"{names.DATA}/{volume.id}" for volume in pool.volumes}


def _volumes(cluster: Cluster) -> list[Object]:
    volumes: list[Object] = [{"name": "config", "configMap": {"name": names.broker_config(cluster)}}]
    volumes += [{"name": f"etcd-{kind}", "secret": secret} for kind, secret in etcd_secrets(cluster).items()]
    if broker_tls.uses_tls(cluster):
        volumes.append({"name": "tls", "secret": {"secretName": names.broker_certificates(cluster.name)}})
    return volumes


def etcd_secrets(cluster: Cluster) -> dict[str, Object]:
    """The Secrets that clients of etcd mount to authenticate there, by kind (tls, credentials)."""
    metadata = cluster.metadata
    if isinstance(metadata, ExternalEtcd):
        named = {"tls": metadata.tls_secret, "credentials": metadata.credentials_secret}
        return {kind: {"secretName": secret} for kind, secret in named.items() if secret}
    if not metadata.tls:
        return {}
    items = [{"key": key, "path": key} for key in ("ca.crt", "client.crt", "client.key")]
    return {"tls": {"secretName": names.etcd_certificates(cluster), "items": items}}


def _annotations(cluster: Cluster) -> dict[str, str]:
    annotations = {names.CONFIG_CHECKSUM: names.checksum(server_properties(cluster))}
    if cluster.certificates:
        annotations[names.CERTIFICATES_CHECKSUM] = cluster.certificates
    if cluster.links is not Links.PLAIN:
        annotations[names.LINKS] = cluster.links.name
    if broker_tls.pages_encrypted(cluster):
        annotations[names.PAGES] = "https"
    return annotations | ({names.RESTARTED_FOR: cluster.restart} if cluster.restart else {})
