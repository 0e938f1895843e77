"""A cluster goes from plain text to certificates and rights by changes of its spec, and no client notices.

Clients at the plain listener are at work until they leave; a client with a certificate comes in the middle, and stays.
"""

from __future__ import annotations

from typing import Any

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.numbered import PARTITIONS, Numbered, settings_of
from tests.e2e.scene import NAME, Scene, cluster, namespace, topic

PLAIN = {"name": "plain", "port": 9092, "type": "Internal"}
INSIDE = {"name": "inside", "port": 9093, "type": "Internal", "tls": True, "authentication": {"type": "tls"}}
OUTSIDE = {**INSIDE, "name": "outside", "port": 9094, "type": "NodePort"}
LINKS = "ottla.dev/links"


def test_secure_rollout(operator: Operator) -> None:
    with namespace(operator, "secure-rollout") as scene:
        scene.kube.apply(cluster(internalTls=False, listeners=[PLAIN]))
        scene.settled()
        scene.start_clients()
        assert links(scene) == {""}

        changed(scene, listeners=[PLAIN, INSIDE, OUTSIDE])
        scene.kube.apply(topic("numbered", partitions=PARTITIONS, replicationFactor=3))
        scene.topic_settled("numbered")
        numbered = Numbered(settings_of(scene, "outside", "app"), "numbered")
        numbered.start()
        numbered.goes_on()

        changed(scene, internalTls=True)
        wait("the links between brokers are encrypted", lambda: links(scene) == {"ENCRYPTED"}, 900, 1.0)
        scene.settled()
        assert scene.cluster()["status"]["encryptedLinks"] is True
        scene.goes_on()
        numbered.goes_on()

        changed(scene, authorization={"type": "simple", "superUsers": ["User:CN=app", "User:ANONYMOUS"]})
        scene.goes_on()
        scene.finish()

        changed(
            scene,
            listeners=[INSIDE, OUTSIDE],
            authorization={"type": "simple", "superUsers": ["User:CN=app"]},
        )
        ports = scene.kube.get("service", f"{NAME}-bootstrap")["spec"]["ports"]
        assert {each["port"] for each in ports} == {9093, 9089}
        numbered.goes_on()
        numbered.finish()
        scene.topic_settled("numbered")


def changed(scene: Scene, **spec: Any) -> None:
    """Changes the spec, and waits until every pod was made for it."""
    before = scene.births()
    scene.change(**spec)
    wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 600)
    scene.settled()


def links(scene: Scene) -> set[str]:
    """The stages of the links between brokers in the pods' annotations."""
    return {pod["metadata"].get("annotations", {}).get(LINKS, "") for pod in scene.brokers().values()}
