"""What is wrong with an installation of the operator, judged by its objects in Kubernetes. Pure.

An operator looks idle if it lacks rights, if the definitions of its kinds are missing or of another version, or if
versions don't fit together. The operator can't mend any of these faults itself. Each finding says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ottla.operator.objects import Object, Ref, condition, ref_of, seconds_since
from ottla.operator.plan.observed import image_version
from ottla.operator.rights import Asked, Right, asked, each
from ottla.wording import first_named

KUBERNETES_MIN = (1, 30)
UPGRADE = "helm upgrade ottla-operator charts/ottla-operator --namespace ottla-system"
FIELDS_TOLD = 3
UNLOOKED_S_MAX = 120.0
LEASE_S_MAX = 60.0
NEEDLESS = tuple(asked(verb, "Secret") for verb in ("list", "watch", "delete"))


class Finding(NamedTuple):
    """Something that is wrong. `broken`: whether the operator or a Cluster doesn't work for this reason."""

    about: str
    broken: bool
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Installation:
    """One installed operator, by its Deployment."""

    ref: Ref
    release: str  # the name of Helm's release
    account: str
    version: str
    brings: str  # the version of the brokers that it makes; empty if not known
    namespaces: frozenset[str]  # the namespaces that it watches; empty if it watches all
    selector: str
    lease: str
    ready: bool
    trouble: str  # Kubernetes' message about the Deployment's condition Available

    @property
    def user(self) -> str:
        """The user name of the operator's service account."""
        return f"system:serviceaccount:{self.ref.namespace}:{self.account}"

    def watches(self, namespace: str) -> bool:
        """Whether the operator watches a namespace."""
        return not self.namespaces or namespace in self.namespaces


def installation(deployment: Object) -> Installation:
    """The installation that a Deployment of the operator's chart describes."""
    template = deployment["spec"]["template"]["spec"]
    container = template["containers"][0]
    given = {each["name"]: str(each.get("value") or "") for each in container.get("env") or ()}
    status = deployment.get("status") or {}
    labels = deployment["metadata"].get("labels") or {}
    annotations = deployment["metadata"].get("annotations") or {}
    return Installation(
        ref=ref_of(deployment),
        release=annotations.get("meta.helm.sh/release-name", deployment["metadata"]["name"]),
        account=template.get("serviceAccountName") or "default",
        version=labels.get("app.kubernetes.io/version", ""),
        brings=image_version(image) if (image := given.get("OTTLA_OPERATOR_IMAGE", "")) else "",
        namespaces=frozenset(name for name in given.get("OTTLA_OPERATOR_NAMESPACES", "").split(",") if name),
        selector=given.get("OTTLA_OPERATOR_SELECTOR", ""),
        lease=given.get("OTTLA_OPERATOR_LEASE", ""),
        ready=bool(status.get("readyReplicas")),
        trouble=str(condition(status, "Available").get("message", "")),
    )


# ---- Kubernetes and the definitions


def of_kubernetes(version: str) -> Iterator[Finding]:
    """A finding if Kubernetes is too old; `version` as `v1.33.5-gke.1`."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < KUBERNETES_MIN:
        least = ".".join(map(str, KUBERNETES_MIN))
        yield Finding(
            "Kubernetes",
            True,
            f"this Kubernetes is {version}, and the operator needs {least} or newer",
            "upgrade Kubernetes",
        )


def of_definition(name: str, found: Object | None, wanted: Object) -> Iterator[Finding]:
    """Findings if a kind isn't defined as this version of Ottla defines it."""
    about = f"definition {name}"
    if found is None:
        yield Finding(
            about, True, "there is no such definition, so the operator has nothing to watch", f"{UPGRADE} defines it"
        )
        return
    if "deletionTimestamp" in found["metadata"]:
        yield Finding(
            about, True, "the definition is being deleted, and all resources of the kind with it", "see who deletes it"
        )
        return
    if condition(found.get("status"), "Established").get("status") != "True":
        said = condition(found.get("status"), "NamesAccepted").get("message", "")
        yield Finding(about, True, f"Kubernetes doesn't serve the kind: {said}", "see `kubectl describe crd`")
    (mine,) = wanted["spec"]["versions"]
    theirs = next((each for each in found["spec"]["versions"] if each["name"] == mine["name"]), None)
    if theirs is None or not theirs["served"]:
        yield Finding(about, True, f"the definition has no version {mine['name']}", UPGRADE)
        return
    have, want = (set(_fields(each["schema"]["openAPIV3Schema"], "")) for each in (theirs, mine))
    if missing := sorted(want - have):
        lacks = first_named(missing, FIELDS_TOLD)
        message = (
            f"the definition is older than this version of Ottla: it lacks {lacks}, and Kubernetes drops these fields "
            "from specs"
        )
        yield Finding(about, True, message, f"{UPGRADE} brings its own definitions, unless crds.create is false")
    elif unknown := sorted(have - want):
        message = f"the definition is newer than this version of Ottla: only it has {first_named(unknown, FIELDS_TOLD)}"
        yield Finding(about, False, message, "run the command with an `ottla` of the operator's version")
    elif theirs["schema"] != mine["schema"]:
        yield Finding(about, False, "the definition's rules aren't those of this version of Ottla", UPGRADE)


def _fields(schema: Object, above: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        path = f"{above}{name}"
        yield path
        yield from _fields(field, f"{path}.")
        yield from _fields(field.get("items") or {}, f"{path}[].")


# ---- the operators


def of_operators(found: Sequence[Installation], own_version: str) -> Iterator[Finding]:
    """Findings if no operator is installed, if one doesn't run, or if two reconcile the same Clusters."""
    if not found:
        yield Finding(
            "operator", True, "no operator is installed", "helm install ottla-operator charts/ottla-operator …"
        )
    for one in found:
        about = f"operator {one.ref}"
        if not one.ready:
            remedy = (
                f"kubectl --namespace {one.ref.namespace} logs deployment/{one.ref.name}; its page /readyz says why"
            )
            trouble = f": {one.trouble}" if one.trouble else ""
            yield Finding(about, True, f"no pod of the operator is ready{trouble}", remedy)
        if one.version and one.version != own_version:
            message = f"the operator is of version {one.version}, and this command of {own_version}"
            yield Finding(
                about,
                False,
                message,
                "run the command again with an `ottla` of the operator's version: rights and fields differ",
            )
    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            shared = one.namespaces & other.namespaces if one.namespaces and other.namespaces else True
            if shared and one.selector == other.selector:
                message = (
                    f"the operator reconciles the same Clusters as {other.ref}, and each undoes the other's changes"
                )
                yield Finding(
                    f"operator {one.ref}", True, message, "give each operator other watchNamespaces or another selector"
                )


def of_lease(one: Installation, lease: Object | None, now: datetime) -> Iterator[Finding]:
    """A finding if no process has the operator's Lease, or if it wasn't renewed for too long."""
    if not one.lease or not one.ready:
        return
    spec = (lease or {}).get("spec") or {}
    renewed = spec.get("renewTime")
    if lease is None or not spec.get("holderIdentity") or not renewed:
        yield Finding(
            f"operator {one.ref}",
            True,
            f"no process has the operator's Lease {one.lease}",
            "the operator's log says why",
        )
        return
    age_s = (now - datetime.fromisoformat(renewed)).total_seconds()
    if age_s > LEASE_S_MAX:
        message = f"the operator's Lease {one.lease} was renewed last {age_s:.0f} s ago, by {spec['holderIdentity']}"
        yield Finding(f"operator {one.ref}", True, message, "the operator's log says why")


def of_rights(
    one: Installation, rights: Iterable[Right], namespace: str, denied: frozenset[Asked], *, needed: bool = True
) -> Iterator[Finding]:
    """Findings for rights that the operator lacks. If a right isn't `needed`, the finding says what the right is
    for."""
    where = f"in the namespace {namespace}" if namespace else "in all namespaces"
    for right in rights:
        lacking = [single for single in each([right]) if single in denied]
        if lacking:
            told = f"{one.user} may not {_together(lacking)} {where}"
            lost = "" if needed else f"; the only purpose of this right: {right.why}"
            remedy = (
                f"helm upgrade {one.release} charts/ottla-operator --namespace {one.ref.namespace} --reuse-values "
                "--set rbac.create=true, or bind a role with these rights to the account"
            )
            yield Finding(f"operator {one.ref}", needed, told + lost, remedy)


def of_needless_rights(one: Installation, namespace: str, denied: frozenset[Asked]) -> Iterator[Finding]:
    """A finding if the operator may do more with Secrets than its work needs."""
    if more := [single for single in NEEDLESS if single not in denied]:
        told = f"{one.user} may {_together(more)} in {namespace or 'all namespaces'}, and needs none of these rights"
        yield Finding(f"operator {one.ref}", False, told, "see which other role is bound to the account")


def _together(rights: Iterable[Asked]) -> str:
    """Rights in few words: the resources that have the same verbs are named together."""
    verbs: dict[str, list[str]] = {}
    for single in rights:
        verbs.setdefault(str(single).removeprefix(f"{single.verb} "), []).append(single.verb)
    resources: dict[str, list[str]] = {}
    for resource, allowed in verbs.items():
        resources.setdefault(", ".join(allowed), []).append(resource)
    return "; ".join(f"{allowed} {', '.join(named)}" for allowed, named in resources.items())


# ---- the Clusters


def of_clusters(clusters: Iterable[Object], operators: Sequence[Installation], now: datetime) -> Iterator[Finding]:
    """Findings for Clusters that no operator reconciles, or that run another version than their operator brings."""
    for cluster in clusters:
        ref = ref_of(cluster)
        about = f"Cluster {ref}"
        mine = [one for one in operators if one.watches(ref.namespace)]
        if operators and not mine:
            message = f"no operator watches the namespace {ref.namespace}"
            yield Finding(
                about, True, message, f"add the namespace to watchNamespaces of the operator {operators[0].ref}"
            )
            continue
        status = cluster.get("status") or {}
        seen = status.get("observedGeneration", 0)
        if mine and seen < cluster["metadata"]["generation"] and _changed_s_ago(cluster, now) > UNLOOKED_S_MAX:
            wanted = " or ".join(one.selector for one in mine if one.selector)
            hint = f", and reconciles only Clusters with the labels {wanted}" if wanted else ""
            yield Finding(
                about, True, f"the operator hasn't looked at the Cluster's newest spec{hint}", "see the operator's log"
            )
        running, brought = str(status.get("version") or ""), {one.brings for one in mine if one.brings}
        if running and brought and running not in brought and not cluster["spec"].get("image"):
            message = f"the brokers run {running}, and the Cluster's operator brings {', '.join(sorted(brought))}"
            yield Finding(
                about, False, message, f"the brokers follow by a roll: {status.get('message') or 'see its status'}"
            )


def _changed_s_ago(cluster: Object, now: datetime) -> float:
    """How many seconds ago the Cluster was last changed, by its managedFields. Changes of the Cluster's status don't
    count."""
    meta = cluster["metadata"]
    written = [
        entry["time"]
        for entry in meta.get("managedFields") or ()
        if entry.get("subresource") != "status" and "time" in entry
    ]
    return seconds_since(max(written, default=meta["creationTimestamp"]), now)
