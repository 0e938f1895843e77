"""A Cluster in a namespace of its own, with clients at work in it while a scenario causes and mends faults.

At the end the clients read all records back, and the oracles of `tests/simulation` check the history. Only the deletion
of the namespace removes the objects. If a scenario fails, the state in Kubernetes is saved.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tests.e2e import diagnostics
from tests.e2e.installed import Operator, make_namespace
from tests.e2e.kubectl import Kubectl, KubectlError, condition, holds, wait
from tests.e2e.target import CLIENTS_IMAGE, ROOT, Target

NAME = "ottla"
TOPIC = "worked"
PARTITIONS = 4
CLIENTS = "clients"
BROKERS = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=broker"
ETCD = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=etcd"
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# Small resources, because a single machine runs all pods.
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


def cluster(*, brokers: int = 3, etcd: int = 1, etcd_tls: bool = False, **spec: Any) -> dict[str, Any]:
    """A Cluster. `spec` replaces or adds fields of its spec."""
    return {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": NAME},
        "spec": {
            "brokers": {"replicas": brokers, "storage": {"size": "1Gi"}, "resources": SMALL},
            "metadata": {"etcd": {"members": etcd, "storage": {"size": "1Gi"}, "resources": SMALL, "tls": etcd_tls}},
            **spec,
        },
    }


def topic(name: str, **spec: Any) -> dict[str, Any]:
    """A Topic of the Cluster. `spec` replaces or adds fields of its spec."""
    return {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"cluster": {"name": NAME}, **spec},
    }


def secure_cluster() -> dict[str, Any]:
    """A Cluster with an authorizer, a listener for certificates and one for passwords. The scenario's clients use a
    listener without a login, so that the user of such listeners may do everything."""
    return cluster(
        listeners=[
            {"name": "plain", "type": "Internal", "port": 9092},
            {"name": "certificates", "type": "Internal", "port": 9093, "tls": True, "authentication": {"type": "tls"}},
            {
                "name": "passwords",
                "type": "Internal",
                "port": 9094,
                "tls": True,
                "authentication": {"type": "scram-sha-512"},
            },
        ],
        authorization={"type": "simple", "superUsers": ["User:ANONYMOUS"]},
    )


def user(resource: str, login: str, *acls: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A User of the Cluster. `spec` replaces or adds fields of its spec."""
    return {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "User",
        "metadata": {"name": resource},
        "spec": {
            "cluster": {"name": NAME},
            "authentication": {"type": login},
            "authorization": {"type": "simple", "acls": list(acls)},
            **spec,
        },
    }


def on_topic(name: str, *operations: str) -> dict[str, Any]:
    """A rule that allows operations on a topic."""
    return {"resource": {"type": "topic", "name": name}, "operations": list(operations)}


def user_pod(name: str) -> dict[str, Any]:
    """A pod in which a User's Secret is mounted where its files expect it. It sleeps, so that commands can be run in
    it."""
    made = pod(
        name,
        CLIENTS_IMAGE,
        command=["sleep", "infinity"],
        resources=SMALL,
        env=[
            {
                "name": "OTTLA_BOOTSTRAP",
                "valueFrom": {"secretKeyRef": {"name": name, "key": "bootstrap.servers"}},
            }
        ],
        volumeMounts=[
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "user", "mountPath": "/etc/ottla/user", "readOnly": True},
        ],
    )
    made["spec"]["volumes"].append({"name": "user", "secret": {"secretName": name}})
    return made


class Scene:
    """A scenario's namespace, Cluster and clients."""

    def __init__(self, target: Target, namespace: str) -> None:
        self.target = target
        self.namespace = namespace
        self.kube: Kubectl = target.namespace(namespace)
        self.operator = Operator(target)
        self._without_brokers_s = 0.0

    # ---- resources

    def cluster(self) -> dict[str, Any]:
        """The present Cluster."""
        return self.kube.get("clusters.ottla.dev", NAME)

    def change(self, **spec: Any) -> None:
        """Patches the Cluster's spec."""
        self.kube.patch("clusters.ottla.dev", NAME, {"spec": spec})

    def settled(self, seconds: float = 300.0) -> None:
        """Waits until the Cluster is Ready and isn't Progressing."""

        def done() -> bool:
            found = self.cluster()
            return holds(found, "Ready") and condition(found, "Progressing").get("status") != "True"

        try:
            wait("the Cluster is ready", done, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.says()}") from None

    def says(self) -> str:
        """The message in the Cluster's status."""
        return str(self.cluster().get("status", {}).get("message", ""))

    def wait_for(self, kind: str, status: str = "True", seconds: float = 120.0) -> None:
        """Waits until a condition of the Cluster has this status. A missing condition counts as False."""
        wait(f"{kind} is {status}", lambda: condition(self.cluster(), kind).get("status", "False") == status, seconds)

    def topic_settled(self, name: str, seconds: float = 120.0) -> dict[str, Any]:
        """Waits until the Topic is Ready, and returns it."""

        def found() -> dict[str, Any] | None:
            now = self.kube.get("topics.ottla.dev", name)
            return now if holds(now, "Ready") else None

        return wait(f"topic {name} is ready", found, seconds)

    def user_settled(self, name: str, seconds: float = 120.0) -> dict[str, Any]:
        """Waits until the User is Ready, and returns it."""

        def found() -> dict[str, Any] | None:
            now = self.kube.get("users.ottla.dev", name)
            return now if holds(now, "Ready") else None

        return wait(f"user {name} is ready", found, seconds)

    def holders(self, topic: str = TOPIC) -> set[int]:
        """The brokers that have a replica of a topic."""
        (described,) = json.loads(self.ask("topics", "describe", topic, "--json"))
        return {broker for partition in described["partitions"] for broker in partition["replicas"]}

    # ---- pods

    def brokers(self) -> dict[str, dict[str, Any]]:
        """The brokers' pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self.kube.all("pods", BROKERS)}

    def births(self) -> dict[str, str]:
        """The uid of each broker's pod; a recreated pod has another uid."""
        return {name: pod["metadata"]["uid"] for name, pod in self.brokers().items()}

    def told_restarts(self) -> list[str]:
        """The pods' names in the operator's Events about restarts, one entry for each Event."""
        events = self.kube.all("events")
        return [event["message"].split()[0] for event in events if event["reason"] == "RollingRestart"]

    def ask(self, *command: str, seconds: float = 60.0) -> str:
        """Runs `ottla` in the clients' pod and returns its output."""
        return self.kube.execute(CLIENTS, "ottla", *command, seconds=seconds)

    def page(self, broker: str, path: str) -> str:
        """A broker's answer on its HTTP port."""
        return self.page_at(self.brokers()[broker], f"{broker}.{NAME}-brokers", path)

    def page_at(self, pod: dict[str, Any], host: str, path: str) -> str:
        """The answer on the HTTP port of a pod of a broker or a controller, over TLS if the pod says so."""
        scheme = pod["metadata"].get("annotations", {}).get("ottla.dev/pages", "http")
        url = f"{scheme}://{host}:9100{path}"
        anybody = "ssl._create_unverified_context()" if scheme == "https" else None
        code = (
            "import ssl, urllib.request; "
            f"print(urllib.request.urlopen('{url}', timeout=5, context={anybody}).read().decode())"
        )
        return self.kube.execute(CLIENTS, "python", "-c", code)

    def in_sync(self, topic: str = TOPIC, replicas: int = 3, seconds: float = 180.0) -> None:
        """Waits until each partition has this number of replicas, all in sync."""

        def found() -> bool:
            described = json.loads(self.ask("topics", "describe", topic, "--json"))
            (one,) = described if isinstance(described, list) else [described]
            return all(len(partition["isr"]) == replicas for partition in one["partitions"])

        wait(f"{topic} has {replicas} replicas in sync", found, seconds, 1.0)

    # ---- the clients

    def start_clients(self, seconds: float = 120.0) -> None:
        """Creates the topic and the clients' pod, and waits until the first records are acknowledged."""
        self.kube.apply(topic(TOPIC, partitions=PARTITIONS, replicationFactor=3, config={"min.insync.replicas": "2"}))
        self.topic_settled(TOPIC, seconds)
        self.kube.apply(clients_pod())
        self.goes_on(50, 120)

    def progress(self) -> dict[str, Any]:
        """The clients' last report."""
        lines = self.kube("logs", CLIENTS, "--tail=1").strip().splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {"acknowledged": 0, "failed": []}
        return found

    def goes_on(self, records: int = 200, seconds: float = 90.0) -> None:
        """Waits until `records` more records are acknowledged."""
        before = 0
        with suppress(KubectlError, json.JSONDecodeError):
            before = self.progress()["acknowledged"]

        def found() -> bool:
            try:
                now = self.progress()
            except json.JSONDecodeError:
                return False
            assert not now["failed"], now["failed"]
            return bool(now["acknowledged"] >= before + records)

        wait(f"{records} more records are acknowledged", found, seconds, 1.0)

    @contextmanager
    def without_brokers(self) -> Iterator[None]:
        """A context in which the scenario removes all brokers and asks for them again. `finish` doesn't count its
        duration as silence."""
        began = time.monotonic()
        yield
        self._without_brokers_s += time.monotonic() - began

    def finish(self, seconds: float = 240.0, silence_s: float = 30.0) -> dict[str, Any]:
        """Ends the clients and returns their last report. Asserts that there was no violation, and that librdkafka
        never waited longer than `silence_s` for an acknowledgement, apart from times without brokers."""
        self.kube.execute(CLIENTS, "touch", "/tmp/finish")

        def found() -> dict[str, Any] | None:
            last = self.progress()
            return last if "wrong" in last else None

        last = wait("the clients have come to an end", found, seconds, 1.0)
        print(f"{self.namespace}: {last}")
        if last["wrong"]:
            diagnostics.keep_history(self.kube, CLIENTS, ROOT / ".cache/e2e" / self.namespace)
        assert not last["wrong"], "\n".join(last["wrong"])
        silence_s += self._without_brokers_s
        assert last["silence_s"] <= silence_s, f"nothing was acknowledged for {last['silence_s']} s"
        self.kube.execute(CLIENTS, "rm", "/tmp/finish")
        return last


def clients_pod() -> dict[str, Any]:
    """The pod in which `tests/e2e/clients.py` runs."""
    return pod(
        CLIENTS,
        CLIENTS_IMAGE,
        args=["--bootstrap=$(OTTLA_BOOTSTRAP)", f"--partitions={PARTITIONS}"],
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    )


def pod(name: str, image: str, **container: Any) -> dict[str, Any]:
    """A pod with the Cluster's address in its environment."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": POD_SECURITY,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [
                        {
                            "name": "OTTLA_BOOTSTRAP",
                            "valueFrom": {"configMapKeyRef": {"name": f"{NAME}-client", "key": "bootstrap.servers"}},
                        }
                    ],
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    **container,
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


@contextmanager
def namespace(operator: Operator, name: str) -> Iterator[Scene]:
    """A namespace for a scenario that creates its own Cluster. Afterwards all its pods are gone."""
    scene = Scene(operator.target, f"e2e-{name}-{secrets.token_hex(2)}")
    make_namespace(operator.target, scene.namespace)
    began = time.monotonic()
    try:
        yield scene
        assert not (ended := operator.endings()), f"the operator's process ended by itself: {ended}"
    except BaseException:
        folder = ROOT / ".cache" / "e2e" / scene.namespace
        diagnostics.keep(scene.kube, operator.kube, folder)
        print(f"what Kubernetes knew is in {folder}")
        raise
    finally:
        if not os.environ.get("OTTLA_E2E_KEEP"):
            with suppress(KubectlError):  # the scenario may have deleted the namespace
                scene.kube("delete", "namespace", scene.namespace, "--wait=false")
    print(f"{name}: {time.monotonic() - began:.0f} s")
    if not os.environ.get("OTTLA_E2E_KEEP"):
        # The namespace itself stays for another minute: Kubernetes checks it again after half of the pods' grace
        # period.
        wait("its pods are gone", lambda: not scene.kube.all("pods"))


@contextmanager
def working(operator: Operator, name: str, spec: Mapping[str, Any] | None = None) -> Iterator[Scene]:
    """A Cluster with clients at work. At the end the Cluster has to be Ready again, and the clients' history has to be
    correct."""
    with namespace(operator, name) as scene:
        scene.kube.apply(spec or cluster())
        scene.settled()
        scene.start_clients()
        yield scene
        scene.settled()
        scene.goes_on()
        scene.finish()
