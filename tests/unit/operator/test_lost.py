"""A volume counts as lost if the scheduler's message has said for some time that no node can use the volume. Releases
of Kubernetes differ in the message's wording."""

from datetime import UTC, datetime

import pytest

from ottla.operator.plan.lost import waits_for_its_volume

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", True),
        ("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.", True),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, "
            "2 node(s) had volume node affinity conflict.",
            True,
        ),
        (
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) had volume node affinity conflict.",
            False,
        ),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match PersistentVolume's node affinity.",
            False,
        ),
        ("0/3 nodes are available: 3 Insufficient memory.", False),
    ],
)
def test_a_volume_is_lost_where_no_node_that_is_there_can_have_it(message: str, lost: bool) -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": "2026-05-01T11:00:00Z",
        "message": message,
    }
    pod = {"status": {"conditions": [condition]}}
    assert waits_for_its_volume(pod, 600.0, NOW) is lost
    assert not waits_for_its_volume(pod, 7200.0, NOW)
