"""The authority that signs users' certificates, as the reconciler of Users reads it from a Cluster's Secrets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from ottla.operator import certificates
from ottla.operator.authorities import SIGNS, mark_of
from ottla.operator.objects import Object
from ottla.operator.spec.user_rules import parse_user_rules
from ottla.operator.user_access import UserAccess

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
CLUSTER = {
    "metadata": {"name": "k", "namespace": "shop", "uid": "u"},
    "spec": {"listeners": [{"name": "mtls", "port": 9094, "type": "Internal", "tls": True}]},
}


class Secrets:
    """Kubernetes with the two Secrets of the clients' authority."""

    def __init__(self, own: certificates.Secret, annotations: dict[str, str]) -> None:
        self._found: dict[str, Object] = {
            "k-clients-ca": {"metadata": {}, "data": certificates.encoded(own)},
            "k-clients-ca-cert": {"metadata": {"annotations": annotations}, "data": {}},
        }

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """A Secret."""
        assert (kind, namespace) == ("Secret", "shop")
        return self._found.get(name)

    async def create(self, wanted: Object) -> Object:
        """Nothing is made."""
        raise AssertionError(wanted)

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """Nothing is changed."""
        raise AssertionError(patch)


@pytest.mark.parametrize(("accepted", "may_sign"), [("present", True), ("former", False), ("", True)])
def test_an_authority_from_elsewhere_signs_once_brokers_accept_it(accepted: str, may_sign: bool) -> None:
    each = {name: certificates.authority("elsewhere", NOW) for name in ("present", "former")}
    annotations = {SIGNS: mark_of(each[accepted])} if accepted else {}
    access = UserAccess(Secrets(each["present"], annotations), lambda: 0.0)
    found = asyncio.run(access.authorities(parse_user_rules(CLUSTER)))
    assert found.clients == (each["present"] if may_sign else {})
