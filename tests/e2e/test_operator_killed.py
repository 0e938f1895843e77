"""The operator dies twice in the middle of a roll: the roll is completed, and each broker is restarted once."""

from __future__ import annotations

from functools import partial

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import working


def test_operator_killed(operator: Operator) -> None:
    with working(operator, "operator-killed") as scene:
        scene.in_sync()
        before = scene.births()
        seen: dict[str, set[str]] = {name: set() for name in before}

        def restarted(least: int) -> bool:
            for name, uid in scene.births().items():
                seen[name].add(uid)
            return sum(len(uids - {before[name]}) for name, uids in seen.items()) >= least

        scene.change(config={"socket.request.max.bytes": "100000000"})
        for killed in (1, 2):
            wait(f"{killed} brokers were restarted", partial(restarted, killed), 180)
            operator.kill()
        wait("all brokers were restarted", partial(restarted, 3), 300)
        scene.settled()
        scene.goes_on()
        assert not restarted(4), seen
        scene.in_sync()
