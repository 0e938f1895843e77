"""A Cluster resource as the operator reads it: defaults are filled in, and rules beyond a schema's are checked. Pure.

A spec that can't be carried out raises SpecError with one sentence that says what to change. The schema and the CEL
rules of `crds/clusters.yaml` have refused other mistakes before, in the API server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.operator.objects import Object, Ref, annotation
from ottla.operator.spec.balance import Balance, parse_balance
from ottla.operator.spec.broker_config import Settings, parse_config, parse_overrides
from ottla.operator.spec.quantity import checked_resources
from ottla.operator.spec.rolling import Rolling, parse_rolling
from ottla.operator.spec.security import (
    Authentication,
    Authority,
    Links,
    parse_authentication,
    parse_authority,
    parse_super_users,
)
from ottla.operator.spec.spec_error import SpecError
from ottla.operator.spec.windows import Window, parse_window

REPLICATION_PORT = 9091
ENCRYPTED_REPLICATION_PORT, ENCRYPTED_REPLICATION_NAME = 9089, "replication-tls"
HTTP_PORT = 9100
CLIENT_PORT = 9092
PORT_MAX = 65535
DEFAULT_POOL = "broker"
GRACE_S = 120
RESTART = "ottla.dev/restart"  # on a pod: asks to restart it; on a Cluster: all brokers and controllers
PLAIN_PAGES = "ottla.dev/plain-pages"  # on a Cluster: true if pods serve their HTTP pages without TLS in any case


class Defaults(NamedTuple):
    """The images and the version that the operator was installed with."""

    image: str
    etcd_image: str
    version: str = ""  # the operator's version

    @property
    def release(self) -> str:
        """The default images and the operator's version as one text. Two releases of the operator that have the same
        text make the same pods by the same spec."""
        return " ".join(filter(None, self))


@dataclass(frozen=True)
class Volume:
    """One volume of a pod."""

    size: str
    class_name: str | None = None
    id: int = 0  # only of a broker's volume: a part of the names of its claim and log directory


@dataclass(frozen=True)
class Template:
    """The fields that a person adds to the pods of a component; their values have Kubernetes' own form."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    priority_class: str | None = None
    grace_s: int = GRACE_S
    tolerations: tuple[Object, ...] = ()
    affinity: Object | None = None
    spread: tuple[Object, ...] = ()
    env: tuple[Object, ...] = ()


@dataclass(frozen=True)
class Pool:
    """Brokers whose pods have one template; their ids are consecutive, from `first_id` on."""

    name: str
    first_id: int
    replicas: int
    volumes: tuple[Volume, ...]
    keep_volumes: bool = True
    rack: str | None = None
    rack_key: str | None = None  # a label of nodes, whose value is the rack; `rack` takes precedence
    resources: Object = field(default_factory=dict)
    template: Template = field(default_factory=Template)

    @property
    def ids(self) -> range:
        """The ids of the pool's brokers."""
        return range(self.first_id, self.first_id + self.replicas)


@dataclass(frozen=True)
class Controllers:
    """Controllers with pods of their own; with 0 replicas each broker's process is a candidate for controller."""

    replicas: int = 0
    resources: Object = field(default_factory=dict)
    template: Template = field(default_factory=Template)


@dataclass(frozen=True)
class Snapshots:
    """Snapshots of etcd on a volume."""

    schedule: str
    keep: int
    volume: Volume


@dataclass(frozen=True)
class Etcd:
    """An etcd that the operator runs."""

    members: int
    image: str
    volume: Volume
    resources: Object = field(default_factory=dict)
    template: Template = field(default_factory=Template)
    snapshots: Snapshots | None = None
    tls: bool = False
    tls_said: bool | None = None  # what the spec says about TLS; None: nothing, so a new etcd is as the brokers' links
    tls_marked: bool = False  # its volumes say that it was formed with TLS, because the spec doesn't
    lost_after_s: float | None = None  # how long a volume's node may be away before the volume counts as lost
    plain_peers: bool = False  # this etcd was formed by a release whose members talked among themselves without TLS
    trust: str = ""  # a digest of the certificate authorities that members read at their start


@dataclass(frozen=True)
class ExternalEtcd:
    """An etcd that exists already."""

    endpoints: tuple[str, ...]
    tls: bool = False
    tls_secret: str | None = None
    credentials_secret: str | None = None
    client_certificate: bool = False  # whether `tls_secret` has a client's certificate


@dataclass(frozen=True)
class Listener:
    """A listener: the addresses at which one kind of clients reaches the brokers."""

    name: str
    port: int
    type: str = "Internal"
    annotations: Mapping[str, str] = field(default_factory=dict)
    host_template: str | None = None
    traffic_policy: str | None = None
    load_balancer_class: str | None = None
    source_ranges: tuple[str, ...] = ()
    bootstrap_node_port: int | None = None
    first_node_port: int | None = None
    first_broker_port: int | None = None  # of a shared load balancer; None: each broker has its own
    peers: tuple[Object, ...] = ()  # the peers that NetworkPolicies let in; empty: the same as at all listeners
    tls: bool = False
    authentication: Authentication = Authentication.NONE
    certificate_secret: str | None = None  # the Secret of its certificate; None: the Cluster's authority signs one

    @property
    def shared(self) -> bool:
        """Whether all brokers are reached at one address, each at a port of its own."""
        return self.first_broker_port is not None

    def port_outside(self, broker: int) -> int:
        """The port at which a load balancer takes connections to a broker."""
        return self.port if self.first_broker_port is None else self.first_broker_port + broker

    @property
    def external(self) -> bool:
        """Whether clients come from outside the Kubernetes cluster."""
        return self.type != "Internal"

    @property
    def kafka_name(self) -> str:
        """The listener's name in the brokers' settings."""
        return self.name.upper()

    @property
    def protocol(self) -> str:
        """Kafka's name of the listener's protocol."""
        if self.authentication is Authentication.SCRAM:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"


@dataclass(frozen=True)
class NetworkRules:
    """The peers that NetworkPolicies let reach the pods: clients at listeners, monitoring at the pages of metrics."""

    clients: tuple[Object, ...] = ()
    monitoring: tuple[Object, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """A whole spec, with the resource's identity. `network_rules` is None where there are no NetworkPolicies."""

    namespace: str
    name: str
    uid: str
    generation: int
    paused: bool
    image: str
    pull_policy: str | None
    pull_secrets: tuple[str, ...]
    pools: tuple[Pool, ...]
    controllers: Controllers
    metadata: Etcd | ExternalEtcd
    prefix: str
    listeners: tuple[Listener, ...]
    static_config: Mapping[str, str]
    dynamic_config: Mapping[str, str]
    overrides: Mapping[int, Settings]  # the settings that single brokers have in addition, by broker id
    network_rules: NetworkRules | None
    windows: tuple[Window, ...]
    rolling: Rolling
    rebalance: str
    throttle_bytes_per_second: int | None
    balance: Balance
    lost_after_s: float | None  # how long a volume's node may be away before the volume counts as lost
    restart: str  # the value of the annotation RESTART: another value restarts every broker and controller
    plain_pages: bool  # the HTTP pages stay plain whatever the links are
    internal_tls: bool | None  # whether the links between brokers are to be encrypted; None: as they are, or new: yes
    cluster_ca: Authority
    clients_ca: Authority
    super_users: tuple[str, ...] | None  # None: without an authorizer, every client may do everything
    links: Links  # the present stage of the links; before it is known, the one that the spec asks for
    certificates: str = ""  # a digest of the certificates that brokers read at their start
    leaving: int = 0  # how many brokers exist that the spec doesn't want any more

    @property
    def ref(self) -> Ref:
        """The resource's namespace and name."""
        return Ref(self.namespace, self.name)

    @property
    def broker_ids(self) -> frozenset[int]:
        """The ids of all brokers that the spec wants."""
        return frozenset(broker for pool in self.pools for broker in pool.ids)

    @property
    def keeps_metadata(self) -> bool:
        """Whether etcd's volumes and snapshots outlive the Cluster, as they must if any pool's volumes outlive it."""
        return any(pool.keep_volumes for pool in self.pools)

    @property
    def internal(self) -> Listener:
        """The listener that clients inside Kubernetes use unless they choose another one."""
        return next(listener for listener in self.listeners if not listener.external)


def parse_cluster(resource: Object, defaults: Defaults) -> Cluster:
    """Reads the spec of a Cluster resource. Raises SpecError."""
    meta, spec = resource["metadata"], resource.get("spec") or {}
    namespace, name = meta["namespace"], meta["name"]
    listeners = _listeners(spec.get("listeners"))
    settings = parse_config(spec.get("config") or {})
    metadata, brokers = spec.get("metadata") or {}, spec.get("brokers") or {}
    pools = _pools(brokers)
    _check_ports_outside(listeners, pools)
    _check_node_ports(listeners, pools)
    if _internal_tls(spec):
        _check_encrypted_replication(listeners)
    scaling = spec.get("scaling") or {}
    return Cluster(
        namespace=namespace,
        name=name,
        uid=meta.get("uid", ""),
        generation=meta.get("generation", 0),
        paused=bool(spec.get("paused")),
        image=_image(spec.get("image") or defaults.image, "image", "brokers"),
        pull_policy=spec.get("imagePullPolicy"),
        pull_secrets=tuple(secret["name"] for secret in spec.get("imagePullSecrets") or ()),
        pools=pools,
        controllers=_controllers(spec.get("controllers") or {}),
        metadata=_metadata(metadata, defaults),
        prefix=metadata.get("prefix") or f"/ottla/{namespace}/{name}/",
        listeners=listeners,
        static_config=settings.static,
        dynamic_config=settings.dynamic,
        overrides=parse_overrides(spec.get("configOverrides") or (), settings),
        network_rules=_network_rules(spec.get("networkPolicy") or {}),
        windows=tuple(_window(window) for window in spec.get("maintenanceWindows") or ()),
        rolling=parse_rolling(spec.get("rolling") or {}, racks=any(pool.rack or pool.rack_key for pool in pools)),
        rebalance=scaling.get("rebalance") or "New",
        throttle_bytes_per_second=scaling.get("throttleBytesPerSecond"),
        balance=parse_balance(spec.get("balance") or {}),
        lost_after_s=_seconds(brokers.get("lostVolumesAfterMinutes")),
        restart=annotation(resource, RESTART),
        plain_pages=annotation(resource, PLAIN_PAGES) == "true",
        internal_tls=_internal_tls(spec),
        cluster_ca=parse_authority(spec.get("clusterCa") or {}, "clusterCa"),
        clients_ca=parse_authority(spec.get("clientsCa") or {}, "clientsCa"),
        super_users=parse_super_users(spec, settings.static),
        links=Links.ENCRYPTED if _internal_tls(spec) else Links.PLAIN,
    )


def _internal_tls(spec: Object) -> bool | None:
    """Whether the links between brokers are to be encrypted. Rights need that, because brokers have no names without
    certificates."""
    return True if spec.get("authorization") else spec.get("internalTls")


def _seconds(minutes: int | None) -> float | None:
    return None if minutes is None else minutes * 60.0


def _image(image: str, name: str, whose: str) -> str:
    if not image:
        raise SpecError(f"{name}: say which image the {whose} have, because the operator was installed without one")
    return image


def _pools(brokers: Object) -> tuple[Pool, ...]:
    common = brokers.get("storage")
    resources = checked_resources(brokers.get("resources") or {}, "brokers")
    template, rack = brokers.get("template"), brokers.get("rack")

    def pool(name: str, first_id: int, own: Object) -> Pool:
        storage = own.get("storage") or common
        own_resources = checked_resources(own.get("resources") or {}, f"brokers.pools[{name}]")
        if not storage:
            raise SpecError(f"brokers: the pool {name} has no storage")
        return Pool(
            name=name,
            first_id=first_id,
            replicas=own["replicas"],
            volumes=_volumes(storage),
            keep_volumes=storage.get("onDelete", "Retain") == "Retain",
            rack=own.get("rack") or (None if own.get("rackKey") else rack),
            rack_key=own.get("rackKey") or brokers.get("rackKey"),
            resources=own_resources or resources,
            template=_template(own.get("template") or template or {}),
        )

    if "replicas" in brokers:
        return (pool(DEFAULT_POOL, 0, {"replicas": brokers["replicas"]}),)
    pools = tuple(pool(each["name"], each["firstId"], each) for each in brokers.get("pools") or ())
    if not pools:
        raise SpecError("brokers: say how many, as replicas or in pools")
    if not any(each.replicas for each in pools):
        raise SpecError("brokers: at least one pool needs replicas, because a cluster without brokers can't serve")
    for one, other in itertools.pairwise(sorted(pools, key=lambda each: each.first_id)):
        if other.first_id < one.first_id + max(one.replicas, 1):
            raise SpecError(f"brokers: the pools {one.name} and {other.name} have the id {other.first_id} in common")
    return pools


def _volumes(storage: Object) -> tuple[Volume, ...]:
    several = storage.get("volumes") or [storage]
    if len({"id" in each for each in several}) > 1:
        raise SpecError("storage.volumes: either each volume has an id, or none has one")
    volumes = [Volume(str(each["size"]), each.get("className"), each.get("id", at)) for at, each in enumerate(several)]
    if len({volume.id for volume in volumes}) < len(volumes):
        raise SpecError("storage.volumes: each volume needs an id of its own")
    return tuple(sorted(volumes, key=lambda volume: volume.id))


def _volume(storage: Object) -> Volume:
    return Volume(str(storage.get("size") or "2Gi"), storage.get("className"))


def _template(given: Object) -> Template:
    return Template(
        labels=given.get("labels") or {},
        annotations=given.get("annotations") or {},
        node_selector=given.get("nodeSelector") or {},
        priority_class=given.get("priorityClassName"),
        grace_s=given.get("terminationGracePeriodSeconds") or GRACE_S,
        tolerations=tuple(given.get("tolerations") or ()),
        affinity=given.get("affinity"),
        spread=tuple(given.get("topologySpreadConstraints") or ()),
        env=tuple(given.get("env") or ()),
    )


def _controllers(given: Object) -> Controllers:
    resources = checked_resources(given.get("resources") or {}, "controllers")
    return Controllers(given.get("replicas") or 0, resources, _template(given.get("template") or {}))


def _metadata(given: Object, defaults: Defaults) -> Etcd | ExternalEtcd:
    if external := given.get("external"):
        return ExternalEtcd(
            tuple(external["endpoints"]),
            bool(external.get("tls") or external.get("tlsSecret")),
            external.get("tlsSecret"),
            external.get("credentialsSecret"),
        )
    etcd = given.get("etcd") or {}
    return Etcd(
        members=etcd.get("members") or 3,
        image=_image(etcd.get("image") or defaults.etcd_image, "metadata.etcd.image", "members of etcd"),
        volume=_volume(etcd.get("storage") or {}),
        resources=checked_resources(etcd.get("resources") or {}, "metadata.etcd"),
        template=_template(etcd.get("template") or {}),
        tls=bool(etcd.get("tls")),
        tls_said=etcd.get("tls"),
        lost_after_s=_seconds(etcd.get("lostVolumesAfterMinutes")),
        snapshots=_snapshots(etcd["snapshots"]) if etcd.get("snapshots") else None,
    )


def _snapshots(given: Object) -> Snapshots:
    try:
        parse_window(given["schedule"], 1)
    except ValueError as error:
        raise SpecError(f"metadata.etcd.snapshots.schedule: {error}") from None
    if any("7" in part.partition("/")[0] for part in given["schedule"].split()[4].split(",")):
        raise SpecError("metadata.etcd.snapshots.schedule: CronJobs have no day of week 7: Sunday is 0")
    return Snapshots(given["schedule"], given.get("keep") or 24, _volume(given.get("storage") or {}))


def _listeners(given: list[Object] | None) -> tuple[Listener, ...]:
    if not given:
        return (Listener("plain", CLIENT_PORT),)
    listeners = tuple(
        Listener(
            name=each["name"],
            port=each["port"],
            type=each["type"],
            annotations=each.get("annotations") or {},
            host_template=each.get("hostTemplate"),
            traffic_policy=each.get("externalTrafficPolicy"),
            load_balancer_class=each.get("loadBalancerClass"),
            source_ranges=tuple(each.get("loadBalancerSourceRanges") or ()),
            bootstrap_node_port=(each.get("nodePorts") or {}).get("bootstrap"),
            first_node_port=(each.get("nodePorts") or {}).get("first"),
            first_broker_port=(each.get("brokerPorts") or {}).get("first"),
            peers=tuple(each.get("networkPolicyPeers") or ()),
            tls=bool(each.get("tls")),
            authentication=parse_authentication(each),
            certificate_secret=(each.get("certificate") or {}).get("secretName"),
        )
        for each in given
    )
    if all(listener.external for listener in listeners):
        raise SpecError("listeners: one has to be Internal, for clients inside Kubernetes")
    return listeners


def _check_encrypted_replication(listeners: Iterable[Listener]) -> None:
    """Raises SpecError if a listener is in the way of the encrypted one between brokers. A Cluster that is older than
    that one may have such a listener, because Kubernetes doesn't check fields that stay as they are."""
    for listener in listeners:
        if listener.port == ENCRYPTED_REPLICATION_PORT or listener.name == ENCRYPTED_REPLICATION_NAME:
            raise SpecError(
                f"listeners: {listener.name}: brokers use the name {ENCRYPTED_REPLICATION_NAME} and the port "
                f"{ENCRYPTED_REPLICATION_PORT} among themselves, because their links are to be encrypted (internalTls, "
                "authorization); choose another name and port"
            )


def _check_ports_outside(listeners: Iterable[Listener], pools: Iterable[Pool]) -> None:
    last = max((broker for pool in pools for broker in pool.ids), default=0)
    for listener in listeners:
        if listener.port_outside(last) > PORT_MAX:
            raise SpecError(
                f"listeners: {listener.name}: broker {last} would have port {listener.port_outside(last)} of the load "
                f"balancer, and {PORT_MAX} is the highest port; lower brokerPorts.first"
            )


def _check_node_ports(listeners: Iterable[Listener], pools: Iterable[Pool]) -> None:
    """Raises SpecError if the spec gives one node port to two Services, because a node port leads to one Service
    only."""
    users: dict[int, str] = {}
    brokers = [broker for pool in pools for broker in pool.ids]
    for listener in listeners:
        ports = [(listener.bootstrap_node_port, "bootstrap")]
        if (first := listener.first_node_port) is not None:
            ports += [(first + broker, f"broker {broker}") for broker in brokers]
        for port, what in ports:
            if port is None:
                continue
            user = f"{what} of the listener {listener.name}"
            if port > PORT_MAX:
                raise SpecError(
                    f"listeners: {user} would have the node port {port}, and {PORT_MAX} is the highest port"
                )
            if port in users:
                raise SpecError(f"listeners: {users[port]} and {user} would both have the node port {port}")
            users[port] = user


def _network_rules(given: Object) -> NetworkRules | None:
    if not given.get("enabled"):
        return None
    return NetworkRules(tuple(given.get("clients") or ()), tuple(given.get("monitoring") or ()))


def _window(given: Object) -> Window:
    try:
        return parse_window(given["cron"], given["durationMinutes"])
    except ValueError as error:
        raise SpecError(f"maintenanceWindows: {error}") from None
