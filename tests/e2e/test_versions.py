"""Brokers of an older commit are upgraded to this one, and downgraded, one by one, and no client notices.

The older commit is the one before HEAD, or OTTLA_PREVIOUS. Only the brokers' image differs; the operator is of this
commit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import Scene, cluster, working
from tests.peers.previous import previous_sources

PREVIOUS_IMAGE = "ottla:previous"


def test_versions(operator: Operator, tmp_path: Path) -> None:
    builder = operator.target.builder
    if builder is None:
        pytest.skip("needs an image of an older commit, and this cluster's nodes have only what is present")
    builder.provide_brokers_of(previous_sources(tmp_path), PREVIOUS_IMAGE)
    with working(operator, "versions", cluster(image=PREVIOUS_IMAGE)) as scene:
        scene.in_sync()
        for image in (None, PREVIOUS_IMAGE):
            scene.change(image=image)
            wait("every broker is of the other version", partial(all_are, scene, image), 400)
            scene.settled()
            scene.in_sync()
            scene.goes_on()


def all_are(scene: Scene, image: str | None) -> bool:
    """Whether every broker's pod has this image. None stands for the operator's default image."""
    images = [pod["spec"]["containers"][0]["image"] for pod in scene.brokers().values()]
    return len(images) == 3 and all((each == PREVIOUS_IMAGE) == (image == PREVIOUS_IMAGE) for each in images)
