"""An operator with rights in one namespace and without a ClusterRole: a Cluster, its topics and a roll work."""

from __future__ import annotations

from tests.e2e.installed import NAMESPACE, RELEASE, Operator
from tests.e2e.kubectl import Kubectl, KubectlError, wait
from tests.e2e.scene import cluster, namespace


def test_namespaced_rights(operator: Operator) -> None:
    with namespace(operator, "rights") as scene:
        operator.uninstall()
        try:
            rights = f"watchNamespaces={{{scene.namespace}}},rbac.clusterWide=false"
            operator.install("--set", rights)
            roles = scene.kube(
                "get", "clusterroles", "--selector", f"app.kubernetes.io/instance={RELEASE}", "-o", "name"
            )
            assert not roles.strip(), roles
            account = f"--as=system:serviceaccount:{NAMESPACE}:{RELEASE}"
            assert "yes" in scene.kube("auth", "can-i", "delete", "pods", account)
            assert refused(scene.kube, "auth", "can-i", "delete", "pods", "--namespace", "default", account)
            assert refused(scene.kube, "auth", "can-i", "list", "nodes", account)
            assert "yes" in scene.kube("auth", "can-i", "get", "secrets", account)
            for verb in ("list", "watch", "delete"):
                assert refused(scene.kube, "auth", "can-i", verb, "secrets", account)
            scene.kube.apply(cluster())
            scene.settled()
            scene.start_clients()
            before = scene.births()
            scene.change(config={"socket.request.max.bytes": "100000000"})
            wait(
                "every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 300
            )
            scene.settled()
            scene.goes_on()
            scene.finish()
        finally:
            operator.uninstall()
            operator.install()


def refused(kube: Kubectl, *words: str) -> bool:
    """Whether `kubectl auth can-i` answers no. With this answer it also exits with an error."""
    try:
        return "yes" not in kube(*words)
    except KubectlError:
        return True
