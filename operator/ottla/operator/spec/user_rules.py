"""A Cluster's rules for its Users: which namespaces may have Users in it, and at which listener they log in. Pure.

The rules are read without the rest of the spec: a Cluster whose spec can't be carried out still has its users.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ottla.operator.objects import Ref, condition, ref_of
from ottla.operator.plan import names
from ottla.operator.plan.broker_tls import ORGANIZATION
from ottla.operator.spec.cluster import CLIENT_PORT
from ottla.operator.spec.namespaces import AllowedNamespaces, parse_allowed_namespaces
from ottla.operator.spec.user import Login, UserResource
from ottla.security.principal_mapping import InvalidRules, MappingRules, NoRuleMatches

MAPPING = "ssl.principal.mapping.rules"
_DEFAULT_MAPPING = MappingRules("DEFAULT")
_OF_THE_OPERATOR = f",O={ORGANIZATION}"  # the end of the names in certificates of brokers and operator


@dataclass(frozen=True, slots=True)
class ClientListener:
    """A listener as clients see it. `bootstrap` is empty as long as the listener has no address."""

    name: str
    authentication: str  # tls, scram-sha-512, or empty
    tls: bool
    bootstrap: str
    external: bool = False
    certificate: str = ""  # the Secret with the listener's own certificate; empty: it has none
    mapping: MappingRules = _DEFAULT_MAPPING

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        if self.authentication == Login.SCRAM.value:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class UserRules:
    """A Cluster's rules for its Users."""

    cluster: Ref
    uid: str  # the Cluster's uid
    namespaces: AllowedNamespaces
    paused: bool = False
    listeners: tuple[ClientListener, ...] = ()
    super_users: frozenset[str] = frozenset()  # principals
    authorizer_wanted: bool = False
    in_force: bool = False  # the brokers run with this spec, so they map certificates to names by these rules
    about: Mapping[str, Any] = field(default_factory=dict)  # the Cluster resource itself, for Events

    @property
    def clients_authority(self) -> str:
        """The name of the Secret with the certificate authority that signs users' certificates."""
        return names.clients_ca(self.cluster.name)

    @property
    def trust(self) -> str:
        """The name of the Secret with the certificates that clients have to trust."""
        return names.trust_of(names.cluster_ca(self.cluster.name))

    def trust_of(self, listener: ClientListener) -> str:
        """The name of the Secret whose `ca.crt` clients of an encrypted listener have to trust."""
        return listener.certificate or self.trust

    def listener_for(self, login: Login) -> ClientListener | None:
        """The listener at which users log in so: an internal one if possible; None if there is none."""
        wanted = Login.TLS if login.by_certificate else login
        fit = [listener for listener in self.listeners if listener.authentication == wanted.value]
        return min(fit, key=lambda listener: (listener.external, not listener.bootstrap), default=None)

    def is_reserved(self, resource: UserResource) -> bool:
        """Whether a User of another namespace than the Cluster's would be a user who may do everything, at any of the
        listeners: who may make Users there would become an administrator of the Cluster."""
        return resource.ref.namespace != self.cluster.namespace and any(map(self._is_powerful, self.names_of(resource)))

    def name_of(self, resource: UserResource) -> str | None:
        """The user's name in Kafka: for a certificate what the listener's mapping rules make of its name. None if no
        rule applies to that name, so that brokers refuse such certificates."""
        if not resource.login.by_certificate:
            return resource.name
        listener = self.listener_for(resource.login)
        return _mapped(resource, _DEFAULT_MAPPING if listener is None else listener.mapping)

    def names_of(self, resource: UserResource) -> frozenset[str]:
        """The names that the user has at any listener. A certificate is accepted at each listener that asks for one,
        and these may have different mapping rules."""
        if not resource.login.by_certificate:
            return frozenset({resource.name})
        mappings = [listener.mapping for listener in self.listeners if listener.protocol == "SSL"]
        names = {_mapped(resource, mapping) for mapping in mappings or [_DEFAULT_MAPPING]}
        return frozenset(name for name in names if name is not None)

    def claims_of(self, resource: UserResource, selected: Collection[str]) -> frozenset[str]:
        """The names that a User keeps from being removed: none if the Cluster takes no Users from its namespace, all
        that it might mean if its spec can't be followed. `selected`: the namespaces that have the Cluster's labels."""
        if not self.namespaces.has(resource.ref.namespace, selected):
            return frozenset()
        meant = set() if self.is_reserved(resource) else {self.name_of(resource)}
        if resource.refusal:
            meant |= {resource.name, resource.certified_name, self.name_of(replace(resource, login=Login.TLS))}
        own = resource.ref.namespace == self.cluster.namespace
        return frozenset(name for name in meant if name is not None and (own or not self._is_powerful(name)))

    def _is_powerful(self, name: str) -> bool:
        return principal_of(name) in self.super_users or name.endswith(_OF_THE_OPERATOR)


def parse_user_rules(resource: Mapping[str, Any]) -> UserRules:
    """Reads the rules from a Cluster resource as the API server gives it."""
    spec, cluster = resource.get("spec") or {}, ref_of(resource)
    told = (resource.get("status") or {}).get("listeners") or ()
    addresses = {str(each.get("name")): str(each.get("bootstrap", "")) for each in told}
    config = spec.get("config") or {}
    return UserRules(
        cluster=cluster,
        uid=resource["metadata"]["uid"],
        namespaces=parse_allowed_namespaces(spec.get("users") or {}, cluster.namespace),
        paused=bool(spec.get("paused", False)),
        listeners=tuple(_listener(cluster, each, addresses, config) for each in spec.get("listeners") or ()),
        super_users=_super_users(spec),
        authorizer_wanted=bool(spec.get("authorization") or config.get("authorizer.class.name")),
        in_force=_is_in_force(resource),
        about=resource,
    )


def principal_of(name: str) -> str:
    """The principal of a user, as ACLs name it."""
    return f"User:{name}"


def _is_in_force(resource: Mapping[str, Any]) -> bool:
    """Whether the Cluster's status says that all brokers were started with the present spec. A spec that can't be
    followed is observed, but the brokers run with an earlier one."""
    status = resource.get("status") or {}
    observed = status.get("observedGeneration") == resource["metadata"].get("generation")
    invalid = "InvalidSpec" in {condition(status, kind).get("reason") for kind in ("Ready", "Progressing")}
    return observed and not invalid and condition(status, "Rolling").get("status") == "False"


def _mapped(resource: UserResource, mapping: MappingRules) -> str | None:
    try:
        return mapping.user_name(resource.certified_name)
    except NoRuleMatches:
        return None


def _super_users(spec: Mapping[str, Any]) -> frozenset[str]:
    named = (spec.get("authorization") or {}).get("superUsers") or ()
    configured = str((spec.get("config") or {}).get("super.users", "")).split(";")
    return frozenset(
        name if name.startswith("User:") else principal_of(name)
        for each in (*named, *configured)
        if (name := each.strip())
    )


def _listener(
    cluster: Ref, listener: Mapping[str, Any], addresses: Mapping[str, str], config: Mapping[str, Any]
) -> ClientListener:
    name, external = str(listener.get("name")), listener.get("type", "Internal") != "Internal"
    inside = f"{cluster.name}-bootstrap.{cluster.namespace}.svc:{listener.get('port', CLIENT_PORT)}"
    text = config.get(f"listener.name.{name.lower()}.{MAPPING}", config.get(MAPPING, "DEFAULT"))
    try:
        mapping = MappingRules(str(text))
    except InvalidRules:  # the Cluster's status says so
        mapping = _DEFAULT_MAPPING
    return ClientListener(
        name=name,
        authentication=str((listener.get("authentication") or {}).get("type", "")),
        tls=bool(listener.get("tls")),
        bootstrap=addresses.get(name, "") if external else inside,
        external=external,
        certificate=str((listener.get("certificate") or {}).get("secretName", "")),
        mapping=mapping,
    )
