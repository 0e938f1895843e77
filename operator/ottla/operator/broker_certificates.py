"""Keeps the certificates of a Cluster's brokers, and the operator's own one.

All files that brokers need are in one Secret, which pods mount. Certificates are made before the pods that need them,
and again when a listener gets an address that its certificate lacks. A file stays in the Secret until every pod was
started with settings that don't name it, because a container may start anew at any time.

If the Secret is lost, and the authority's key too, keys come later than the trusted certificates: running brokers keep
their keys meanwhile, and a broker that starts waits for its files. Kubelets look for changes of a Secret once in a
minute or two, but at once if the pod changes. So whenever the Secret changes, the pods get an annotation. The Secret
itself says in annotations when its data have changed last, and since when it has its trusted certificates, because a
process of the operator may end at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ottla.operator import certificates, succession
from ottla.operator.certificates import CLIENT, SERVER, Issued, Secret
from ottla.operator.etcd_secrets import SecretIncomplete
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, annotation, going, seconds_since, timestamp
from ottla.operator.plan import broker_tls, names
from ottla.operator.plan.broker_file import server_properties
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER, OF_ALL
from ottla.operator.plan.broker_tls import CLIENTS_CA_FILE, CLUSTER_CA_FILE, LINKS_FILE, ORGANIZATION, PAGES_CA_FILE
from ottla.operator.refusals import Awaited, Refusals
from ottla.operator.spec.cluster import Cluster, Listener
from ottla.operator.visit import Visit

_NOTHING: Object = {"metadata": {}}


async def operators_kept(kube: Kube, visit: Visit, authority: Secret, *, cut_off: bool) -> None:
    """Keeps the Secret with the operator's certificate. `cut_off`: brokers may run that don't trust this authority's
    certificates, so the present certificate, which all brokers accept, is kept until its end: by it the operator reads
    the brokers' reports, without which it restarts no pod."""
    cluster = visit.cluster
    name = names.operator_certificate(cluster.name)
    found = await kube.get("Secret", cluster.namespace, name)
    present = certificates.decoded(found)
    pair = Issued(present.get("tls.crt", b""), present.get("tls.key", b""))
    kept = bool(pair.key) and (not succession.signs(authority) or (cut_off and _lasts(pair, visit)))
    if not kept and not certificates.usable(authority, pair, visit.now):
        pair = _issued(visit, authority, broker_tls.operators_name(cluster), (), CLIENT)
    data = {"ca.crt": succession.trusted(authority), "tls.crt": pair.certificate, "tls.key": pair.key}
    await visit.found.keep_secret(names.secret(cluster, name, "operator", certificates.encoded(data)), found)


def _lasts(pair: Issued, visit: Visit) -> bool:
    return not certificates.problem_of_pair(pair) and visit.now < certificates.expires_at(pair.certificate)


async def brokers_kept(
    kube: Kube, visit: Visit, found: Object | None, authority: Secret, clients: Secret, *, cut_off: bool
) -> None:
    """Keeps the Secret with the brokers' files. `found`: the present Secret; `clients`: the authority of clients, empty
    where no client shows a certificate; `cut_off`: brokers may run that don't trust this authority's certificates.
    Raises the first refusal of a file that doesn't exist yet, SecretIncomplete if a listener's own Secret can't be
    used; the other files are kept all the same. If a refused file exists, the refusal is for the part
    ListenerCertificates, because pods can be made."""
    cluster = visit.cluster
    name = names.broker_certificates(cluster.name)
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
    now, before = timestamp(visit.now), (found or _NOTHING)
    files = names.checksum("".join(f"{file}:{content.hex()}\n" for file, content in sorted(data.items())))
    same_files = annotation(before, names.FILES_CHECKSUM) == files
    same_trust = present.get(CLUSTER_CA_FILE) == data[CLUSTER_CA_FILE]
    noted = {
        names.FILES_CHECKSUM: files,
        names.FILES_CHANGED: (annotation(before, names.FILES_CHANGED) if same_files else "") or now,
        names.TRUSTED_SINCE: (annotation(before, names.TRUSTED_SINCE) if same_trust else "") or now,
        names.CUT_OFF: "true" if cut_off else "",
    }
    wanted = names.secret(cluster, name, BROKER, certificates.encoded(data))
    wanted["metadata"]["annotations"] = noted
    await visit.found.keep_secret(wanted, found)
    visit.awaited_keys = awaited_keys(visit, data)
    visit.files, visit.files_changed = files, noted[names.FILES_CHANGED]
    missing.told()


def awaited_keys(visit: Visit, present: Secret) -> str:
    """What a broker that started now would have to wait for, because its Secret has only these data; empty if it would
    find all key files that its settings name. Raises KubeError."""
    cluster = visit.cluster
    file = visit.found.get("ConfigMap", names.broker_config(cluster))
    text = (file or {}).get("data", {}).get(OF_ALL)
    named = broker_tls.key_files(cluster) if text is None else broker_tls.named_key_files(text)
    missing = set(named) - present.keys()
    brought = {broker_tls.file_of(each): each for each in cluster.listeners if each.certificate_secret is not None}
    if missing - brought.keys():
        return "the brokers' certificates, which are lost and made anew"
    for name in sorted(missing):
        listener = brought[name]
        return f"the Secret {listener.certificate_secret} with the certificate of the listener {listener.name}"
    return ""


def lacks_links_key(cluster: Cluster, found: Object | None) -> bool:
    """Whether the brokers' Secret lacks the key of the links between brokers, which are encrypted."""
    return cluster.links.encrypted_open and LINKS_FILE not in certificates.decoded(found)


def trusted_for(visit: Visit, found: Object | None, certificate: bytes) -> timedelta:
    """For how long the brokers' Secret has had the certificates that brokers trust now; zero if this one isn't among
    them."""
    since = annotation(found or _NOTHING, names.TRUSTED_SINCE)
    trusted = certificates.each_in([certificates.decoded(found).get(CLUSTER_CA_FILE, b"")])
    if not since or not set(certificates.each_in([certificate])) <= set(trusted):
        return timedelta()
    return timedelta(seconds=seconds_since(since, visit.now))


async def tell_kubelets(visit: Visit) -> None:
    """Annotates the pods that were made before the last change of their files, so that their kubelets look at once.
    Raises Retry with the first refusal."""
    refusals = Refusals()
    for pod in [pod for component in (BROKER, CONTROLLER) for pod in visit.found.all("Pod", component)]:
        told, made = annotation(pod, names.FILES_CHECKSUM), pod["metadata"].get("creationTimestamp", "")
        if not visit.files or told == visit.files or going(pod) or (not told and made > visit.files_changed):
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
