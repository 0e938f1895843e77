"""TLS of the brokers' listeners: settings, files in the pods, and the names in certificates. Pure.

All files come from one Secret, which each pod of brokers and controllers mounts as a whole. So Kubernetes replaces all
files at once when the Secret changes, and the processes read them again without a restart. A store in PEM format is one
file, with the key and the certificates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ottla.net.names import parse_bootstrap
from ottla.operator.plan import names
from ottla.operator.spec.cluster import Cluster, Listener
from ottla.operator.spec.security import AUTHORIZER, SUPER_USERS, Authentication, Links
from ottla.settings.consistency import STANDARD_AUTHORIZER
from ottla.settings.listeners import PAGES

ENCRYPTED_REPLICATION = "REPLICATION-TLS"
FOLDER = "/etc/ottla-tls"
ORGANIZATION = "ottla.dev"  # in the names of brokers and operator, so that no User has the same name
CLUSTER_CA_FILE, CLIENTS_CA_FILE = "cluster-ca.crt", "clients-ca.crt"
PAGES_CA_FILE = "pages-ca.crt"  # both together: the operator and Users read the HTTP pages
LINKS_FILE = f"{ENCRYPTED_REPLICATION.lower()}.pem"
MAPPING_RULES = "ssl.principal.mapping.rules"
_ID = "{id}"
_KEY_FILE = re.compile(rf"^listener\.name\.\S+\.ssl\.keystore\.location={FOLDER}/(\S+)$", re.MULTILINE)


def uses_tls(cluster: Cluster) -> bool:
    """Whether brokers have an encrypted listener, so that they need certificates."""
    return cluster.links.encrypted_open or any(listener.tls for listener in cluster.listeners)


def knows_certificates_of_clients(cluster: Cluster) -> bool:
    """Whether clients show certificates, so that brokers trust the clients' authority: at a listener that asks for
    them, or at the HTTP pages, which a client of a Cluster with `authorization` may read by no other means."""
    asked = any(listener.authentication is Authentication.TLS for listener in cluster.listeners)
    return asked or cluster.super_users is not None


def key_files(cluster: Cluster) -> list[str]:
    """The files without which brokers and controllers can't start: the key stores of the encrypted listeners."""
    between = [LINKS_FILE] if cluster.links.encrypted_open else []
    return between + [file_of(listener) for listener in cluster.listeners if listener.tls]


def named_key_files(properties: str) -> frozenset[str]:
    """The key files that a broker needs which starts with this text as its server.properties."""
    return frozenset(_KEY_FILE.findall(properties))


def settings(cluster: Cluster) -> dict[str, str]:
    """The brokers' settings of encryption, authentication and rights."""
    found: dict[str, str] = {}
    if cluster.links.encrypted_open:
        found |= _prefixed(
            ENCRYPTED_REPLICATION,
            {
                **_stores(LINKS_FILE, CLUSTER_CA_FILE),
                "ssl.client.auth": "required",
                "ssl.endpoint.identification.algorithm": "https",
                MAPPING_RULES: "DEFAULT",
            },
        )
        found |= _prefixed(PAGES, {**_stores(LINKS_FILE, PAGES_CA_FILE), **_readers(cluster)})
    for listener in cluster.listeners:
        found |= _prefixed(listener.kafka_name, _of_listener(listener))
    if cluster.super_users is not None and cluster.links is Links.ENCRYPTED:
        found[AUTHORIZER] = STANDARD_AUTHORIZER
        found[SUPER_USERS] = ";".join([brokers_principal(cluster), operators_principal(cluster), *cluster.super_users])
    return found


def pages_encrypted(cluster: Cluster) -> bool:
    """Whether pods that are made now serve their HTTP pages over TLS. Their protocol stands in the pod, not in the file
    of settings: a container that starts anew in an older pod reads the present file, and has the older probes. So the
    file of the stages before and after has the stores of these pages, too."""
    return cluster.links is Links.ENCRYPTED and not cluster.plain_pages


def _readers(cluster: Cluster) -> dict[str, str]:
    """Who may read the HTTP pages. Probes have no certificate. The operator's name stays as it is, whatever rules the
    Cluster has for the names of Users."""
    rules = cluster.static_config.get(MAPPING_RULES, "DEFAULT")
    own = f"RULE:^(CN={operators_name(cluster)},O={ORGANIZATION})$/$1/,"
    return {"ssl.client.auth": "requested", MAPPING_RULES: rules if rules == "DEFAULT" else own + rules}


def _of_listener(listener: Listener) -> dict[str, str]:
    found: dict[str, str] = {}
    if listener.tls:
        asks = listener.authentication is Authentication.TLS
        found |= _stores(file_of(listener), CLIENTS_CA_FILE if asks else None)
        found["ssl.client.auth"] = "required" if asks else "none"
    if listener.authentication is Authentication.SCRAM:
        found["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
    return found


def _stores(key_file: str, trust_file: str | None) -> dict[str, str]:
    found = {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{FOLDER}/{key_file}"}
    if trust_file is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{FOLDER}/{trust_file}"}
    # A listener's addresses outside change while brokers run, and a person may bring a certificate of another name.
    return found | {"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}


def _prefixed(listener: str, given: Mapping[str, str]) -> dict[str, str]:
    return {f"listener.name.{listener.lower()}.{name}": value for name, value in given.items()}


def file_of(listener: Listener) -> str:
    """The file with a listener's key and certificates."""
    return f"{listener.name}.pem"


def brokers_name(cluster: Cluster) -> str:
    """The common name in the certificate by which brokers and controllers connect to brokers."""
    return f"{cluster.name}-brokers"


def operators_name(cluster: Cluster) -> str:
    """The common name in the certificate by which the operator connects to brokers."""
    return f"{cluster.name}-operator"


def brokers_principal(cluster: Cluster) -> str:
    """The principal of brokers and controllers at the encrypted listener between brokers."""
    return f"User:CN={brokers_name(cluster)},O={ORGANIZATION}"


def operators_principal(cluster: Cluster) -> str:
    """The principal of the operator at the same listener."""
    return f"User:CN={operators_name(cluster)},O={ORGANIZATION}"


def server_name(namespace: str, name: str) -> str:
    """A DNS name in each broker's certificate. The operator expects it of a broker that it reaches by an IP address."""
    return f"{name}-brokers.{namespace}.svc"


def hosts_of_links(cluster: Cluster) -> list[str]:
    """The names in the certificate of the listener between brokers; the last one matches each pod."""
    bootstrap = f"{names.bootstrap_service(cluster)}.{cluster.namespace}.svc"
    return [server_name(*cluster.ref), bootstrap, f"*.{server_name(*cluster.ref)}"]


def hosts_of(cluster: Cluster, listener: Listener, brokers: Iterable[int], bootstraps: Iterable[str]) -> list[str]:
    """The DNS names and addresses in the certificate of a listener, for all ways in which clients reach it.

    `brokers`: the ids of all brokers; `bootstraps`: the addresses of brokers and for bootstrapping outside, as
    `host:port`, several separated by commas.
    """
    inside = [names.bootstrap_service(cluster), names.broker_service(cluster)]
    if listener.external:
        inside.append(names.bootstrap_service(cluster, listener))
    found = [
        host
        for service in inside
        for host in (service, f"{service}.{cluster.namespace}", *_full(f"{service}.{cluster.namespace}.svc"))
    ]
    found += [f"*.{host}" for host in _full(server_name(*cluster.ref))]
    if (template := listener.host_template) is not None:
        found += [template.replace(_ID, str(broker)) for broker in ("bootstrap", *sorted(brokers))]
    found += [address.host for text in bootstraps if text for address in parse_bootstrap(text)]
    return sorted(set(found))


def _full(host: str) -> tuple[str, str]:
    return host, f"{host}.cluster.local"
