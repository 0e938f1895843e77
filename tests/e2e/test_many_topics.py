"""5,000 Topics: all are ready within three minutes of the operator's start. Then the operator writes only its lease,
and takes hardly any CPU.

OTTLA_E2E_TOPICS and OTTLA_E2E_QUIET_S make the scenario smaller: with the defaults the scenario takes half an hour.
"""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.e2e.installed import Operator
from tests.e2e.kubectl import holds, wait
from tests.e2e.scene import NAME, Scene, cluster, namespace, topic

COUNT = int(os.environ.get("OTTLA_E2E_TOPICS", "5000"))
QUIET_S = float(os.environ.get("OTTLA_E2E_QUIET_S", "600"))
FIRST_S_MAX = 180.0
CPU_SHARE_MAX = 0.01
KIND = "topics.ottla.dev"
OTHERS = "clusters.ottla.dev,services,configmaps,secrets,persistentvolumeclaims"
# The memory and CPU of a broker, and of etcd, for 5,000 topics with three replicas each.
ROOM = {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
ASK = """
import json, os, urllib.request
page = urllib.request.urlopen('http://127.0.0.1:%s/metrics').read().decode()
fields = open('/proc/1/stat').read().rpartition(')')[2].split()
print(json.dumps({
    'writes': float(page.split('\\nottla_operator_kubernetes_writes_total ')[1].split()[0]),
    'cpu_s': (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK'),
}))
"""


@pytest.mark.timeout(3600, func_only=True)
def test_many_topics(operator: Operator) -> None:
    with namespace(operator, "many") as scene:
        spec = cluster()
        spec["spec"]["brokers"]["resources"] = ROOM
        spec["spec"]["metadata"]["etcd"]["resources"] = ROOM
        scene.kube.apply(spec)
        scene.settled()
        operator.scale(0)
        items = [topic(f"topic-{number}", partitions=1, replicationFactor=3) for number in range(COUNT)]
        scene.kube(
            "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), seconds=900
        )
        began = time.monotonic()
        operator.scale(1)
        # With long pauses, because each check costs a second of CPU.
        wait("all Topics are ready", lambda: ready(scene) == COUNT, FIRST_S_MAX * 3, 5.0)
        first_s = time.monotonic() - began
        scene.settled()
        time.sleep(5)
        seen = versions(scene)
        before, since = spent(operator), time.monotonic()
        time.sleep(QUIET_S)
        after, quiet_s = spent(operator), time.monotonic() - since
        share = (after["cpu_s"] - before["cpu_s"]) / quiet_s
        print(f"{COUNT} topics: ready after {first_s:.0f} s; then {share:.2%} of a core in {quiet_s:.0f} s")
        assert after["writes"] == before["writes"], "the operator writes although nothing changes"
        assert versions(scene) == seen
        assert first_s <= FIRST_S_MAX
        assert share <= CPU_SHARE_MAX
        assert holds(scene.kube.get("clusters.ottla.dev", NAME), "Ready")


def ready(scene: Scene) -> int:
    """The number of Topics that are ready."""
    path = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
    return scene.kube("get", KIND, "-o", f"jsonpath={path}", seconds=120).split().count("True")


def versions(scene: Scene) -> set[str]:
    """The resource versions of all objects to which the operator may write: each write would change one."""
    path = '{range .items[*]}{.kind}/{.metadata.name}/{.metadata.resourceVersion}{"\\n"}{end}'
    return set(scene.kube("get", f"{KIND},{OTHERS}", "-o", f"jsonpath={path}", seconds=120).split())


def spent(operator: Operator) -> dict[str, float]:
    """The operator's writes to Kubernetes and its CPU seconds, since its start."""
    (pod,) = operator.pods()
    port = next(
        port["containerPort"]
        for port in operator.kube.get("pod", pod)["spec"]["containers"][0]["ports"]
        if port["name"] in ("http", "metrics")
    )
    answer: dict[str, float] = json.loads(operator.kube.execute(pod, "python", "-c", ASK % port))
    return answer
