"""Users live in their application's namespace. Two Clusters have a User of one name each there, and neither touches the
other's: the Cluster that allows the namespace by a label loses it with the label, and takes the rights away."""

from __future__ import annotations

import json

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import NAME, Scene, namespace, on_topic, secure_cluster, user, working

KIND = "users.ottla.dev"
LABEL = "orders-of"


def test_users_of_two_clusters(operator: Operator) -> None:
    selector = {"allowedNamespaces": "Selector", "namespaceSelector": {"matchLabels": {LABEL: NAME}}}
    first = secure_cluster()
    first["spec"] |= {"users": selector}
    with namespace(operator, "users-second") as second, working(operator, "users-first", first) as scene:
        another = secure_cluster()
        another["spec"]["brokers"]["replicas"] = 1
        another["spec"]["users"] = {"allowedNamespaces": "All"}
        second.kube.apply(another)
        second.settled()
        with namespace(operator, "users-applications") as applications:
            asks_to_be_allowed(scene, applications)
            has_a_user_of_each(scene, second, applications)
            loses_one_and_keeps_the_other(scene, second, applications)


def has_users(scene: Scene, *names: str) -> bool:
    """Whether the Cluster has passwords of these users, and of no others, and ACLs for them alone."""
    passwords = {one["user"] for one in json.loads(scene.ask("users", "list", "--json"))}
    principals = {one["principal"] for one in json.loads(scene.ask("acls", "list", "--json"))}
    return passwords == set(names) and principals == {f"User:{name}" for name in names}


def reason(scene: Scene, resource: str) -> str:
    return str(condition(scene.kube.get(KIND, resource), "Ready").get("reason", ""))


def of(scene: Scene, resource: str) -> dict[str, object]:
    """A User of the Cluster in this scene's namespace, whose name in Kafka is `shop` in each of them."""
    rule = on_topic("orders", "Write", "Describe")
    return user(resource, "scram-sha-512", rule, name="shop", cluster={"name": NAME, "namespace": scene.namespace})


def asks_to_be_allowed(scene: Scene, applications: Scene) -> None:
    applications.kube.apply(of(scene, "shop"))
    wait("it isn't allowed", lambda: reason(applications, "shop") == "NamespaceNotAllowed")
    assert not applications.kube.find("secret", "shop")
    scene.kube("label", "namespace", applications.namespace, f"{LABEL}={NAME}")
    applications.user_settled("shop", 240)


def has_a_user_of_each(scene: Scene, second: Scene, applications: Scene) -> None:
    applications.kube.apply(of(second, "shop-of-second"))
    applications.user_settled("shop-of-second")
    wait("the first Cluster has its user", lambda: has_users(scene, "shop"))
    parts = [applications.kube.get("secret", name)["data"] for name in ("shop", "shop-of-second")]
    assert parts[0]["password"] != parts[1]["password"]
    assert parts[0]["bootstrap.servers"] != parts[1]["bootstrap.servers"]


def loses_one_and_keeps_the_other(scene: Scene, second: Scene, applications: Scene) -> None:
    applications.kube("label", "namespace", applications.namespace, f"{LABEL}-")
    wait("the first Cluster has taken everything away", lambda: has_users(scene), 240)
    assert reason(applications, "shop") == "NamespaceNotAllowed"
    assert reason(applications, "shop-of-second") == "Ready"
    applications.kube.delete(KIND, "shop")
    wait("its Secret is gone", lambda: not applications.kube.find("secret", "shop"))
    assert applications.kube.find("secret", "shop-of-second")
