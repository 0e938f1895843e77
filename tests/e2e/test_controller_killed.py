"""The broker that is the active controller dies: another one takes over, and topics can be created meanwhile."""

from __future__ import annotations

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import Scene, topic, working

METRIC = "kafka_controller_kafkacontroller_activecontrollercount"


def test_controller_killed(operator: Operator) -> None:
    with working(operator, "controller") as scene:
        scene.in_sync()
        for number in range(2):
            victim = controller(scene)
            scene.kube.delete("pod", victim, "--grace-period=0", "--force", "--wait=false")
            scene.kube.apply(topic(f"meanwhile-{number}", partitions=1))
            scene.topic_settled(f"meanwhile-{number}")
            scene.goes_on()
            assert controller(scene) != victim
            scene.settled()
            scene.in_sync()


def controller(scene: Scene) -> str:
    """The pod of the active controller. Waits until there is one."""

    def found() -> str | None:
        for name in scene.brokers():
            page = scene.page(name, "/metrics")
            if any(line.startswith(METRIC) and float(line.split()[-1]) == 1 for line in page.splitlines()):
                return name
        return None

    return wait("a controller", found, 30)
