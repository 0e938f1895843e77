"""The Secret of a User: whose it is, what stands in it, and which password it keeps. Pure.

The Secret has the User's name, and Kubernetes deletes it with the User. The password that stands in it is the user's
password: an operator that finds one keeps it, and a password of its own making counts only after it stands in the
Secret. So two operators that work at the same time for a moment end with one password.

Brokers don't tell a password. So once they have taken it, the Secret is marked with a digest of the password. The
digest is keyed by the password itself and is readable only where the password is. It covers what the password is for:
if any of that changes, the mark doesn't fit, and the password is sent again.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from ottla.operator.objects import API_VERSION, OPERATOR, Object, Ref, annotation, is_owned_by_one_named
from ottla.operator.plan import names
from ottla.operator.spec.user import UserResource

PASSWORD = "password"
USERNAME = "username"
JAAS = "sasl.jaas.config"
BOOTSTRAP = "bootstrap.servers"
RENEWED_FOR = "ottla.dev/renewed-for"  # the User's annotation RENEW when its password or certificate was made
IN_FORCE = "ottla.dev/password-in-force"
COMPONENT = "user"


def is_somebody_elses(found: Mapping[str, Any], resource: UserResource) -> bool:
    """Whether a Secret of the User's name belongs to something else. A Secret that has lost its owner, because the
    owner's objects were orphaned, is recognised by its labels."""
    if is_owned_by_one_named(found, "User", resource.ref.name):
        return False
    meta = found["metadata"]
    left = not meta.get("ownerReferences")
    return not (left and _labels(resource.cluster).items() <= (meta.get("labels") or {}).items())


def wants_renewal(found: Mapping[str, Any] | None, resource: UserResource) -> bool:
    """Whether a person asks for a new password or certificate."""
    return found is not None and bool(resource.renew) and resource.renew != annotation(found, RENEWED_FOR)


def password_to_keep(found: Mapping[str, bytes], *, given: str | None, renew: bool, random: str) -> str:
    """The user's password: the one of the Secret that the User names, else the present one, else a random one."""
    if given is not None:
        return given
    present = found.get(PASSWORD, b"").decode(errors="replace")
    return random if renew or password_problem(present) else present


def password_problem(password: str) -> str:
    """Why clients can't log in with a password, in a clause; empty if they can."""
    if not password:
        return "is empty"
    if password != password.strip():
        return "begins or ends with a blank or a line feed"
    return "" if password.isprintable() else "has control characters"


def in_force_mark(password: str, name: str, cluster_uid: str, renew: str) -> str:
    """The mark of a password that the brokers of a cluster have taken."""
    return hmac.digest(password.encode(), "\n".join((name, cluster_uid, renew)).encode(), "sha256").hex()[:32]


def user_secret(resource: UserResource, data: Mapping[str, str], in_force: str) -> Object:
    """The whole Secret. `data`: in base64; `in_force`: the mark of its password; empty where brokers don't have the
    password yet."""
    annotations = {RENEWED_FOR: resource.renew, IN_FORCE: in_force}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": resource.ref.name,
            "namespace": resource.ref.namespace,
            "labels": _labels(resource.cluster),
            "annotations": {name: value for name, value in annotations.items() if value},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "User",
                    "name": resource.ref.name,
                    "uid": resource.uid,
                    "controller": True,
                }
            ],
        },
        "type": "Opaque",
        "data": dict(data),
    }


def secret_patch(found: Mapping[str, Any], wanted: Object) -> Object | None:
    """The merge patch that makes a Secret what it is wanted to be; None where it is. Labels and annotations of others
    stay. The patch holds only for the Secret as it was found."""
    meta, wants = found["metadata"], wanted["metadata"]
    labels = _missing(meta.get("labels"), wants["labels"])
    annotations = _missing(meta.get("annotations"), wants["annotations"])
    annotations |= {
        name: None for name in (RENEWED_FOR, IN_FORCE) if annotation(found, name) and name not in wants["annotations"]
    }
    present = found.get("data") or {}
    data = _missing(present, wanted["data"]) | dict.fromkeys(present.keys() - wanted["data"].keys())
    patch: Object = {}
    if labels or annotations or meta.get("ownerReferences") != wants["ownerReferences"]:
        patch["metadata"] = {"labels": labels, "annotations": annotations, "ownerReferences": wants["ownerReferences"]}
    if data:
        patch["data"] = data
    if not patch:
        return None
    patch.setdefault("metadata", {}).update({name: meta[name] for name in ("uid", "resourceVersion")})
    return patch


def _missing(present: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> Object:
    return {name: value for name, value in wanted.items() if (present or {}).get(name) != value}


def _labels(cluster: Ref) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ottla",
        names.INSTANCE: cluster.name,
        names.COMPONENT: COMPONENT,
        names.MANAGED_BY: OPERATOR,
    }
