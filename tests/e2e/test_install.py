"""A Cluster of three brokers becomes ready, `kubectl get` shows that, and `kubectl explain` describes every field."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition
from tests.e2e.scene import NAME, TOPIC, cluster, working

# Lists the modules without bytecode in the image, which a broker would compile anew at each start.
_WITHOUT_BYTECODE = """
import os, sys
import ottla.cli.main, ottla.cli.server, ottla.metadata.etcd
cached = {name: getattr(module, "__cached__", None) for name, module in sys.modules.items()}
print([name for name, path in cached.items() if path and not os.path.exists(path)])
"""


def test_install(operator: Operator) -> None:
    with working(operator, "install") as scene:
        listed = scene.kube("get", "clusters.ottla.dev,topics.ottla.dev")
        assert "3/3" in listed, listed
        assert TOPIC in listed
        bootstrap = scene.kube.get("configmap", f"{NAME}-client")["data"]["bootstrap.servers"]
        assert scene.namespace in bootstrap
        found = scene.cluster()
        assert condition(found, "Ready")["observedGeneration"] == found["metadata"]["generation"]
        for name, pod in scene.brokers().items():
            (container,) = pod["spec"]["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert pod["spec"]["automountServiceAccountToken"] is False, name
        assert scene.kube("exec", name, "--", "python", "-c", _WITHOUT_BYTECODE).strip() == "[]"
        for kind in ("clusters.ottla.dev", "topics.ottla.dev", "users.ottla.dev"):
            scene.kube("explain", f"{kind}.spec", "--recursive")
            assert "<empty>" not in scene.kube("explain", f"{kind}.spec")
        no_brokers = cluster(brokers=-1)
        no_brokers["metadata"]["name"] = "other"
        assert "brokers" in scene.kube.refused(no_brokers)
