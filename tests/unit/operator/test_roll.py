"""Which pod may restart now: a table of what there is, and what follows."""

from dataclasses import replace

import pytest

from ottla.operator.plan.roll import Pod, Report, decide

FINE = Report()


def _pod(broker: int, **fields: object) -> Pod:
    pod = Pod(broker, f"k-{broker}", f"uid-{broker}", ready=True, report=FINE)
    return replace(pod, **fields)  # type: ignore[arg-type]


def _three(*changes: dict[str, object]) -> list[Pod]:
    """Three pods that are well, but for what the changes say of one after the other."""
    padded = [*changes, {}, {}, {}][:3]
    return [_pod(broker, **fields) for broker, fields in enumerate(padded)]


OLD = {"outdated": "its settings change"}
CONTROLS = Report(controls=True)


def _risk(kind: str, *names: str) -> Report:
    return Report(risks={kind: names})


@pytest.mark.parametrize(
    ("pods", "restarted", "message", "evictable"),
    [
        pytest.param(_three(), None, "", True, id="nothing to do"),
        pytest.param(_three(OLD, OLD, OLD), "k-0", "Rolling 0/3: restarting k-0", False, id="the first"),
        pytest.param(
            _three({**OLD, "report": CONTROLS}, OLD, OLD), "k-1", "Rolling 0/3: restarting k-1", False,
            id="the active controller later",
        ),
        pytest.param(
            _three({**OLD, "report": CONTROLS}), "k-0", "Rolling 2/3: restarting k-0", False,
            id="the active controller last",
        ),
        pytest.param(
            _three({"uid": "", "ready": False, "report": None}, OLD, OLD), None,
            "Rolling 1/3: waiting for k-0 to be created", False, id="one is being replaced",
        ),
        pytest.param(
            _three({"leaving": True, "ready": False}, OLD, OLD), None, "Rolling 1/3: waiting for k-0 to stop", False,
            id="one stops",
        ),
        pytest.param(
            _three({"ready": False, "report": Report(not_ready_because="the logs are being recovered")}, OLD), None,
            "Rolling 2/3: waiting for k-0 to be ready (the logs are being recovered)", False, id="one recovers",
        ),
        pytest.param(
            _three({"report": Report(missing=("a-0", "a-1", "b-0"))}, OLD), None,
            "Rolling 2/3: waiting for k-0 to catch up: partition a-0 and 2 more", False, id="one catches up",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("offline", "orders-4")}, {**OLD, "report": _risk("below_min_isr", "b-1")}),
            None, "Rolling 1/3: waiting for k-0: partition orders-4 has no other in-sync replica", False,
            id="both are needed",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("offline", "orders-4")}, OLD), "k-1", "Rolling 1/3: restarting k-1", False,
            id="another one isn't needed",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("only_copy", "a-0")}), "k-0", "Rolling 2/3: restarting k-0", False,
            id="one replica: unavoidable",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("too_few_replicas", "a-0")}), "k-0", "Rolling 2/3: restarting k-0", False,
            id="two replicas and a minimal ISR of two: unavoidable",
        ),
        pytest.param(
            _three({**OLD, "report": replace(FINE, metadata_connected=False)}), None,
            "Rolling 2/3: waiting for k-0, which doesn't reach the metadata: nobody could be elected in its place",
            False, id="no metadata",
        ),
        pytest.param(
            _three({**OLD, "ready": False, "report": None, "stuck": "ImagePullBackOff"}, OLD), "k-0",
            "Rolling 1/3: restarting k-0", False, id="stuck and outdated: replaced at once",
        ),
        pytest.param(
            _three({"ready": False, "report": None, "stuck": "ImagePullBackOff: no such image"}, OLD), None,
            "Rolling 2/3: waiting for k-0, which is stuck: ImagePullBackOff: no such image", False,
            id="stuck with what is wanted: the others stay as they are",
        ),
        pytest.param(
            _three({**OLD, "ready": False, "report": None, "not_ready_s": 301.0}), "k-0",
            "Rolling 2/3: restarting k-0", False, id="silent for long",
        ),
        pytest.param(
            _three(
                {**OLD, "ready": False, "report": Report(not_ready_because="recovering"), "not_ready_s": 9999.0}
            ), None, "Rolling 2/3: waiting for k-0 to be ready (recovering)", False, id="recovery is never cut short",
        ),
        pytest.param(
            _three({"report": _risk("below_min_isr", "a-0")}), None, "", False, id="no roll, and no eviction either"
        ),
        pytest.param(
            _three({"report": _risk("only_copy", "a-0")}), None, "", True, id="a topic with one replica: may be drained"
        ),
        pytest.param(
            _three({"ready": False, "report": None}), None, "k-0 to be ready", False, id="one is away: no eviction"
        ),
    ],
)  # fmt: skip
def test_decisions(pods: list[Pod], restarted: str | None, message: str, evictable: bool) -> None:
    decision = decide(pods)
    assert (decision.restart and decision.restart.pod.name) == restarted
    assert decision.message == message
    assert decision.evictable is evictable


def test_outside_a_window_only_what_is_stuck_is_replaced() -> None:
    assert decide(_three(OLD), window_open=False).message == "Rolling 2/3: waiting for the next maintenance window"
    stuck = {**OLD, "ready": False, "report": None, "stuck": "CrashLoopBackOff"}
    assert decide(_three(stuck), window_open=False).restart is not None


def test_nodes_are_drained_while_a_roll_waits_for_its_window() -> None:
    assert decide(_three(OLD), window_open=False).evictable
    assert not decide(_three(OLD, {"report": _risk("offline", "a-0")}), window_open=False).evictable
    assert not decide(_three(OLD, {"report": Report(missing=("a-0",))}), window_open=False).evictable


def test_a_broker_that_is_drained_is_not_evicted_with_what_only_it_has() -> None:
    assert not decide(_three({"report": _risk("offline", "a-0")}), held={0}).evictable
    assert not decide(_three({"report": None}), held={0}).evictable
    assert decide(_three(), held={0}).evictable
    assert decide(_three({"ready": False, "report": None}), held={0}).evictable  # Kubernetes counts who is away


def test_brokers_that_go_for_good_are_not_waited_for() -> None:
    pods = _three({"ready": False, "report": None}, OLD)
    restart = decide(pods, held={0}).restart
    assert restart is not None
    assert restart.pod.name == "k-1"


def test_a_roll_takes_everybody_once_and_one_at_a_time() -> None:
    """From any beginning, with a world in which a restarted pod comes back as it should."""
    pods = [_pod(broker, **OLD, report=Report(controls=broker == 2)) for broker in range(5)]
    order = []
    for _ in range(20):
        decision = decide(pods)
        if decision.restart is None:
            break
        gone = decision.restart.pod
        order.append(gone.id)
        away = [replace(pod, uid="", ready=False, report=None) if pod.id == gone.id else pod for pod in pods]
        assert decide(away).restart is None
        assert not decide(away).evictable
        pods = [_pod(pod.id) if pod.id == gone.id else pod for pod in pods]
    assert order == [0, 1, 3, 4, 2]
    assert decide(pods).evictable
