"""Keeps the certificates of a Cluster's brokers, and the operator's own one.

All files that brokers need are in one Secret, which pods mount. Certificates are made before the pods that need them,
and again when a listener gets an address that its certificate lacks. A file stays in the Secret until every pod was
started with settings that don't name it, because a container may start anew at any time.

If the Secret is lost, and the authority's key too, keys come later than the trusted certificates: running brokers keep
their keys meanwhile, and a broker that starts waits for its files. Kubelets look for changes of a Secret once in a
minute or two, but at once if the pod changes. So whenever the Secret changes, the pods get an annotation.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.operator import certificates, succession
from ottla.operator.certificates import CLIENT, SERVER, Issued, Secret
from ottla.operator.etcd_secrets import SecretIncomplete
from ottla.operator.kube import Kube
from ottla.operator.objects import annotation, going
from ottla.operator.plan import broker_tls, names
from ottla.operator.plan.broker_file import server_properties
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.plan.broker_tls import CLIENTS_CA_FILE, CLUSTER_CA_FILE, LINKS_FILE, ORGANIZATION, PAGES_CA_FILE
from ottla.operator.refusals import Awaited, Refusals
from ottla.operator.spec.cluster import Cluster, Listener
from ottla.operator.visit import Visit


async def operators_kept(kube: Kube, visit: Visit, authority: Secret) -> None:
    """Keeps the Secret with the operator's certificate."""
    cluster = visit.cluster
    name = names.operator_certificate(cluster.name)
    found = await kube.get("Secret", cluster.namespace, name)
    present = certificates.decoded(found)
    pair = Issued(present.get("tls.crt", b""), present.get("tls.key", b""))
    if not certificates.usable(authority, pair, visit.now) and (succession.signs(authority) or not pair.key):
        pair = _issued(visit, authority, broker_tls.operators_name(cluster), (), CLIENT)
    data = {"ca.crt": succession.trusted(authority), "tls.crt": pair.certificate, "tls.key": pair.key}
    await visit.found.keep_secret(names.secret(cluster, name, "operator", certificates.encoded(data)), found)


async def brokers_kept(kube: Kube, visit: Visit, authority: Secret, clients: Secret) -> None:
    """Keeps the Secret with the brokers' files. `clients`: the authority of clients, empty where no listener asks for
    certificates. Raises the first refusal of a file that doesn't exist yet, SecretIncomplete if a listener's own Secret
    can't be used; the other files are kept all the same. If a refused file exists, the refusal is for the part
    ListenerCertificates, because pods can be made."""
    cluster = visit.cluster
    name = names.broker_certificates(cluster.name)
    found = await kube.get("Secret", cluster.namespace, name)
    present = certificates.decoded(found)
    # Brokers have to read what they are to trust before anything else can go on, so these files depend on nothing.
    data = {CLUSTER_CA_FILE: succession.trusted(authority)}
    if clients:
        data[CLIENTS_CA_FILE] = succession.trusted(clients)
    data[PAGES_CA_FILE] = certificates.joined(data.values())
    missing = Refusals()
    for file, listener in [(LINKS_FILE, None), *((broker_tls.file_of(each), each) for each in cluster.listeners)]:
        if listener is not None and not listener.tls:
            continue
        with (visit.listener_certificates if file in present else missing).gathered():
            data[file] = present.get(file, b"")
            data[file] = await _store(kube, visit, authority, listener, data[file])
    data = {file: content for file, content in data.items() if content}
    if not _all_started_anew(visit):
        data = {**present, **data}
    visit.lacks_keys = bool(set(broker_tls.key_files(cluster)) - data.keys())
    await visit.found.keep_secret(names.secret(cluster, name, BROKER, certificates.encoded(data)), found)
    visit.files = names.checksum("".join(f"{file}:{content.hex()}\n" for file, content in sorted(data.items())))
    missing.told()


async def lacks_keys(kube: Kube, cluster: Cluster) -> bool:
    """Whether the brokers' Secret lacks a file without which brokers can't start."""
    present = certificates.decoded(await kube.get("Secret", cluster.namespace, names.broker_certificates(cluster.name)))
    return bool(set(broker_tls.key_files(cluster)) - present.keys())


async def tell_kubelets(visit: Visit) -> None:
    """Annotates the pods that have to get changed files, so that their kubelets look at once. A pod without the
    annotation has been made since the last change, unless this reconcile has changed the Secret. Raises Retry with the
    first refusal."""
    changed = ("Secret", names.broker_certificates(visit.cluster.name)) in visit.found.applied
    refusals = Refusals()
    for pod in [pod for component in (BROKER, CONTROLLER) for pod in visit.found.all("Pod", component)]:
        told = annotation(pod, names.FILES_CHECKSUM)
        if not visit.files or told == visit.files or (not told and not changed) or going(pod):
            continue
        with refusals.gathered():
            await visit.found.marked("Pod", pod, names.FILES_CHECKSUM, visit.files)
    refusals.told()


async def _store(kube: Kube, visit: Visit, authority: Secret, listener: Listener | None, present: bytes) -> bytes:
    """The key store of a listener for clients, or of the one between brokers (None)."""
    cluster = visit.cluster
    if listener is not None and listener.certificate_secret is not None:
        return await _own(kube, cluster, listener, listener.certificate_secret)
    hosts = (
        broker_tls.hosts_of_links(cluster)
        if listener is None
        else broker_tls.hosts_of(cluster, listener, _brokers(visit), _addresses(visit, listener))
    )
    return _signed(visit, authority, present, broker_tls.brokers_name(cluster), hosts)


async def tell_refused(visit: Visit) -> None:
    """Raises the refusal of a listener whose present certificate is kept."""
    visit.listener_certificates.told()


def _brokers(visit: Visit) -> Iterable[int]:
    return visit.cluster.broker_ids | visit.leaving


def _addresses(visit: Visit, listener: Listener) -> list[str]:
    own = visit.findings.bootstrap.get(listener.name, "") if listener.external else ""
    return [own, *(each.get(listener.name, "") for each in visit.addresses.values())]


def _signed(visit: Visit, authority: Secret, present: bytes, name: str, hosts: Iterable[str]) -> bytes:
    """A key store with a certificate for these hosts. The present one is kept while it is usable, also if it is for
    further hosts: an address may be unknown for a moment."""
    if not succession.signs(authority) and present:
        return present
    pair = certificates.pair_in(present)
    has = certificates.hosts_of(pair.certificate)
    if set(hosts) <= set(has) and certificates.usable(authority, pair, visit.now, hosts=has):
        return present
    return _issued(visit, authority, name, hosts, CLIENT, SERVER).store


def _issued(
    visit: Visit, authority: Secret, name: str, hosts: Iterable[str], *purposes: certificates.Purpose
) -> Issued:
    if not succession.signs(authority):
        raise Awaited("brokers have to trust the new authority before it signs their certificates")
    return certificates.issued(
        authority,
        name,
        visit.now,
        hosts=list(hosts),
        purposes=purposes,
        days=visit.cluster.cluster_ca.validity_days,
        organization=ORGANIZATION,
    )


async def _own(kube: Kube, cluster: Cluster, listener: Listener, secret: str) -> bytes:
    """The key store with a listener's certificate from a person's Secret. Raises SecretIncomplete."""
    whose = f"listeners: {listener.name}: the Secret {secret}"
    found = await kube.get("Secret", cluster.namespace, secret)
    if found is None:
        raise SecretIncomplete(f"{whose} doesn't exist: create it with tls.crt and tls.key")
    data = certificates.decoded(found)
    if missing := [part for part in ("tls.crt", "tls.key") if part not in data]:
        raise SecretIncomplete(f"{whose} has no {missing[0]}: add it")
    pair = Issued(data["tls.crt"], data["tls.key"])
    if problem := certificates.problem_of_pair(pair):
        raise SecretIncomplete(f"{whose} can't be used: {problem}")
    return pair.key.rstrip() + b"\n" + pair.certificate


def _all_started_anew(visit: Visit) -> bool:
    """Whether every pod of brokers and controllers was made for the present file of settings."""
    wanted = names.checksum(server_properties(visit.cluster))
    pods = [pod for component in (BROKER, CONTROLLER) for pod in visit.found.all("Pod", component)]
    return all(annotation(pod, names.CONFIG_CHECKSUM) == wanted for pod in pods)
