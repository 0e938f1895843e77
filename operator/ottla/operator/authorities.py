"""Keeps a Cluster's two certificate authorities: one signs the brokers' certificates, the other one those of clients.

Each authority has two Secrets: `<cluster>-cluster-ca` with its key, and `<cluster>-cluster-ca-cert` with the trusted
certificates, which clients may read; and the same with `clients` in place of `cluster`. The steps of a renewal are
those of `succession.py`. No pod is restarted for them, because brokers read their files again. So the operator asks
the brokers themselves whether they have read them (`trust_probe.py`).

- An authority's successor signs once every broker accepts its certificates. That of the cluster's authority also waits
  until half of the renewal time has passed, so that clients can read `ca.crt` again.
- The annotation FORCE_RENEW on the Secret with the key asks for a successor now. FORCE_REPLACE asks for one that signs
  as soon as brokers accept its certificates, and has the predecessor forgotten: by brokers, once all of them show new
  certificates; the clients' one after a day, in which clients get new certificates.
- Otherwise a predecessor is trusted until its time is over.
- If the Secret with the key is lost or damaged, a new authority is made, which signs once brokers accept its
  certificates. Until then the present certificates stay in use.
- An authority from elsewhere may be replaced in place, as cert-manager does it. It signs once brokers accept its
  certificates, which the annotation SIGNS of the Secret with the trusted certificates notes. Its predecessor is trusted
  until the predecessor's end, or until it is forgotten by FORCE_REPLACE. The operator doesn't change its data.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ottla.operator import certificates, succession
from ottla.operator.certificates import Issued, Secret
from ottla.operator.etcd_secrets import SecretIncomplete
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, annotation
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.spec.security import Authority
from ottla.operator.visit import Visit

FORCE_RENEW, FORCE_REPLACE = "ottla.dev/force-renew", "ottla.dev/force-replace"
SIGNS = "ottla.dev/signs"  # a digest of the certificate of an authority from elsewhere that brokers have accepted
READ_WITHIN = timedelta(minutes=5)  # kubelets replace the files of a Secret within two minutes
BEGUN = "begun"  # the value that the operator gives to FORCE_REPLACE once there is a successor
_OWN = ("tls.crt", "tls.key")
_NOTHING: Object = {"metadata": {}}


@dataclass(frozen=True)
class Duties:
    """What an authority's steps depend on, besides its own Secret."""

    name: str  # of the Secret with its key
    purpose: str  # what the authority is for, in Events
    trust_in: tuple[tuple[str, str], ...]  # the Secrets, and their files, with the certificates that are trusted so far
    rules: Authority
    grace: timedelta  # how long others have to read a successor's certificate before it signs
    read: Callable[[Secret], Awaitable[bool]]  # whether all brokers accept what the successor in these data signs
    replaced: Callable[[Secret], Awaitable[bool]]  # whether the authority in these data has replaced its predecessor


async def kept(kube: Kube, visit: Visit, duties: Duties) -> Secret:
    """Takes the next step for an authority, and keeps the Secret with its trusted certificates. Returns the authority's
    data. Raises SecretIncomplete, NameTaken, KubeError."""
    found = await kube.get("Secret", visit.cluster.namespace, duties.name)
    present = certificates.decoded(found)
    if not duties.rules.generated:
        return await _own_kept(kube, visit, duties, found)
    renews, replaces = (annotation(found or _NOTHING, name) for name in (FORCE_RENEW, FORCE_REPLACE))
    if succession.is_damaged(present):
        trust = certificates.joined([await _trusted_so_far(kube, visit, duties), succession.trusted(present)])
        if trust:
            present = succession.lost(trust, duties.name, visit.now, duties.rules.validity_days)
            await visit.tell("AuthorityLost", f"the authority for {duties.purpose} is lost, and a new one is made")
    in_haste = bool(replaces) or not succession.signs(present)
    known = "next.crt" in present and await _may_sign(visit, duties, present, in_haste=in_haste)
    authority = succession.tended(
        present,
        duties.name,
        visit.now,
        known=known,
        days=duties.rules.validity_days,
        ahead_days=duties.rules.renewal_days,
        asked=bool(renews) or replaces not in ("", BEGUN),
    )
    wanted = names.secret(visit.cluster, duties.name, BROKER, certificates.encoded(authority))
    await visit.found.keep_secret(wanted, found)
    if present and authority != present:
        signs = "is trusted from now on, and signs later" if "next.crt" in authority else "signs from now on"
        await visit.tell("AuthorityRenewed", f"a new authority for {duties.purpose} {signs}")
    # The operator may have ended between the change of the data and that of the annotation. What was asked for is done
    # then, and isn't done a second time.
    if "next.crt" in present.keys() | authority.keys() and (renews or replaces not in ("", BEGUN)):
        noted = {FORCE_RENEW: None, FORCE_REPLACE: BEGUN if replaces else None}
        await _patched(kube, visit, duties.name, {"metadata": {"annotations": noted}})
    if authority == present and await _is_over(visit, duties, authority, replaced=replaces == BEGUN):
        authority = succession.without_predecessor(authority)
        forgotten: Object = {"data": {"before.crt": None}, "metadata": {"annotations": {FORCE_REPLACE: None}}}
        await _patched(kube, visit, duties.name, forgotten)
        await visit.tell("AuthorityForgotten", f"the former authority for {duties.purpose} isn't trusted any more")
    if replaces == BEGUN and not {"before.crt", "next.crt"} & authority.keys():
        await _patched(kube, visit, duties.name, {"metadata": {"annotations": {FORCE_REPLACE: None}}})
    _hurry(visit, authority, in_haste=in_haste)
    await _tell_trust(kube, visit, duties.name, authority)
    return authority


async def _own_kept(kube: Kube, visit: Visit, duties: Duties, found: Object | None) -> Secret:
    """The same for an authority from elsewhere."""
    own = certificates.decoded(found)
    _check(own, duties.name, visit.now)
    trust = await kube.get("Secret", visit.cluster.namespace, names.trust_of(duties.name))
    noted, mark = annotation(trust or _NOTHING, SIGNS), mark_of(own)
    authority = succession.following(own, await _trusted_so_far(kube, visit, duties), visit.now)
    if not succession.signs(authority) and (noted == mark or await duties.read(authority)):
        authority = succession.tended(authority, duties.name, visit.now, known=True)
    await _tell_ignored(kube, visit, duties, found or _NOTHING, authority)
    if annotation(found or _NOTHING, FORCE_REPLACE) and await _is_over(visit, duties, authority, replaced=True):
        authority = succession.without_predecessor(authority)
        await _patched(kube, visit, duties.name, {"metadata": {"annotations": {FORCE_REPLACE: None}}})
        await visit.tell("AuthorityForgotten", f"the former authority for {duties.purpose} isn't trusted any more")
    signs = succession.signs(authority)
    await _tell_trust(kube, visit, duties.name, authority, mark if signs else noted)
    if signs and mark != noted != "":
        await visit.tell("AuthorityRenewed", f"a new authority for {duties.purpose} signs from now on")
    return authority


async def _tell_ignored(kube: Kube, visit: Visit, duties: Duties, found: Object, authority: Secret) -> None:
    """Tells a person that an annotation of an authority from elsewhere has no effect, and takes it away."""
    replaceable = not succession.signs(authority) or "before.crt" in authority
    ignored = [name for name in (FORCE_RENEW, FORCE_REPLACE) if annotation(found, name)]
    for name in ignored:
        if name == FORCE_RENEW or not replaceable:
            await _patched(kube, visit, duties.name, {"metadata": {"annotations": {name: None}}})
            await visit.tell(
                "RenewalIgnored",
                f"{name} of the Secret {duties.name} has no effect, because the authority isn't made by the operator "
                "(generateCertificateAuthority: false): put another one into tls.crt and tls.key",
            )


def mark_of(own: Secret) -> str:
    """The value of the annotation SIGNS once brokers accept what this authority signs."""
    return names.checksum(own["tls.crt"].decode(errors="replace"))


async def _trusted_so_far(kube: Kube, visit: Visit, duties: Duties) -> bytes:
    """The certificates (PEM) that clients trust by the Cluster's own Secret, or else the ones that brokers or the
    operator trust; empty where there are none."""
    for name, part in ((names.trust_of(duties.name), "ca.crt"), *duties.trust_in):
        found = await kube.get("Secret", visit.cluster.namespace, name)
        trust = certificates.decoded(found).get(part, b"")
        if found is not None and visit.found.may_own(found) and trust:
            return trust
    return b""


async def _may_sign(visit: Visit, duties: Duties, present: Secret, *, in_haste: bool) -> bool:
    if visit.now >= certificates.expires_at(present["next.crt"]):
        return False
    waited = in_haste or visit.now >= certificates.made_at(present["next.crt"]) + duties.grace
    return waited and await duties.read(present)


def _hurry(visit: Visit, authority: Secret, *, in_haste: bool) -> None:
    """Has the Cluster reconciled again soon while brokers are about to read the successor of an authority."""
    made = certificates.made_at(authority["next.crt"]) if "next.crt" in authority else None
    visit.busy |= in_haste and made is not None and visit.now < made + READ_WITHIN


async def _is_over(visit: Visit, duties: Duties, authority: Secret, *, replaced: bool) -> bool:
    """Whether the predecessor of an authority is to be forgotten."""
    if "before.crt" not in authority or "next.crt" in authority:
        return False
    if visit.now >= certificates.expires_at(authority["before.crt"]):
        return True
    return replaced and await duties.replaced(authority)


async def _patched(kube: Kube, visit: Visit, name: str, patch: Object) -> None:
    await kube.merge("Secret", visit.cluster.namespace, name, patch)


async def _tell_trust(kube: Kube, visit: Visit, name: str, authority: Secret, mark: str = "") -> None:
    """Keeps the Secret with the trusted certificates, which lacks every key. `mark`: the value of its annotation SIGNS;
    empty for none."""
    name = names.trust_of(name)
    found = await kube.get("Secret", visit.cluster.namespace, name)
    data = certificates.decoded(found)
    trusted = succession.trusted(authority)
    if data.get("ca.crt") != trusted or not {"ca.p12", "ca.password"} <= data.keys():
        password = data.get("ca.password", b"").decode() or secrets.token_hex(16)
        store = certificates.trust_store(trusted, password)
        data = {"ca.crt": trusted, "ca.p12": store, "ca.password": password.encode()}
    await visit.found.keep_secret(names.secret(visit.cluster, name, BROKER, certificates.encoded(data)), found)
    if annotation(found or _NOTHING, SIGNS) != mark:
        await _patched(kube, visit, name, {"metadata": {"annotations": {SIGNS: mark or None}}})


def _check(authority: Secret, name: str, now: datetime) -> None:
    """Raises SecretIncomplete unless these data from elsewhere are those of an authority that can sign."""
    missing = [part for part in _OWN if part not in authority]
    if len(missing) == len(_OWN):
        raise SecretIncomplete(
            f"the Secret {name} has no authority: create it with tls.crt and tls.key, or let "
            "generateCertificateAuthority be true"
        )
    if missing:
        raise SecretIncomplete(f"the Secret {name} has no {missing[0]}: add it")
    if problem := certificates.problem_of_authority(Issued(authority["tls.crt"], authority["tls.key"]), now):
        raise SecretIncomplete(f"the Secret {name} can't be used: {problem}")
