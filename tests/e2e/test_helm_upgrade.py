"""Operator and Cluster from their charts: tested by `helm test`, upgraded by `helm upgrade`, and no client notices."""

from __future__ import annotations

from tests.e2e.installed import NAMESPACE, RELEASE, Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import NAME, namespace
from tests.e2e.target import ROOT

CHART = str(ROOT / "charts" / "ottla-cluster")
SMALL = (
    *("--set", "cluster.brokers.storage.size=1Gi", "--set", "cluster.brokers.resources.requests.cpu=50m"),
    *("--set", "cluster.metadata.etcd.members=1", "--set", "cluster.metadata.etcd.storage.size=1Gi"),
)


def test_helm_upgrade(operator: Operator) -> None:
    with namespace(operator, "helm") as scene:
        helm = operator.target.run
        where = ("--namespace", scene.namespace)
        helm("helm", "install", NAME, CHART, *where, *SMALL)
        scene.settled()
        scene.start_clients()
        helm("helm", "test", NAME, *where)
        helm("helm", "test", RELEASE, "--namespace", NAMESPACE)
        before = scene.births()
        operator.install("--set", "logLevel=debug")
        (acting,) = operator.pods()
        wait("the operator logs more", lambda: "the log level is debug now" in operator.kube("logs", acting), 180)
        assert operator.pods() == [acting], "the new log level restarted no operator"
        operator.install("--set", "logLevel=debug,podAnnotations.again=yes")
        assert acting not in operator.pods(), "the upgrade replaced the operator's pod while clients worked"
        helm(
            "helm",
            "upgrade",
            NAME,
            CHART,
            *where,
            *SMALL,
            "--set-string",
            "cluster.config.socket\\.request\\.max\\.bytes=100000000",
        )
        wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 300)
        scene.settled()
        scene.goes_on()
        # An upgrade of the chart keeps a number of brokers that was set by `kubectl scale`.
        scene.kube("scale", "clusters.ottla.dev", NAME, "--replicas=4")
        helm("helm", "upgrade", NAME, CHART, *where, *SMALL, "--set", "keepReplicas=true")
        assert scene.cluster()["spec"]["brokers"]["replicas"] == 4
        wait("the fourth broker comes", lambda: len(scene.brokers()) == 4)
        scene.settled()
        scene.goes_on()
        scene.finish()
        helm("helm", "uninstall", NAME, *where)
        wait("its brokers are gone", lambda: not scene.brokers())
