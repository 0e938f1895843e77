"""Users log in with what their Secrets hold, get other rights and other passwords, and lose everything with their
resource. The brokers' pods stay the same ones all the while."""

from __future__ import annotations

import base64
import json

from tests.e2e.installed import Operator
from tests.e2e.kubectl import KubectlError, condition, wait
from tests.e2e.scene import Scene, on_topic, secure_cluster, topic, user, user_pod, working

KIND = "users.ottla.dev"
PROPERTIES = "/etc/ottla/user/client.properties"
LIBRDKAFKA = """
import sys
from confluent_kafka import Producer
settings = dict(line.rstrip("\\n").split("=", 1) for line in open("/etc/ottla/user/librdkafka.conf"))
outcomes = []
producer = Producer({**settings, "message.timeout.ms": 20000})
def answered(error, _): outcomes.append("written" if error is None else error.name())
producer.produce(sys.argv[1], b"record", on_delivery=answered)
producer.flush(30)
print(*outcomes)
"""


def test_users(operator: Operator) -> None:
    with working(operator, "users", secure_cluster()) as scene:
        births = scene.births()
        scene.kube.apply(topic("orders", partitions=2), topic("secrets", partitions=1))
        scene.topic_settled("orders")
        scene.topic_settled("secrets")
        for name, authentication in (("app", "tls"), ("shop", "scram-sha-512")):
            scene.kube.apply(user(name, authentication, on_topic("orders", "Write", "Describe")))
            found = scene.user_settled(name)
            assert found["status"]["secret"] == name
            scene.kube.apply(user_pod(name))
            scene.kube("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s", seconds=150)
            produces(scene, name)
        is_refused(scene)
        gets_other_rights(scene)
        gets_another_password(scene)
        gets_another_certificate(scene)
        leaves(scene)
        assert scene.births() == births


def written(scene: Scene, name: str, topic_name: str) -> bool:
    """Whether a record of a User's pod is written, by librdkafka."""
    return scene.kube.execute(name, "python", "-c", LIBRDKAFKA, topic_name).strip() == "written"


def topics_seen(scene: Scene, name: str) -> list[str]:
    """The topics that `ottla` sees with a User's properties."""
    listed = scene.kube.execute(name, "ottla", "topics", "list", "--json", "--command-config", PROPERTIES)
    return [one["name"] for one in json.loads(listed)]


def produces(scene: Scene, name: str) -> None:
    """The User writes to its topic and to no other, and sees no other one."""
    assert written(scene, name, "orders")
    assert not written(scene, name, "secrets")
    assert topics_seen(scene, name) == ["orders"]


def is_refused(scene: Scene) -> None:
    """Mistakes are refused at apply. A second User of one name, and a missing Secret, are conditions."""
    assert "operations" in scene.kube.refused(user("wrong", "tls", on_topic("orders", "ClusterAction")))
    assert "renewalDays" in scene.kube.refused(
        user("wrong", "tls", authentication={"type": "tls", "validityDays": 7, "renewalDays": 7})
    )
    source = {"valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "password"}}}
    scene.kube.apply(
        user("second", "scram-sha-512", name="shop"),
        user("waits", "scram-sha-512", authentication={"type": "scram-sha-512", "password": source}),
    )
    for name, reason in (("second", "ResourceConflict"), ("waits", "PasswordMissing")):
        wait(f"{name} is refused", lambda: condition(scene.kube.get(KIND, name), "Ready").get("reason") == reason)  # noqa: B023
        scene.kube.delete(KIND, name)


def gets_other_rights(scene: Scene) -> None:
    scene.kube.apply(user("shop", "scram-sha-512", on_topic("secrets", "Write", "Describe")))
    wait("the rights are the new ones", lambda: topics_seen(scene, "shop") == ["secrets"])
    assert written(scene, "shop", "secrets")
    assert not written(scene, "shop", "orders")
    scene.ask("acls", "create", "--allow", "User:shop", "--topic", "orders", "--operation", "all")
    wait("an ACL of somebody else is taken away", lambda: topics_seen(scene, "shop") == ["secrets"], 240)


def part(scene: Scene, name: str, key: str) -> bytes:
    """A part of a User's Secret."""
    return base64.b64decode(scene.kube.get("secret", name)["data"][key])


def gets_another_password(scene: Scene) -> None:
    """By the annotation, and by deleting the Secret. Kubernetes brings the new files into the pod."""
    before = part(scene, "shop", "password")
    scene.kube("annotate", "--overwrite", KIND, "shop", "ottla.dev/force-renew=once")
    wait("there is another password", lambda: part(scene, "shop", "password") != before)
    wait("the pod logs in with it", lambda: works(scene, "shop"), 180, 2.0)
    before = part(scene, "shop", "password")
    scene.kube.delete("secret", "shop")
    wait("there is a third password", lambda: part(scene, "shop", "password") != before, 240)
    wait("the pod logs in with it", lambda: works(scene, "shop"), 180, 2.0)


def gets_another_certificate(scene: Scene) -> None:
    before = part(scene, "app", "user.crt")
    scene.kube("annotate", "--overwrite", KIND, "app", "ottla.dev/force-renew=once")
    wait("there is another certificate", lambda: part(scene, "app", "user.crt") != before)
    assert written(scene, "app", "orders"), "the earlier certificate is valid until it ends"


def works(scene: Scene, name: str) -> bool:
    """Whether a User's pod can log in with the files that it has now."""
    try:
        return bool(topics_seen(scene, name))
    except KubectlError:
        return False


def leaves(scene: Scene) -> None:
    """A deleted User has nothing any more, and its Secret is gone."""
    for name in ("app", "shop"):
        scene.kube.delete(KIND, name)
    wait("no ACL is left", lambda: json.loads(scene.ask("acls", "list", "--json")) == [])
    wait("no password is left", lambda: json.loads(scene.ask("users", "list", "--json")) == [])
    wait("no Secret is left", lambda: not scene.kube.find("secret", "app") and not scene.kube.find("secret", "shop"))
    assert not works(scene, "shop")
