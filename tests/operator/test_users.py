"""User resources against a real broker: users log in with what their Secrets hold, get their rights, and lose them.

The broker has an authorizer, a listener for passwords and one for certificates, both with TLS. Kubernetes is a
stand-in, and no queue runs. Each test itself makes the operator's sweeps (a sweep reconciles all Users of a Cluster),
and checks the state after each sweep.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from cryptography import x509

from ottla.operator import certificates, kafka_users
from ottla.operator.certificates import Secret
from ottla.operator.kafka import KafkaAdmin
from ottla.operator.objects import Ref
from ottla.operator.plan.client_files import MOUNT
from ottla.operator.plan.former_users import SETTLE_S
from ottla.operator.plan.user import KafkaUsers, Quotas
from ottla.operator.queue import Result
from ottla.operator.user import UserReconciler
from ottla.operator.user_resources import UserResources
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType
from ottla.security.client_settings import client_security
from ottla.settings.properties import parse_properties
from ottla.spark.options import read_options
from tests.operator.kube_stand_in import KubeStandIn, Object
from tests.peers.apache_kafka import tool
from tests.peers.certificates import Authority
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.tools import need
from tests.peers.wire import free_port

MAIN = Ref("shop", "main")
BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)
PRODUCE = {
    "acls": [{"resource": {"type": "topic", "name": "orders"}, "operations": ["Write", "Create"]}],
    "type": "simple",
}
TLS, SCRAM = {"type": "tls"}, {"type": "scram-sha-512"}


class House:
    """A broker with an authorizer, and the authorities of its Cluster."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.brokers_authority = Authority(folder / "brokers")
        self.clients_authority = certificates.authority("main clients", datetime.now(UTC))
        trust = folder / "clients.pem"
        trust.write_bytes(self.clients_authority["tls.crt"])
        self.plain, self.scram, self.tls = (f"127.0.0.1:{free_port()}" for _ in range(3))
        listeners = f"PLAIN://{self.plain},SCRAM://{self.scram},TLS://{self.tls}"
        self.broker = OttlaBroker(
            folder / "broker",
            self.plain,
            listeners=listeners,
            advertised_listeners=listeners,
            listener_security_protocol_map="PLAIN:PLAINTEXT,SCRAM:SASL_SSL,TLS:SSL",
            inter_broker_listener_name="PLAIN",
            sasl_enabled_mechanisms="SCRAM-SHA-512",
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(self.brokers_authority.issue("broker")),
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(trust),
            listener_name_tls_ssl_client_auth="required",
            **settings,
        )


AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}


class Operator:
    """The reconciler of users, on a real broker. An object in memory takes the place of Kubernetes."""

    def __init__(self, house: House, kube: KubeStandIn | None = None) -> None:
        self.house = house
        self.kube = kube or KubeStandIn()
        self.now = 0.0
        self.resources = UserResources(self.kube)
        self.kube.watchers["User"] = self.resources.seen
        self.reconciler = UserReconciler(
            self.kube,
            self.resources,
            bootstrap=lambda *_: house.plain,
            clock=lambda: self.now,
            utc=lambda: datetime.now(UTC) + timedelta(seconds=self.now),
        )
        if kube is None:
            self.cluster()
            definition = self.kube.put("CustomResourceDefinition", "users.ottla.dev", "")
            definition["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
            self.secret("main-clients-ca", house.clients_authority)
            self.secret("main-cluster-ca-cert", {"ca.crt": house.brokers_authority.trust.read_bytes()})

    def cluster(self, *, rolling: bool = False, **spec: Any) -> None:
        """The Cluster with a listener for passwords and one for certificates, which have addresses outside. `rolling`:
        its brokers aren't all started with this spec yet."""
        listeners = [
            {"name": "passwords", "type": "NodePort", "port": 9094, "tls": True, "authentication": SCRAM},
            {"name": "certificates", "type": "NodePort", "port": 9095, "tls": True, "authentication": TLS},
        ]
        addresses = {"passwords": self.house.scram, "certificates": self.house.tls}
        made = self.kube.put("Cluster", "main", spec={"listeners": listeners, **spec})
        self.kube.put(
            "Cluster",
            "main",
            status={
                "observedGeneration": made["metadata"]["generation"],
                "conditions": [{"type": "Rolling", "status": str(rolling), "reason": "Any"}],
                "listeners": [{"name": name, "bootstrap": address} for name, address in addresses.items()],
            },
        )

    def secret(self, name: str, data: Secret, namespace: str = "shop") -> None:
        self.kube.put("Secret", name, namespace, data=certificates.encoded(data))

    def user(self, resource: str, authentication: Object, namespace: str = "shop", **spec: Any) -> None:
        """Does what `kubectl apply` would do."""
        whole = {"cluster": {"name": "main", "namespace": "shop"}, "authentication": authentication, **spec}
        self.kube.put("User", resource, namespace, spec=whole)

    def renew(self, name: str, value: str) -> None:
        """Does what `kubectl annotate` would do."""
        self.kube.put("User", name, metadata={"annotations": {"ottla.dev/force-renew": value}})

    def data(self, name: str, namespace: str = "shop") -> Secret:
        """The data of a Secret."""
        return certificates.decoded(self.kube.objects["Secret", namespace, name])

    def condition(self, name: str, namespace: str = "shop") -> tuple[str, str, str]:
        return self.kube.condition(name, namespace=namespace, of="User")

    def status(self, name: str) -> Object:
        return dict(self.kube.objects["User", "shop", name]["status"])

    async def sweep(self) -> Result:
        return await self.reconciler.reconcile(MAIN)

    async def settle(self, sweeps: int = 20) -> None:
        """Makes sweeps until one asks for no other sweep within two seconds."""
        for _ in range(sweeps):
            result = await self.sweep()
            if result.requeue_after is None or result.requeue_after > 2.0:
                return
        raise AssertionError(f"no rest after {sweeps} sweeps: {self.kube.writes[-10:]}")

    async def later(self, seconds: float) -> None:
        """Advances the time by `seconds`, and then settles."""
        self.now += seconds
        await self.settle()

    def mounted(self, name: str) -> Path:
        """A folder with the files of a Secret; the configuration of librdkafka has this folder for the usual one."""
        folder = self.house.folder / "mounted" / name
        folder.mkdir(parents=True, exist_ok=True)
        for part, content in self.data(name).items():
            (folder / part).write_bytes(content)
        return folder

    def produced(self, name: str, topic: str = "orders") -> int | None:
        """Produces as librdkafka's clients do: the error code with which the record is refused; None if it is
        written."""
        folder = self.mounted(name)
        text = (folder / "librdkafka.conf").read_text().replace(MOUNT, str(folder))
        settings: dict[str, Any] = dict(line.split("=", 1) for line in text.splitlines())
        outcomes: list[KafkaError | None] = []
        producer = Producer(settings | {"acks": "all", "message.timeout.ms": 8_000, "log_level": 0})
        producer.produce(topic, b"value", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(30) == 0
        return None if outcomes[0] is None else outcomes[0].code()

    def ottla(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `ottla` with a user's `client.properties`."""
        properties = self.mounted(name) / "client.properties"
        bootstrap = self.data(name)["bootstrap.servers"].decode()
        command = [
            sys.executable,
            "-m",
            "ottla.cli.main",
            *arguments,
            "-b",
            bootstrap,
            "--command-config",
            str(properties),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


Scene = Callable[[Operator, KafkaAdmin], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    started = House(tmp_path_factory.mktemp("house"), **AUTHORIZER)
    yield started
    started.broker.stop()


def play_in(house: House, scene: Scene) -> None:
    """Runs a test's coroutine with a new operator and a new admin client, and removes all users afterwards."""

    async def whole() -> None:
        admin, operator = KafkaAdmin(house.plain), Operator(house)
        try:
            await scene(operator, admin)
        finally:
            operator.reconciler.close()
            await clean(admin)
            admin.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


@pytest.fixture
def run(house: House) -> Play:
    return lambda scene: play_in(house, scene)


async def clean(admin: KafkaAdmin) -> None:
    there = await kafka_users.look(admin)
    await kafka_users.drop_passwords(admin, sorted(there.passwords))
    await kafka_users.delete_acls(admin, [each for some in (there.acls or {}).values() for each in some])
    await kafka_users.set_quotas(
        admin, [Quotas(name, tuple((key, None) for key in limits)) for name, limits in there.quotas.items()]
    )


def acl(principal: str, topic: str, operation: AclOperation = AclOperation.READ) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, PatternType.LITERAL, topic, principal, "*", operation, Permission.ALLOW)


def test_a_user_with_a_password_logs_in_and_may_do_what_its_rules_say(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE, quotas={"producerByteRate": 1_000_000})
        await operator.settle()
        assert operator.condition("shop") == ("True", "Ready", "")
        status = operator.status("shop")
        assert (status["username"], status["secret"], status["observedGeneration"]) == ("shop", "shop", 1)
        there = await kafka_users.look(admin)
        assert (there.acls or {})["User:shop"] == {
            acl("User:shop", "orders", AclOperation.WRITE),
            acl("User:shop", "orders", AclOperation.CREATE),
        }
        assert there.quotas == {"shop": {"producer_byte_rate": 1_000_000.0}}
        assert await asyncio.to_thread(operator.produced, "shop") is None
        assert await asyncio.to_thread(operator.produced, "shop", "other") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        listed = await asyncio.to_thread(operator.ottla, "shop", "topics", "list", "--json")
        assert [topic["name"] for topic in json.loads(listed.stdout)] == ["orders"]
        assert [event[:2] for event in operator.kube.events] == [("shop", "RightsChanged"), ("shop", "PasswordSet")]

        operator.kube.writes.clear()
        for _ in range(3):
            assert (await operator.sweep()).requeue_after is None
        assert operator.kube.writes == []

    run(scene)


def test_the_secret_has_what_each_kind_of_client_needs(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM)
        operator.user("app", TLS)
        await operator.settle()
        meta = operator.kube.objects["Secret", "shop", "app"]["metadata"]
        assert meta["ownerReferences"][0]["uid"] == operator.kube.objects["User", "shop", "app"]["metadata"]["uid"]
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "ottla-operator"
        common = {
            "username",
            "bootstrap.servers",
            "client.properties",
            "librdkafka.conf",
            "spark-options.json",
            "ca.crt",
        }
        assert operator.data("shop").keys() == common | {"password", "sasl.jaas.config"}
        assert operator.data("app").keys() == common | {"user.crt", "user.key", "user.p12", "user.password"}
        assert operator.data("app")["ca.crt"] == operator.house.brokers_authority.trust.read_bytes()
        for name, protocol in (("shop", "SASL_SSL"), ("app", "SSL")):
            properties = parse_properties(operator.data(name)["client.properties"].decode())
            assert client_security(properties).protocol == protocol
            spark = json.loads(operator.data(name)["spark-options.json"])
            assert spark == {f"kafka.{key}": value for key, value in properties.items()}
            read = read_options(spark | {"subscribe": "orders"}, streaming=False).properties
            assert (read.security, read.warnings) == (client_security(properties), ())

    run(scene)


def test_a_user_with_a_certificate_logs_in_under_its_distinguished_name(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("app", TLS, authorization=PRODUCE)
        await operator.settle()
        assert operator.condition("app") == ("True", "Ready", "")
        assert operator.status("app")["username"] == "CN=app"
        assert operator.status("app")["certificateExpires"] > "2026-01-01"
        assert await asyncio.to_thread(operator.produced, "app") is None
        assert await asyncio.to_thread(operator.produced, "app", "other") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        listed = await asyncio.to_thread(operator.ottla, "app", "topics", "list", "--json")
        assert [topic["name"] for topic in json.loads(listed.stdout)] == ["orders"]

    run(scene)


def test_kafkas_own_tools_take_the_properties_and_java_opens_the_store(run: Play) -> None:
    need("java", "mvn")

    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        operator.user("app", TLS, authorization=PRODUCE)
        await operator.settle()
        for name in ("shop", "app"):
            properties = str(operator.mounted(name) / "client.properties")
            bootstrap = operator.data(name)["bootstrap.servers"].decode()
            where = ("--bootstrap-server", bootstrap, "--command-config", properties)
            await asyncio.to_thread(tool, "topics", *where, "--create", "--if-not-exists", "--topic", "orders")
            assert (await asyncio.to_thread(tool, "topics", *where, "--list")).split() == ["orders"]
        folder, password = operator.mounted("app"), operator.data("app")["user.password"].decode()
        command = ["keytool", "-list", "-v", "-keystore", str(folder / "user.p12"), "-storepass", password]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
        assert "Entry type: PrivateKeyEntry" in done.stdout
        assert "Owner: CN=app" in done.stdout

    run(scene)


def test_rules_and_limits_follow_the_resource_and_others_users_are_left_alone(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        others = {acl("User:else", "orders"), acl("User:*", "public"), acl("User:CN=shop", "orders")}
        await kafka_users.create_acls(admin, [*others, acl("User:shop", "by-hand")])
        await kafka_users.set_quotas(admin, [Quotas("else", (("producer_byte_rate", 5.0),))])
        operator.user("shop", SCRAM, authorization=PRODUCE, quotas={"producerByteRate": 10, "requestPercentage": 50})
        await operator.settle()
        prefix = {"type": "topic", "name": "orders.", "patternType": "prefix"}
        rule = {"type": "deny", "resource": prefix, "host": "10.0.0.1", "operations": ["All"]}
        operator.user("shop", SCRAM, authorization={"type": "simple", "acls": [rule]}, quotas={"producerByteRate": 20})
        await operator.settle()
        there = await kafka_users.look(admin)
        assert there.acls is not None
        denied = AclBinding(
            ResourceType.TOPIC,
            PatternType.PREFIXED,
            "orders.",
            "User:shop",
            "10.0.0.1",
            AclOperation.ALL,
            Permission.DENY,
        )
        assert {each for some in there.acls.values() for each in some} == {*others, denied}
        assert there.quotas == {"shop": {"producer_byte_rate": 20.0}, "else": {"producer_byte_rate": 5.0}}
        await kafka_users.delete_acls(admin, [denied])
        await operator.settle()
        assert (await kafka_users.look(admin)).acls == there.acls, "drift is repaired"

    run(scene)


def test_a_deleted_user_loses_everything_after_a_moment(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        await kafka_users.create_acls(admin, [acl("User:else", "orders")])
        operator.user("shop", SCRAM, authorization=PRODUCE, quotas={"producerByteRate": 10})
        operator.user("app", TLS, authorization=PRODUCE)
        await operator.settle()
        operator.kube.remove("User", "shop")
        assert 0.0 < ((await operator.sweep()).requeue_after or 0.0) <= SETTLE_S
        assert "shop" in (await kafka_users.look(admin)).passwords
        successor = Operator(operator.house, operator.kube)
        operator.kube.remove("User", "app")
        await successor.sweep()
        await successor.later(SETTLE_S)
        there = await kafka_users.look(admin)
        assert there == KafkaUsers({"User:else": frozenset({acl("User:else", "orders")})}, {}, frozenset())
        assert sorted(event[2].split("'")[1] for event in operator.kube.events if event[1] == "UserRemoved") == [
            "CN=app",
            "shop",
        ]
        assert (await successor.sweep()).gone
        successor.reconciler.close()

    run(scene)


def test_a_user_that_is_made_again_at_once_keeps_its_rights(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        await operator.settle()
        password = operator.data("shop")["password"]
        operator.kube.remove("User", "shop")
        operator.user("shop", SCRAM, authorization=PRODUCE)
        await operator.settle()
        assert operator.condition("shop")[:2] == ("False", "SecretGoes")
        operator.kube.remove("Secret", "shop")  # as Kubernetes does, because the Secret's owner is gone
        await operator.later(SETTLE_S)
        assert operator.condition("shop")[0] == "True"
        assert operator.data("shop")["password"] != password
        assert await asyncio.to_thread(operator.produced, "shop") is None

    run(scene)


def test_users_that_vanish_with_their_definition_are_kept(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        await operator.settle()
        before = await kafka_users.look(admin)
        operator.kube.remove("User", "shop")
        del operator.kube.objects["CustomResourceDefinition", "", "users.ottla.dev"]
        await operator.sweep()
        await operator.later(1000.0)
        definition = operator.kube.put("CustomResourceDefinition", "users.ottla.dev", "")
        definition["metadata"]["creationTimestamp"] = "2026-03-01T00:00:00Z"
        await operator.sweep()
        await operator.later(1000.0)
        assert await kafka_users.look(admin) == before
        operator.user("shop", SCRAM)
        operator.kube.objects["User", "shop", "shop"]["metadata"]["creationTimestamp"] = "2026-03-02T00:00:00Z"
        operator.kube.put("User", "shop")
        await operator.settle()
        operator.kube.remove("User", "shop")
        await operator.sweep()
        await operator.later(SETTLE_S)
        assert (await kafka_users.look(admin)).passwords == frozenset()

    run(scene)


def test_another_name_or_login_leaves_nothing_of_the_earlier_one(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        await operator.settle()
        operator.user("shop", {"type": "external"}, authorization=PRODUCE)
        await operator.settle()
        there = await kafka_users.look(admin)
        assert (there.passwords, set(there.acls or {})) == (frozenset(), {"User:shop"})
        assert operator.data("shop") == {}
        operator.user("shop", {"type": "tls-external"}, authorization=PRODUCE, name="counter")
        await operator.settle()
        await operator.later(SETTLE_S)
        assert set((await kafka_users.look(admin)).acls or {}) == {"User:CN=counter"}
        assert operator.status("shop")["username"] == "CN=counter"
        assert "secret" not in operator.status("shop")

    run(scene)


def test_the_older_of_two_has_the_name(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("young", SCRAM, name="shop", quotas={"producerByteRate": 1})
        operator.kube.objects["User", "shop", "young"]["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
        operator.kube.put("User", "young")
        operator.user("old", SCRAM, name="shop", quotas={"producerByteRate": 2})
        await operator.settle()
        assert operator.condition("young")[:2] == ("False", "ResourceConflict")
        assert "shop/old" in operator.condition("young")[2]
        assert (await kafka_users.look(admin)).quotas == {"shop": {"producer_byte_rate": 2.0}}
        assert ("Secret", "shop", "young") not in operator.kube.objects
        operator.kube.remove("User", "old")
        await operator.later(60.0)
        assert operator.condition("young")[0] == "True"
        assert (await kafka_users.look(admin)).quotas == {"shop": {"producer_byte_rate": 1.0}}

    run(scene)


def test_a_password_is_kept_until_somebody_wants_another(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        await operator.settle()
        first = operator.data("shop")
        successor = Operator(operator.house, operator.kube)
        await successor.settle()
        assert successor.data("shop") == first, "the next operator changes nothing"
        successor.renew("shop", "once")
        await successor.settle()
        second = successor.data("shop")["password"]
        assert second != first["password"]
        assert await asyncio.to_thread(successor.produced, "shop") is None
        successor.kube.remove("Secret", "shop")
        await successor.later(200.0)
        assert successor.data("shop")["password"] not in (first["password"], second)
        assert await asyncio.to_thread(successor.produced, "shop") is None
        await kafka_users.drop_passwords(admin, ["shop"])
        await successor.settle()
        assert await asyncio.to_thread(successor.produced, "shop") is None
        successor.reconciler.close()

    run(scene)


def test_an_operator_that_ended_between_two_steps_is_followed_by_one_that_sends_the_same_password(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        merge = operator.kube.merge

        async def ended(kind: str, *rest: Any, **more: Any) -> Object:
            if kind == "Secret":
                raise RuntimeError("the operator ended before the Secret was marked")
            return await merge(kind, *rest, **more)

        operator.kube.merge = ended  # type: ignore[method-assign]
        with pytest.raises(RuntimeError):
            await operator.sweep()
        operator.kube.merge = merge  # type: ignore[method-assign]
        password = operator.data("shop")["password"]
        successor = Operator(operator.house, operator.kube)
        await successor.settle()
        assert successor.data("shop")["password"] == password
        assert successor.condition("shop")[0] == "True"
        assert await asyncio.to_thread(successor.produced, "shop") is None
        successor.reconciler.close()

    run(scene)


def test_a_password_may_come_from_another_secret_and_its_changes_are_followed(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        source = {"valueFrom": {"secretKeyRef": {"name": "vault", "key": "shop"}}}
        operator.user("shop", SCRAM | {"password": source}, authorization=PRODUCE)
        await operator.settle()
        assert operator.condition("shop")[:2] == ("False", "PasswordMissing")
        operator.secret("vault", {"shop": b"secret\n"})
        await operator.settle()
        assert operator.condition("shop")[:2] == ("False", "PasswordInvalid")
        for password in ('"quo\\ted"=', "another one"):
            operator.secret("vault", {"shop": password.encode()})
            await operator.later(200.0)
            assert operator.condition("shop")[0] == "True"
            assert operator.data("shop")["password"].decode() == password
            assert await asyncio.to_thread(operator.produced, "shop") is None
            assert (await asyncio.to_thread(operator.ottla, "shop", "topics", "list")).returncode == 0

    run(scene)


def until(operator: Operator, name: str) -> datetime:
    return x509.load_pem_x509_certificate(operator.data(name)["user.crt"]).not_valid_after_utc


def test_certificates_are_renewed_before_they_end_and_when_somebody_wants_it(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("app", TLS | {"validityDays": 100, "renewalDays": 20})
        await operator.settle()
        first = operator.data("app")["user.crt"]
        await operator.later(79 * 86400.0)
        assert operator.data("app")["user.crt"] == first
        await operator.later(2 * 86400.0)
        second = operator.data("app")["user.crt"]
        assert second != first
        operator.renew("app", "now")
        await operator.settle()
        third = operator.data("app")["user.crt"]
        assert third != second
        await operator.settle()
        assert operator.data("app")["user.crt"] == third, "one value of the annotation makes one certificate"
        operator.user("app", TLS | {"validityDays": 50, "renewalDays": 20})
        await operator.settle()
        left = until(operator, "app") - datetime.now(UTC) - timedelta(seconds=operator.now)
        assert timedelta(days=49) < left < timedelta(days=51)

    run(scene)


def test_a_new_authority_signs_new_certificates_and_an_expired_one_stops_nobody(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("app", TLS)
        await operator.settle()
        first = operator.data("app")["user.crt"]
        operator.secret("main-clients-ca", certificates.authority("next", datetime.now(UTC)))
        await operator.settle()
        second = operator.data("app")["user.crt"]
        assert second != first
        expired = certificates.authority("expired", datetime.now(UTC) - timedelta(days=5000))
        operator.secret("main-clients-ca", expired)
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "AuthorityUnusable")
        assert operator.data("app")["user.crt"] == second
        operator.secret("main-clients-ca", operator.house.clients_authority)
        await operator.settle()
        assert operator.condition("app") == ("True", "Ready", "")
        assert await asyncio.to_thread(operator.produced, "app") == KafkaError.TOPIC_AUTHORIZATION_FAILED

    run(scene)


def test_what_is_missing_is_told_and_rights_are_given_all_the_same(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.user("app", TLS, authorization=PRODUCE)
        authority = kube.objects.pop(("Secret", "shop", "main-clients-ca"))
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "NoAuthority")
        assert set((await kafka_users.look(admin)).acls or {}) == {"User:CN=app"}
        waits = {"before.crt": b"b", "next.crt": b"n", "next.key": b"k"}  # brokers have to trust the next one first
        operator.secret("main-clients-ca", waits)
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "NoAuthority")
        former = {"apiVersion": "ottla.dev/v1alpha1", "kind": "Cluster", "name": "main", "uid": "former"}
        kube.objects["Secret", "shop", "main-clients-ca"] = authority
        kube.put("Secret", "main-clients-ca", metadata={"ownerReferences": [former]})
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "NoAuthority"), "it is that of a deleted Cluster"
        kube.put("Secret", "main-clients-ca", metadata={"ownerReferences": []})
        operator.cluster(listeners=[])
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "NoListener")
        kube.put("Secret", "app", data={"token": b64encode(b"theirs").decode()})
        operator.cluster()
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "SecretNotOwned")
        assert operator.data("app") == {"token": b"theirs"}
        kube.remove("Secret", "app")
        await operator.settle()
        assert operator.condition("app")[0] == "True"
        operator.user("app", TLS | {"validityDays": 10}, authorization=PRODUCE)
        await operator.settle()
        assert operator.condition("app")[:2] == ("False", "InvalidSpec")
        await operator.later(1000.0)
        assert set((await kafka_users.look(admin)).acls or {}) == {"User:CN=app"}, "what it has stays"

    run(scene)


def test_other_namespaces_by_the_clusters_leave_but_never_as_a_super_user(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("theirs", SCRAM, namespace="team")
        await operator.settle()
        assert operator.condition("theirs", "team")[:2] == ("False", "NamespaceNotAllowed")
        operator.cluster(users={"allowedNamespaces": "All"}, config={"super.users": "User:root;User:CN=root"})
        await operator.settle()
        assert operator.condition("theirs", "team")[0] == "True"
        assert ("Secret", "team", "theirs") in operator.kube.objects
        operator.user("root", SCRAM, namespace="team")
        operator.user("root2", TLS, namespace="team", name="root")
        await operator.settle()
        assert operator.condition("root", "team")[:2] == ("False", "NameNotAllowed")
        assert operator.condition("root2", "team")[:2] == ("False", "NameNotAllowed")
        assert (await kafka_users.look(admin)).passwords == {"theirs"}
        operator.cluster()
        await operator.settle()
        await operator.later(SETTLE_S)
        assert operator.condition("theirs", "team")[:2] == ("False", "NamespaceNotAllowed")
        assert (await kafka_users.look(admin)).passwords == frozenset(), "it lost its access with its namespace"

    run(scene)


def test_nobody_is_removed_while_the_namespaces_of_a_cluster_cant_be_listed(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.kube.put("Namespace", "team", "", metadata={"labels": {"users": "yes"}})
        operator.cluster(
            users={"allowedNamespaces": "Selector", "namespaceSelector": {"matchLabels": {"users": "yes"}}}
        )
        operator.user("theirs", SCRAM, namespace="team")
        await operator.settle()
        assert (await kafka_users.look(admin)).passwords == {"theirs"}
        operator.kube.refused["Namespace"] = 403
        await operator.settle()
        await operator.later(1000.0)
        assert operator.condition("theirs", "team")[:2] == ("False", "NamespaceNotAllowed")
        assert (await kafka_users.look(admin)).passwords == {"theirs"}
        operator.kube.refused.clear()
        await operator.settle()
        assert operator.condition("theirs", "team")[0] == "True"

    run(scene)


def test_a_listener_with_a_certificate_of_its_own_is_trusted_by_its_own_authority(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        listener = {"name": "own", "type": "Internal", "port": 9093, "tls": True, "authentication": SCRAM}
        operator.cluster(listeners=[listener | {"certificate": {"secretName": "from-elsewhere"}}])
        operator.user("shop", SCRAM)
        await operator.settle()
        assert operator.condition("shop")[:2] == ("False", "NoAuthority")
        assert "from-elsewhere" in operator.condition("shop")[2]
        operator.secret("from-elsewhere", {"tls.crt": b"c", "ca.crt": b"theirs"})
        await operator.settle()
        assert operator.data("shop")["ca.crt"] == b"theirs"
        operator.secret("from-elsewhere", {"tls.crt": b"c"})
        await operator.settle()
        assert operator.condition("shop")[0] == "True"
        assert "ca.crt" not in operator.data("shop")
        assert b"truststore" not in operator.data("shop")["client.properties"]

    run(scene)


def test_names_are_what_the_brokers_make_of_certificates(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.cluster(config={"ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/"})
        operator.user("app", {"type": "tls-external"}, quotas={"producerByteRate": 1})
        operator.user("app-2", {"type": "tls-external"}, quotas={"producerByteRate": 1})
        await operator.settle()
        assert operator.status("app")["username"] == "app"
        assert operator.condition("app-2")[:2] == ("False", "NameNotMapped")
        assert (await kafka_users.look(admin)).quotas == {"app": {"producer_byte_rate": 1.0}}

    run(scene)


def test_a_former_name_keeps_its_rights_until_every_broker_gives_the_new_one(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        limits = {"producerByteRate": 1}
        operator.user("app", {"type": "tls-external"}, quotas=limits, authorization=PRODUCE)
        await operator.settle()
        mapping = {"ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/"}
        operator.cluster(config=mapping, rolling=True)
        await operator.settle()
        await operator.later(1000.0)
        both = await kafka_users.look(admin)
        assert set(both.acls or ()) == {"User:app", "User:CN=app"}
        assert set(both.quotas) == {"app", "CN=app"}
        operator.cluster(config=mapping)
        await operator.settle()
        await operator.later(SETTLE_S)
        after = await kafka_users.look(admin)
        assert (set(after.acls or ()), set(after.quotas)) == ({"User:app"}, {"app"})

    run(scene)


def test_hundreds_of_users_cost_three_requests_in_a_quiet_sweep(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        for number in range(600):
            operator.user(f"user-{number}", {"type": "external"}, authorization=PRODUCE, quotas={"producerByteRate": 9})
        await operator.settle()
        assert {operator.condition(f"user-{number}")[0] for number in range(600)} == {"True"}
        there = await kafka_users.look(admin)
        assert (len(there.acls or {}), len(there.quotas)) == (600, 600)
        asked: list[int] = []
        send = KafkaAdmin.send

        async def counted(self: KafkaAdmin, api: tuple[int, int], message: Any) -> Any:
            asked.append(api[0])
            return await send(self, api, message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KafkaAdmin, "send", counted)
            operator.kube.writes.clear()
            await operator.settle()
        assert (asked, operator.kube.writes) == ([29, 48, 50], [])
        for number in range(600):
            operator.kube.remove("User", f"user-{number}")
        await operator.sweep()
        await operator.later(SETTLE_S)
        assert await kafka_users.look(admin) == KafkaUsers({}, {}, frozenset())

    run(scene)


def test_without_an_authorizer_a_user_without_rules_is_ready_and_one_with_rules_isnt(tmp_path: Path) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("plain", SCRAM)
        operator.user("ruled", SCRAM, authorization=PRODUCE)
        await operator.settle()
        assert operator.condition("plain") == ("True", "Ready", "")
        assert operator.condition("ruled")[:2] == ("False", "NoAuthorizer")
        operator.cluster(authorization={"type": "simple"})
        await operator.settle()
        assert operator.condition("ruled")[:2] == ("False", "AuthorizerComes")
        assert await asyncio.to_thread(operator.produced, "ruled") is None
        operator.kube.remove("User", "ruled")
        await operator.sweep()
        await operator.later(SETTLE_S)
        assert (await kafka_users.look(admin)).passwords == {"plain"}
        assert "ruled" in operator.kube.objects["ConfigMap", "shop", "main-users"]["data"]["users"]
        assert "UserRemoved" not in [event[1] for event in operator.kube.events]

    house = House(tmp_path)
    try:
        play_in(house, scene)
    finally:
        house.broker.stop()


def test_brokers_that_dont_answer_and_clusters_that_are_gone_are_told(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM)
        operator.reconciler._bootstrap = lambda *_: "127.0.0.1:1"
        assert (await operator.sweep()).requeue_after is not None
        assert operator.condition("shop")[:2] == ("False", "ClusterUnreachable")
        operator.cluster(paused=True)
        await operator.settle()
        assert operator.condition("shop")[:2] == ("False", "ClusterPaused")
        operator.kube.remove("Cluster", "main")
        await operator.settle()
        assert operator.condition("shop")[:2] == ("False", "ClusterNotFound")
        operator.kube.remove("User", "shop")
        assert (await operator.sweep()).gone

    run(scene)


def test_no_password_stands_in_a_status_an_event_or_the_record(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.user("shop", SCRAM, authorization=PRODUCE)
        await operator.settle()
        password = operator.data("shop")["password"].decode()
        shown = [found for key, found in operator.kube.objects.items() if key[0] != "Secret"]
        secret = operator.kube.objects["Secret", "shop", "shop"]
        shown.append({**secret, "data": {}})
        text = json.dumps([shown, operator.kube.events])
        assert password not in text
        assert b64decode(secret["data"]["password"]).decode() == password

    run(scene)
