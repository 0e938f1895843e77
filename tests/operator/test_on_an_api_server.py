"""The operator on a real API server, which validates, fills in defaults and prunes. It refuses and changes nothing that
the operator writes, and the operator writes nothing a second time. Test code advances pods and StatefulSets."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from ottla.operator import certificates
from ottla.operator.app import Operator, Options
from ottla.operator.brokers import PageAt
from ottla.operator.cluster import ClusterReconciler
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.etcd_client import EtcdUnreachable
from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object, Ref, holds
from ottla.operator.plan.etcd_members import Member
from ottla.operator.plan.etcd_upkeep import MemberStatus
from ottla.operator.plan.names import POD_NAME
from ottla.operator.plan.roll import Report
from ottla.operator.plan.topic import KafkaPartition, KafkaTopic, Moving
from ottla.operator.plan.topic_status import Outcome, topic_status
from ottla.operator.reports import Reports, reports_of
from ottla.operator.spec.cluster import Defaults
from ottla.operator.spec.topic import parse_topic
from ottla.operator.topic_memory import TopicMemory
from ottla.operator.topic_resources import TopicResources
from tests.operator.conftest import Scene, defined
from tests.peers.wire import free_port
from tests.unit.operator.test_cluster import Kafka
from tests.unit.operator.test_cluster_objects import EVERYTHING
from tests.unit.operator.test_scale import _cluster

pytestmark = pytest.mark.timeout(600)

DEFAULTS = Defaults("ottla:1", "etcd:1")
KEY = Ref("shop", "k")


def cluster(**spec: Any) -> Object:
    meta = {"namespace": "shop", "name": "k"}
    return {"apiVersion": "ottla.dev/v1alpha1", "kind": "Cluster", "metadata": meta, "spec": spec}


class Pages:
    """A stand-in of the brokers' pages: one partition has no leader."""

    async def reports(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        return {broker: Report(under_replicated=1, without_leader=("orders-4",)) for broker in pages}

    async def together(self, pages: Mapping[int, PageAt], away: Collection[int]) -> dict[int, Report]:
        return {}

    async def deciding(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        return {number: Report(controls=number == 0) for number in pages}


class EtcdOfPods:
    """A stand-in of etcd's list of members: every etcd pod is a member."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def members(self, endpoints: Sequence[str]) -> list[Member]:
        pods = [pod["metadata"]["name"] for pod in await self._kube.list("Pod", "shop")]
        found = [name for name in pods if "-etcd-" in name]
        if not found:
            raise EtcdUnreachable("nobody")
        return [Member(name, name, f"https://{name}.k-etcd.shop.svc:2380") for name in found]

    async def alarms(self, endpoints: Sequence[str]) -> list[Object]:
        return []

    async def status(self, endpoint: str) -> MemberStatus:
        return MemberStatus(leads=False, size_bytes=1000, used_bytes=900, version="3.6.0", revision=7)

    async def close(self) -> None:
        pass


async def settle(kube: Kube) -> None:
    """Acts for Kubernetes' controllers and nodes: StatefulSets get their pods, which become ready."""
    for item in await kube.list("StatefulSet", "shop"):
        meta, spec = item["metadata"], item["spec"]
        revision = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:8]
        status = {"observedGeneration": meta["generation"], "updateRevision": revision, "replicas": spec["replicas"]}
        await kube.merge("StatefulSet", "shop", meta["name"], {"status": status}, "status")
        first = (spec.get("ordinals") or {}).get("start", 0)
        for number in range(first, first + spec["replicas"]):
            name = f"{meta['name']}-{number}"
            if await kube.get("Pod", "shop", name) is None:
                await kube.create(pod_of(item, name, revision))
            condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-01T00:00:00Z"}
            running = {"podIP": f"10.1.0.{number % 250 + 1}", "conditions": [condition]}
            await kube.merge("Pod", "shop", name, {"status": running}, "status")


async def bring_secrets(kube: Kube) -> None:
    """Makes the Secrets that EVERYTHING names: the clients' authority, and a listener's certificate."""
    by = certificates.authority("elsewhere", datetime.now(UTC))
    pair = certificates.issued(by, "own", datetime.now(UTC))
    for name, data in (("k-clients-ca", by), ("own", {"tls.crt": pair.certificate, "tls.key": pair.key})):
        meta = {"namespace": "shop", "name": name}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": certificates.encoded(data)}
        await kube.create(body)


def pod_of(its_set: Object, name: str, revision: str) -> Object:
    """A pod as the controller of StatefulSets makes it: with its name as a label, and the set as its owner."""
    template = copy.deepcopy(its_set["spec"]["template"])
    claims = [claim["metadata"]["name"] for claim in its_set["spec"].get("volumeClaimTemplates") or ()]
    volumes = [*template["spec"].get("volumes", ()), *({"name": claim, "emptyDir": {}} for claim in claims)]
    labels = {**template["metadata"]["labels"], "controller-revision-hash": revision, POD_NAME: name}
    identity = {"name": its_set["metadata"]["name"], "uid": its_set["metadata"]["uid"]}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True, **identity}
    meta = {**template["metadata"], "labels": labels, "name": name, "namespace": "shop", "ownerReferences": [owner]}
    meta.pop("creationTimestamp", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**template["spec"], "volumes": volumes}}


def test_everything_of_a_cluster_is_taken_as_it_is_and_then_left_alone(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        written: list[Object] = []
        write_status = kube.write_status

        async def noting(resource: Object, status: Object) -> None:
            written.append(status)
            await write_status(resource, status)

        kube.write_status = noting  # type: ignore[method-assign]
        keeper = EtcdKeeper(kube, lambda identity: EtcdOfPods(kube))  # type: ignore[arg-type, return-value]
        reconciler = ClusterReconciler(kube, Pages(), keeper, DEFAULTS)  # type: ignore[arg-type]
        kafka = Kafka(_cluster(3, {}))
        await bring_secrets(kube)
        await kube.create(cluster(**EVERYTHING))

        async def status() -> Object:
            found = await kube.get("Cluster", *KEY)
            assert found is not None
            return dict(found["status"])

        with patch("ottla.operator.kafka.KafkaAdmin", lambda *_: kafka):
            for _ in range(12):
                assert (await reconciler.reconcile(KEY)).failure == ""
                assert await status() == written[-1], "the schema lacks a field"
                await settle(kube)
            found = await status()
            assert holds(found, "Ready"), found
            assert (found["offlinePartitions"], found["underReplicatedPartitions"]) == (1, 3)
            kinds = ("NetworkPolicy", "PodDisruptionBudget", "CronJob", "StatefulSet")
            assert [len(await kube.list(kind, "shop")) for kind in kinds] == [3, 3, 1, 4]
            assert found["encryptedLinks"] is True
            made = await kube.get("Secret", "shop", "k-brokers-tls")
            assert made is not None
            files = {"cluster-ca.crt", "clients-ca.crt", "pages-ca.crt", "replication-tls.pem", "secure.pem"}
            assert made["data"].keys() == files
            with patch.object(kube, "_request", wraps=kube._request) as requests:
                for _ in range(3):
                    await reconciler.reconcile(KEY)
            assert [call.args for call in requests.call_args_list if call.args[0] != "GET"] == []
            assert found["operator"] == {"release": "ottla:1 etcd:1"}
            assert [each["applied"] for each in found["configOverrides"]] == [False, False]
            assert kafka.own[100] == {"log.retention.ms": "2000"}
            config = await kube.get("ConfigMap", "shop", "k-config")
            assert config is not None
            assert config["data"]["broker-100.properties"] == "socket.listen.backlog.size=64\n"
            pod = (await kube.list("Pod", "shop"))[0]
            name = pod["metadata"]["name"]
            seen = {"uid": pod["metadata"]["uid"], "version": pod["metadata"]["resourceVersion"]}
            await kube.merge("Pod", "shop", name, {"metadata": {"annotations": {"changed": "since"}}})
            assert not await kube.delete("Pod", "shop", name, **seen), "the pod has changed since it was looked at"
            assert await kube.get("Pod", "shop", name) is not None
            await kube.merge("Service", "shop", "k-bootstrap", {"spec": {"selector": {"app": "wrong"}}})
            await reconciler.reconcile(KEY)
            mended = await kube.get("Service", "shop", "k-bootstrap")
            assert mended is not None
            assert "app.kubernetes.io/instance" in mended["spec"]["selector"]

    play(scene)


REFUSED = {
    "config: brokers have no setting log.retention.mss": [{"broker": 1, "config": {"log.retention.mss": 1}}],
    "config: the operator sets broker.rack itself": [{"broker": 1, "config": {"broker.rack": "a"}}],
    "config: brokers can't differ in num.partitions": [{"broker": 1, "config": {"num.partitions": 1}}],
    "config: log.retention.ms must be a whole number": [{"broker": 1, "config": {"log.retention.ms": "ever"}}],
    "Duplicate value": [{"broker": 1, "config": {"log.roll.ms": number}} for number in (1, 2)],
}


def test_settings_of_single_brokers_are_judged_and_merged_by_their_brokers(play: Callable[[Scene], None]) -> None:
    def overridden(*overrides: Object) -> Object:
        return cluster(brokers={"replicas": 3, "storage": {"size": "1Gi"}}, configOverrides=list(overrides))

    async def scene(kube: Kube) -> None:
        for says, overrides in REFUSED.items():
            with pytest.raises(KubeError) as refused:
                await kube.create(overridden(*overrides))
            assert refused.value.status == 422
            assert says in refused.value.message
        await kube.apply(overridden({"broker": 1, "config": {"log.retention.ms": 1}}))
        with patch("ottla.operator.kube.OPERATOR", "another-team"):
            await kube.apply(overridden({"broker": 2, "config": {"log.retention.ms": 2}}))
        found = await kube.get("Cluster", *KEY)
        assert found is not None
        assert {each["broker"] for each in found["spec"]["configOverrides"]} == {1, 2}
        await kube.merge("Cluster", *KEY, {"spec": {"replicas": 2}}, "scale")
        found = await kube.get("Cluster", *KEY)
        assert found is not None
        assert found["spec"]["brokers"]["replicas"] == 2, "a broker with overrides doesn't prevent scaling down"

    play(scene)


def test_a_new_pool_has_no_id_that_another_ones_broker_has(play: Callable[[Scene], None]) -> None:
    def pools(*given: tuple[str, int, int]) -> Object:
        named = [{"name": name, "firstId": first, "replicas": count} for name, first, count in given]
        return cluster(brokers={"storage": {"size": "1Gi"}, "pools": named})

    async def scene(kube: Kube) -> None:
        await kube.apply(pools(("a", 0, 3), ("b", 7, 1)))
        for renamed in (pools(("a", 0, 3), ("c", 7, 1)), pools(("b", 7, 1), ("c", 2, 2)), pools(("c", 0, 8))):
            with pytest.raises(KubeError, match="a new pool has an id that a broker of another pool has now"):
                await kube.apply(renamed)
        with pytest.raises(KubeError, match="two pools have an id in common"):
            await kube.apply(pools(("a", 0, 8), ("b", 7, 1)))
        await kube.apply(pools(("a", 0, 2), ("b", 7, 1)))
        await kube.apply(pools(("a", 0, 2), ("c", 2, 2), ("b", 7, 1)))
        await kube.apply(pools(*((f"p{number}", number, 1) for number in range(100, 200))))

    play(scene)


def test_what_a_status_does_not_say_any_more_is_gone(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        await kube.create(cluster(**EVERYTHING))
        says: list[Object] = [
            {"operator": {"release": "1", "turn": True}, "balance": {"summary": "three moves", "moves": 3}},
            {"operator": {"release": "2"}, "balance": {"summary": "not known now"}},
            {"operator": {}},
        ]
        for status in says:
            found = await kube.get("Cluster", *KEY)
            assert found is not None
            await kube.write_status(found, status)
            found = await kube.get("Cluster", *KEY)
            assert found is not None
            assert found["status"] == status

    play(scene)


def test_no_field_of_a_topics_status_is_pruned(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        meta = {"namespace": "shop", "name": "orders"}
        spec = {"cluster": {"name": "k"}, "config": {"retention.ms": 1000, "cleanup.policy": "compact"}}
        body = await kube.create({"apiVersion": "ottla.dev/v1alpha1", "kind": "Topic", "metadata": meta, "spec": spec})
        resource = parse_topic(body)
        assert resource.refusal == ""
        resources = TopicResources(kube)
        resources.seen("ADDED", body)
        topic = KafkaTopic("orders", UUID(int=7), {0: KafkaPartition((0, 1), frozenset((0,)))})
        outcome = Outcome(True, "Ready", "", topic, Moving(0, 1, 3), paused=True)
        now = datetime.now(UTC)
        await Reports(kube, resources).statuses(reports_of({resource: outcome}, topic_status, now), now)
        (known,) = resources.of(KEY)
        found = await kube.get("Topic", "shop", "orders")
        assert found is not None
        assert found["status"] == known.status
        assert found["status"]["reassignment"] == {"replicationFactor": 3, "partitions": 1, "done": 0}

    play(scene)


def test_a_record_of_topics_is_added_to_only_as_it_was_read(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        uid = (await kube.create(cluster(**EVERYTHING)))["metadata"]["uid"]
        memory = TopicMemory(kube)
        none = await memory.read(KEY, uid)
        await memory.remember(none, ["u-1"], ["u-1"])
        seen = await memory.read(KEY, uid)
        with pytest.raises(KubeError) as refused:
            await memory.remember(none, ["u-0"], ["u-0"])
        assert refused.value.status == 409
        assert await memory.read(KEY, uid) == seen
        await memory.remember(seen, ["u-2"], ["u-1", "u-2"])
        with pytest.raises(KubeError) as refused:
            await memory.remember(seen, ["u-3"], ["u-1", "u-2", "u-3"])
        assert refused.value.status == 409
        now = await memory.read(KEY, uid)
        assert [now.has(each) for each in ("u-1", "u-2", "u-3")] == [True, True, False]

        of_another = await memory.read(KEY, "another")
        await memory.remember(of_another, ["u-4"], ["u-1", "u-4"])
        now = await memory.read(KEY, "another")
        assert [now.has(each) for each in ("u-1", "u-4")] == [False, True], "the record is another Cluster's"
        assert not (await memory.read(KEY, uid)).has("u-1")

    play(scene)


def test_the_whole_operator_is_woken_by_its_watches(play: Callable[[Scene], None]) -> None:
    async def scene(kube: Kube) -> None:
        port = free_port()
        options = Options(DEFAULTS, frozenset({"shop"}), lease="ottla", lease_namespace="shop", http_port=port)
        operator = Operator(options, await Kube.connect())
        await operator.listen()
        running = asyncio.ensure_future(operator.run())

        async def until(what: str, check: Callable[[], Awaitable[Any]]) -> Any:
            for _ in range(600):
                assert not running.done(), running
                if found := await check():
                    return found
                await asyncio.sleep(0.1)
            raise AssertionError(what)

        await kube.create(cluster(brokers={"replicas": 1, "storage": {"size": "1Gi"}}))
        service = ("Service", "shop", "k-bootstrap")
        made = await until("the Service", lambda: kube.get(*service))
        await kube.delete(*service)

        async def again() -> bool:
            found = await kube.get(*service)
            return found is not None and found["metadata"]["uid"] != made["metadata"]["uid"]

        await until("another Service", again)

        async def told() -> Any:
            found = await kube.get("Cluster", *KEY)
            return found is not None and found.get("status", {}).get("message")

        assert await until("a status", told) == "waiting for etcd: 0 of 3 members answer"
        lease = await kube.get("Lease", "shop", "ottla")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == "operator"
        pools = [{"name": "broker", "firstId": 0, "replicas": 1}]
        with pytest.raises(KubeError, match="replicas or pools"):
            await kube.merge("Cluster", *KEY, {"spec": {"brokers": {"pools": pools}}})
        with pytest.raises(KubeError, match="brokers have no setting num"):
            await kube.merge("Cluster", *KEY, {"spec": {"config": {"num.partitions": 3, "num.partitons": 3}}})
        operator._stop.set()
        assert await running == 0
        lease = await kube.get("Lease", "shop", "ottla")
        assert lease is not None
        assert not lease["spec"].get("holderIdentity")

    play(scene)


def test_the_process_ends_with_the_definitions_of_its_kinds(play: Callable[[Scene], None]) -> None:
    """The process ends soon by itself, before a probe has it killed, although kopf's remaining tasks wait for ever."""

    async def scene(kube: Kube) -> None:
        words = ("operator", "--image", "ottla:1", "--etcd-image", "etcd:1", "--port", str(free_port()))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ottla.cli.main", *words, stderr=asyncio.subprocess.PIPE
        )
        try:
            await kube.create(cluster(brokers={"replicas": 1, "storage": {"size": "1Gi"}}))
            for _ in range(600):
                if await kube.get("Service", "shop", "k-bootstrap") is not None:
                    break
                await asyncio.sleep(0.1)
            for name in ("topics.ottla.dev", "users.ottla.dev", "clusters.ottla.dev"):
                await kube.delete("CustomResourceDefinition", "", name)
            _, said = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
            await defined(kube)
        assert process.returncode == 1
        assert b"was deleted: the operator stops" in said

    play(scene)
