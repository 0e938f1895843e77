"""Users on a real API server: it prunes nothing of what the operator writes, and the operator writes nothing a second
time. A stand-in answers for the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator import certificates, kafka, kafka_users
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, Ref, condition
from ottla.operator.user import UserReconciler
from ottla.operator.user_resources import UserResources
from ottla.protocol.errors import ErrorCode
from tests.operator.conftest import Scene

pytestmark = pytest.mark.timeout(600)

KEY = Ref("shop", "k")
SWEEPS_MAX = 10


class Brokers:
    """A stand-in of `KafkaAdmin`, with the ACLs, quotas and passwords that it was sent."""

    def __init__(self) -> None:
        self.acls: list[Mapping[str, Any]] = []
        self.quotas: dict[str, dict[str, float]] = {}
        self.passwords: set[str] = set()

    def close(self) -> None:
        """Does nothing: there is no connection to close."""

    async def send(self, api: tuple[int, int], message: Mapping[str, Any]) -> Any:
        """Answers a request, as `KafkaAdmin.send`."""
        return {
            kafka_users.DESCRIBE_ACLS: self._acls,
            kafka_users.CREATE_ACLS: self._create,
            kafka_users.DELETE_ACLS: self._delete,
            kafka_users.DESCRIBE_QUOTAS: self._quotas,
            kafka_users.ALTER_QUOTAS: self._limit,
            kafka_users.DESCRIBE_PASSWORDS: self._users,
            kafka_users.ALTER_PASSWORDS: self._alter,
        }[api](message)

    def _acls(self, _: Mapping[str, Any]) -> Any:
        resources = [
            SimpleNamespace(
                resource_type=each["resource_type"],
                pattern_type=each["resource_pattern_type"],
                resource_name=each["resource_name"],
                acls=[SimpleNamespace(**{name: each[name] for name in PARTS})],
            )
            for each in self.acls
        ]
        return _done(resources=resources)

    def _create(self, message: Mapping[str, Any]) -> Any:
        self.acls += message["creations"]
        return _done(results=[_done() for _ in message["creations"]])

    def _delete(self, message: Mapping[str, Any]) -> Any:
        gone = {(each["principal_filter"], each["resource_name_filter"]) for each in message["filters"]}
        self.acls = [each for each in self.acls if (each["principal"], each["resource_name"]) not in gone]
        return _done(filter_results=[_done() for _ in message["filters"]])

    def _quotas(self, _: Mapping[str, Any]) -> Any:
        entries = [
            SimpleNamespace(
                entity=[SimpleNamespace(entity_name=name)],
                values=[SimpleNamespace(key=key, value=value) for key, value in limits.items()],
            )
            for name, limits in self.quotas.items()
            if limits
        ]
        return _done(entries=entries)

    def _limit(self, message: Mapping[str, Any]) -> Any:
        for entry in message["entries"]:
            limits = self.quotas.setdefault(entry["entity"][0]["entity_name"], {})
            for change in entry["ops"]:
                limits.pop(change["key"], None)
                if not change["remove"]:
                    limits[change["key"]] = change["value"]
        named = [SimpleNamespace(entity_name=each["entity"][0]["entity_name"]) for each in message["entries"]]
        return _done(entries=[_done(entity=[name]) for name in named])

    def _users(self, _: Mapping[str, Any]) -> Any:
        scram = [SimpleNamespace(mechanism=2)]
        return _done(results=[SimpleNamespace(user=name, credential_infos=scram) for name in sorted(self.passwords)])

    def _alter(self, message: Mapping[str, Any]) -> Any:
        given, taken = ([each["name"] for each in message[part]] for part in ("upsertions", "deletions"))
        self.passwords = (self.passwords | {*given}) - {*taken}
        return _done(results=[_done(user=name) for name in (*given, *taken)])


PARTS = ("principal", "host", "operation", "permission_type")


def _done(**parts: Any) -> Any:
    return SimpleNamespace(error_code=ErrorCode.none, error_message=None, **parts)


def made(kind: str, name: str, spec: Object) -> Object:
    meta = {"namespace": "shop", "name": name}
    return {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


CLUSTER = made(
    "Cluster",
    "k",
    {
        "brokers": {"replicas": 1, "storage": {"size": "1Gi"}},
        "listeners": [
            {"name": "plain", "port": 9092, "type": "Internal"},
            {"name": "mtls", "port": 9093, "type": "Internal", "tls": True, "authentication": {"type": "tls"}},
            {"name": "scram", "port": 9094, "type": "Internal", "authentication": {"type": "scram-sha-512"}},
        ],
        "authorization": {"type": "simple"},
    },
)
APP = made(
    "User",
    "app",
    {
        "cluster": {"name": "k"},
        "authentication": {"type": "tls", "validityDays": 90, "renewalDays": 10},
        "authorization": {
            "type": "simple",
            "acls": [{"resource": {"type": "topic", "name": "orders"}, "operations": ["Write", "Create"]}],
        },
    },
)
SHOP = made(
    "User",
    "shop",
    {
        "cluster": {"name": "k"},
        "authentication": {"type": "scram-sha-512"},
        "quotas": {"producerByteRate": 1000000},
    },
)


async def everything(kube: Kube) -> None:
    """The Cluster as its brokers serve it, its authorities, and two Users."""
    resource = await kube.create(CLUSTER)
    now = datetime.now(UTC)
    for name in ("k-clients-ca", "k-cluster-ca"):
        authority = certificates.authority(name, now)
        for secret, data in ((name, authority), (f"{name}-cert", {"ca.crt": authority["tls.crt"]})):
            meta = {"namespace": "shop", "name": secret}
            await kube.create(
                {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": certificates.encoded(data)}
            )
    told = [
        {"name": name, "bootstrap": f"k-bootstrap.shop.svc:{port}"} for name, port in (("mtls", 9093), ("scram", 9094))
    ]
    says = {"message": "", "observedGeneration": 1, "lastTransitionTime": "2026-05-01T00:00:00Z"}
    conditions = [
        {"type": "Ready", "status": "True", "reason": "BrokersServe", **says},
        {"type": "Rolling", "status": "False", "reason": "UpToDate", **says},
    ]
    await kube.write_status(resource, {"observedGeneration": 1, "listeners": told, "conditions": conditions})
    for user in (APP, SHOP):
        await kube.create(user)


def test_the_users_of_a_cluster_are_written_as_they_are_and_then_left_alone(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        brokers = Brokers()
        await everything(kube)
        resources = UserResources(kube, frozenset({"shop"}))
        reconciler = UserReconciler(kube, resources, clock=lambda: clock[0])
        clock = [0.0]

        async def settle() -> None:
            for _ in range(SWEEPS_MAX):
                clock[0] += 1000.0  # so that all Users are listed anew
                if (await reconciler.reconcile(KEY)).requeue_after is None:
                    return
            raise AssertionError("the sweeps come to no end")

        with patch.object(kafka, "KafkaAdmin", lambda *_: brokers):
            await settle()
            for name, username in (("app", "CN=app"), ("shop", "shop")):
                user = await kube.get("User", "shop", name)
                assert user is not None
                assert condition(user["status"], "Ready")["status"] == "True", user["status"]
                assert (user["status"]["username"], user["status"]["secret"]) == (username, name)
                (known,) = [each for each in resources.of(KEY) if each.ref.name == name]
                assert user["status"] == known.status, "no field is pruned"
                secret = await kube.get("Secret", "shop", name)
                assert secret is not None
                assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [user["metadata"]["uid"]]
                assert "client.properties" in secret["data"]
            app = await kube.get("User", "shop", "app")
            assert app is not None
            assert app["status"]["certificateExpires"]
            assert (
                sorted((each["principal"], each["resource_name"]) for each in brokers.acls)
                == [("User:CN=app", "orders")] * 2
            )
            assert brokers.passwords == {"shop"}
            assert brokers.quotas == {"shop": {"producer_byte_rate": 1000000.0}}
            before = kube.writes
            await settle()
            assert kube.writes == before

            await kube.delete("Secret", "shop", "shop")
            await kube.delete("User", "shop", "app")
            await settle()
            assert await kube.get("Secret", "shop", "shop") is not None
            assert brokers.acls == []
            record = await kube.get("ConfigMap", "shop", "k-users")
            assert record is not None
            assert "CN=app" not in str(record["data"])

    play(scene)


def test_users_of_a_missing_or_paused_cluster_say_so(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        resources = UserResources(kube, frozenset({"shop"}))
        reconciler = UserReconciler(kube, resources)
        await kube.create(APP)

        async def reason() -> str:
            found = await kube.get("User", "shop", "app")
            assert found is not None
            return str(condition(found["status"], "Ready")["reason"])

        await reconciler.reconcile(KEY)
        assert await reason() == "ClusterNotFound"
        await kube.create({**CLUSTER, "spec": {**CLUSTER["spec"], "paused": True}})
        await reconciler.reconcile(KEY)
        assert await reason() == "ClusterPaused"

    play(scene)
