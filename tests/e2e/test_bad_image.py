"""A missing image stops the roll at the first broker, and the status names it; the right image lets the roll go on."""

from __future__ import annotations

import time

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import working
from tests.e2e.target import BROKER_IMAGE


def test_bad_image(operator: Operator) -> None:
    with working(operator, "bad-image") as scene:
        scene.in_sync()
        before = scene.births()
        scene.change(image="ottla:missing")
        wait("a broker can't start", lambda: len(set(before.values()) - set(scene.births().values())) == 1, 120)
        wait("the status names the image", lambda: "image" in scene.says().lower(), 60)
        time.sleep(20)
        assert len(set(before.values()) & set(scene.births().values())) == 2
        assert condition(scene.cluster(), "Ready")["status"] == "False"
        scene.goes_on()
        scene.change(image=BROKER_IMAGE)
        scene.settled()
        scene.in_sync()
