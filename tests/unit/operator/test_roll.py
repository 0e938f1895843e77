"""Which pod may restart now: a table of situations and decisions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ottla.operator.plan.resize import Resize, not_known
from ottla.operator.plan.roll import Pod, Report, decide, joining

FINE = Report()


def _pod(broker: int, **fields: object) -> Pod:
    pod = Pod(broker, f"k-{broker}", f"uid-{broker}", ready=True, report=FINE)
    return replace(pod, **fields)  # type: ignore[arg-type]


def _three(*changes: Mapping[str, object]) -> list[Pod]:
    """Three healthy pods. Each mapping has the fields to change in one of them, from the first pod on."""
    padded: list[Mapping[str, object]] = [*changes, {}, {}, {}]
    return [_pod(broker, **fields) for broker, fields in enumerate(padded[:3])]


RESIZE = {"resize": Resize("k-2")}
BEGUN = {"resize": Resize("k-2", begun=True, asked=True, waits_for="Deferred: no room")}
STALLED = {"resize": Resize("k-2", begun=True, waits_for="to be asked for")}
UNKNOWN = {"resize": not_known("k-2")}
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
            id="neither may stop: partitions need both",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("offline", "orders-4")}, OLD), "k-1", "Rolling 1/3: restarting k-1", False,
            id="the second may stop, the first may not",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("only_copy", "a-0")}), "k-0", "Rolling 2/3: restarting k-0", False,
            id="one replica: the risk is unavoidable",
        ),
        pytest.param(
            _three({**OLD, "report": _risk("too_few_replicas", "a-0")}), "k-0", "Rolling 2/3: restarting k-0", False,
            id="two replicas and a minimal ISR of two: the risk is unavoidable",
        ),
        pytest.param(
            _three({**OLD, "report": replace(FINE, metadata_connected=False)}), None,
            "Rolling 2/3: waiting for k-0, which doesn't reach the metadata store: no new leaders could be elected",
            False, id="no metadata",
        ),
        pytest.param(
            _three({**OLD, "ready": False, "report": None, "stuck": "ImagePullBackOff"}, OLD), "k-0",
            "Rolling 1/3: restarting k-0", False, id="stuck and outdated: replaced at once",
        ),
        pytest.param(
            _three({"ready": False, "report": None, "stuck": "ImagePullBackOff: no such image"}, OLD), None,
            "Rolling 2/3: waiting for k-0, which is stuck: ImagePullBackOff: no such image", False,
            id="stuck and up to date: the other pods stay as they are",
        ),
        pytest.param(
            _three({**OLD, "ready": False, "report": None, "not_ready_s": 301.0}), "k-0",
            "Rolling 2/3: restarting k-0", False, id="silent for long",
        ),
        pytest.param(
            _three(
                {**OLD, "ready": False, "report": Report(not_ready_because="recovering"), "not_ready_s": 9999.0}
            ), None, "Rolling 2/3: waiting for k-0 to be ready (recovering)", False,
            id="the recovery of logs is never cut short",
        ),
        pytest.param(
            _three({"report": _risk("below_min_isr", "a-0")}), None, "", False,
            id="no roll, and an eviction would be a risk"
        ),
        pytest.param(
            _three({"report": _risk("only_copy", "a-0")}), None, "", True, id="a topic with one replica: may be drained"
        ),
        pytest.param(
            _three({"ready": False, "report": None}), None, "k-0 to be ready", False, id="one pod is away: no eviction"
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
    # Kubernetes itself counts the pods that are away
    assert decide(_three({"ready": False, "report": None}), held={0}).evictable


def test_an_image_with_which_a_removed_broker_is_stuck_costs_no_other_broker() -> None:
    """Before the fix, once the pool of the broker was removed from the spec, the roll went on with the same image."""
    pods = _three({"ready": False, "stuck": "its image can't be pulled", "report": None}, OLD)
    decision = decide(pods, held={0})
    assert decision.restart is None
    assert decision.waits_for == "k-0, which is stuck: its image can't be pulled"


def test_brokers_that_go_for_good_are_not_waited_for() -> None:
    pods = _three({"ready": False, "report": None}, OLD)
    restart = decide(pods, held={0}).restart
    assert restart is not None
    assert restart.pod.name == "k-1"


def _six(*changes: Mapping[str, object]) -> list[Pod]:
    """Two racks, z0 and z1, of three brokers each, all in one StatefulSet. Broker 5 is up to date."""
    padded: list[Mapping[str, object]] = [*[*changes, *([OLD] * 6)][:5], {}]
    return [_pod(broker, **{"rack": f"z{broker // 3}", **fields}) for broker, fields in enumerate(padded)]


GONE: dict[str, object] = {"uid": "", "ready": False, "report": None}
LEAVES: dict[str, object] = {**OLD, "leaving": True, "ready": False}
CATCHES_UP: dict[str, object] = {"report": Report(missing=("a-0",))}
SAFE = dict.fromkeys(range(6), FINE)
OTHER_FILE: dict[str, object] = {**OLD, "file_is_current": False, "file": "new"}


@pytest.mark.parametrize(
    ("pods", "limit", "together", "restarted"),
    [
        pytest.param(_six(LEAVES), 1, SAFE, None, id="a limit of 1: one pod at a time"),
        pytest.param(_six(LEAVES), 2, SAFE, "k-1", id="a limit of 2: another pod of the rack"),
        pytest.param(_six(GONE), 2, SAFE, "k-1", id="the pod that is away is gone already"),
        pytest.param(_six(CATCHES_UP), 2, SAFE, "k-1", id="the pod that was away is ready but isn't in sync"),
        pytest.param(_six(LEAVES, LEAVES), 2, SAFE, None, id="as many are away as may be"),
        pytest.param(_six(LEAVES, LEAVES), 3, SAFE, "k-2", id="one more may be away"),
        pytest.param(_six(CATCHES_UP, LEAVES), 2, SAFE, None, id="a broker that catches up counts as away"),
        pytest.param(_six(LEAVES, LEAVES, LEAVES), 9, SAFE, None, id="a whole rack is away: the other rack waits"),
        pytest.param(_six(LEAVES, OLD, OLD, GONE), 9, SAFE, None, id="a pod of the other rack went by itself"),
        pytest.param(_six(LEAVES), 2, {}, None, id="no broker has reported on a joint stop"),
        pytest.param(
            _six(LEAVES), 2, SAFE | {1: _risk("below_min_isr", "a-0")}, "k-2",
            id="not the pod whose stop would be a risk"
        ),
        pytest.param(
            _six(LEAVES), 2, SAFE | {1: _risk("too_few_replicas", "a-0")}, "k-1", id="the risk is unavoidable"
        ),
        pytest.param(
            _six(LEAVES), 2, dict.fromkeys(range(6), _risk("offline", "a-0")), None,
            id="no other broker has a partition in sync"
        ),
        pytest.param(_six(LEAVES, {**OLD, "report": CONTROLS}), 2, SAFE, "k-2", id="not the active controller"),
        pytest.param(_six({**LEAVES, "rack": ""}), 2, SAFE, None, id="the rack of the pod that is away isn't known"),
        pytest.param(
            [*_six(LEAVES)[:5], _pod(5, **OLD, rack="z1")], 2, SAFE, None, id="no up-to-date pod has become ready yet"
        ),
        pytest.param(
            [*_six(LEAVES)[:5], _pod(5, name="k-other-5", rack="z1")], 2, SAFE, None,
            id="no up-to-date pod of this StatefulSet"
        ),
        pytest.param(
            _six({**GONE, "uid": "u", "stuck": "ImagePullBackOff"}), 3, SAFE, None,
            id="no pod joins one that doesn't start"
        ),
    ],
)  # fmt: skip
def test_who_joins_those_that_are_away(
    pods: list[Pod], limit: int, together: dict[int, Report], restarted: str | None
) -> None:
    decision = decide(pods, limit=limit, together=together)
    assert (decision.restart and decision.restart.pod.name) == restarted
    assert not decision.evictable
    assert decide(pods, limit=limit, together=together, window_open=False).restart is None
    assert decide(pods, limit=limit, together=together, hold="etcd").restart is None


def test_a_file_that_no_broker_was_started_with_is_taken_by_one_broker_at_a_time() -> None:
    """Settings of single brokers don't change the template. Before the fix, a broker without such settings counted as
    the proof that brokers start with them. So with bad settings of single brokers, as many brokers went down as may be
    away at the same time."""
    assert joining(_six(LEAVES, OTHER_FILE, OTHER_FILE), 3)[1] == [], "broker 5 has started with another file"
    started = _pod(5, rack="z1", report=Report(file_checksum="new"))
    able = joining([*_six(LEAVES, OTHER_FILE, {**OTHER_FILE, "file": "newer"})[:5], started], 3)[1]
    assert [pod.id for pod in able] == [1], "broker 5 has started with the new file, and no broker with the newer file"
    as_before = {**OLD, "file_is_current": True, "file": "mine"}
    assert [pod.id for pod in joining(_six(LEAVES, as_before, OTHER_FILE), 3)[1]] == [1], "only the image changes"
    late = _pod(5, rack="z1", file_is_current=False, file="new")
    assert joining([*_six(LEAVES)[:5], late], 3)[1] == [], "broker 5 has started with an outdated file"


def test_the_active_controller_goes_after_those_that_may_go_and_waits_for_nobody_who_may_not() -> None:
    blocked = {**OLD, "report": _risk("offline", "a-0")}
    controls = {**OLD, "report": CONTROLS}
    assert _restarted(_three(controls, blocked, OLD)) == "k-2"
    assert _restarted(_three(controls, blocked, blocked)) == "k-0"
    assert joining(_six(LEAVES, controls), 6)[1] == [_six(LEAVES, controls)[2]], "the controller doesn't join"


def test_who_joins_says_who_is_away() -> None:
    restart = decide(_six(LEAVES, LEAVES), limit=3, together=SAFE).restart
    assert restart is not None
    assert restart.message == "k-2 is restarted: its settings change; k-0 and 1 more is away"


def test_no_more_may_be_evicted_because_more_may_be_restarted() -> None:
    assert decide([_pod(broker, rack="z") for broker in range(3)], limit=3).evictable
    assert not decide([_pod(0, rack="z"), _pod(1, **GONE | {"rack": "z"})], limit=3).evictable


def test_only_who_may_join_is_asked() -> None:
    away, able = joining(_six(LEAVES), 3)
    assert ([pod.id for pod in away], [pod.id for pod in able]) == ([0], [1, 2])
    assert joining(_six(LEAVES), 1)[1] == []
    away, able = joining(_six(GONE, GONE), 2, held={0})
    assert ([pod.id for pod in away], [pod.id for pod in able]) == ([1], [2])


@pytest.mark.parametrize(("limit", "steps"), [(1, 12), (2, 8), (4, 5)])
def test_a_roll_by_racks_takes_everybody_once_and_the_active_controller_alone(limit: int, steps: int) -> None:
    """Three racks of four brokers. A restarted broker is back at the next step, and in each step every broker that may
    go is restarted.
    """
    pods = [_pod(broker, **OLD, rack=f"z{broker % 3}", report=Report(controls=broker == 4)) for broker in range(12)]
    order: list[list[int]] = []
    while any(pod.outdated for pod in pods):
        gone: list[Pod] = []
        for _ in range(12):
            _, able = joining(pods, limit)
            decision = decide(pods, limit=limit, together={pod.id: FINE for pod in able})
            if decision.restart is None:
                break
            assert not decision.evictable
            gone.append(decision.restart.pod)
            pods = [replace(pod, **LEAVES) if pod.id == gone[-1].id else pod for pod in pods]  # type: ignore[arg-type]
        assert 0 < len(gone) <= limit
        assert len({pod.rack for pod in gone}) == 1
        order.append([pod.id for pod in gone])
        pods = [_pod(pod.id, rack=pod.rack) if pod.leaving else pod for pod in pods]
    assert sorted(broker for step in order for broker in step) == list(range(12))
    assert order[0] == [0], "the first broker proves that the others will start"
    assert order[-1] == [4]
    assert len(order) == steps


LACKS = {**OLD, "lacks_volume": True}


def test_who_lacks_a_volume_goes_in_the_order_of_numbers() -> None:
    """Kubernetes creates no pod behind a pod that lacks a volume of its StatefulSet. Before the fix, the roll stopped
    after its first pod."""
    assert _restarted(_three({**LACKS, "report": CONTROLS}, LACKS, LACKS)) == "k-0"
    assert _restarted(_three({}, {**LACKS, "report": CONTROLS}, OLD)) == "k-1"
    blocked = {**LACKS, "report": _risk("below_min_isr", "a-0")}
    assert _restarted(_three(blocked, LACKS, LACKS)) is None
    assert _restarted(_three(blocked, {**OLD, "name": "other-1"})) == "other-1", "another StatefulSet doesn't wait"
    six = _six(LEAVES, LACKS, LACKS)
    assert [pod.id for pod in joining(six, 3)[1]] == [1], "the pods join in the order of their numbers"


def test_who_lacks_a_volume_goes_where_one_behind_it_is_missing() -> None:
    blocked = {**LACKS, "report": _risk("below_min_isr", "a-0")}
    missing = {**GONE, "not_ready_s": 11.0}
    pods = _three(blocked, LACKS, missing)
    decision = decide(pods, window_open=False, hold="its turn")
    assert decision.restart is not None
    assert decision.restart.message == "k-0 is restarted: k-2 waits for this restart"
    decision = decide(pods, others="k-etcd-1 to be back")
    assert (decision.restart, decision.waits_for) == (None, "k-etcd-1 to be back")
    assert _restarted(_three(blocked, LACKS, {**GONE, "not_ready_s": 9.0})) is None, "the pod may still be created"
    assert _restarted(_three({**blocked, "leaving": True}, LACKS, missing)) is None
    assert _restarted(_three({}, missing, blocked)) is None, "no pod before the missing one lacks a volume"
    loses = {**LACKS, "report": _risk("loses_records", "a-0")}
    assert decide(_three(loses, LACKS, missing)).waits_for.startswith("k-0: partition a-0 would lose records")


def test_who_lacks_a_volume_goes_one_at_a_time_though_one_behind_it_is_missing() -> None:
    """Before the fix, each reconcile restarted the next pod while the pod before it was starting, until the StatefulSet
    had no pod left."""
    missing = {**GONE, "not_ready_s": 100.0}
    assert _restarted(_three(LACKS, LACKS, missing)) == "k-0"
    assert _restarted(_three(GONE, LACKS, missing)) is None
    assert _restarted(_three({"ready": False}, LACKS, missing)) is None
    assert _restarted(_three({}, LACKS, missing)) == "k-1"
    apart = {**LACKS, "report": Report(metadata_connected=False)}
    assert _restarted(_three(apart, LACKS, missing)) is None, "the broker doesn't reach the metadata"


def _restarted(pods: list[Pod]) -> str | None:
    restart = decide(pods).restart
    return restart.pod.name if restart else None


def test_a_roll_takes_everybody_once_and_one_at_a_time() -> None:
    """From any beginning, in a world in which a restarted pod comes back healthy."""
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


@pytest.mark.parametrize(
    ("pods", "hold", "window_open", "resized", "restarted", "message"),
    [
        pytest.param(_three(RESIZE, RESIZE), "", True, "k-0", None, "Resizing 1/3: resizing k-0", id="the first"),
        pytest.param(_three(RESIZE), "", False, "k-0", None, "Resizing 2/3: resizing k-0", id="outside of a window"),
        pytest.param(
            _three(RESIZE), "k-etcd-0 to be ready", True, None, None,
            "Resizing 2/3: waiting for k-etcd-0 to be ready", id="not while a pod of etcd is away",
        ),
        pytest.param(
            _three({**RESIZE, "report": _risk("offline", "a-0")}), "", True, "k-0", None, "Resizing 2/3: resizing k-0",
            id="whatever the broker reports: the broker doesn't stop",
        ),
        pytest.param(
            _three(RESIZE, BEGUN), "", True, None, None,
            "Resizing 1/3: waiting for k-1 to have its new resources (Deferred: no room)", id="one at a time",
        ),
        pytest.param(
            _three(BEGUN, OLD), "", True, None, None,
            "Rolling 2/3: waiting for k-0 to have its new resources (Deferred: no room)", id="no restart meanwhile",
        ),
        pytest.param(_three(OLD, RESIZE), "", True, "k-1", None, "Rolling 2/3: resizing k-1", id="before restarts"),
        pytest.param(
            _three(RESIZE, {"ready": False}), "", True, None, None, "Resizing 2/3: waiting for k-1 to be ready",
            id="only while all serve",
        ),
        pytest.param(
            _three({"ready": False, "stuck": "ErrImagePull", **OLD}, BEGUN), "", True, None, "k-0",
            "Rolling 2/3: restarting k-0", id="a stuck pod is replaced during a resize",
        ),
        pytest.param(
            _three(RESIZE, STALLED), "", True, "k-1", None,
            "Resizing 1/3: waiting for k-1 to have its new resources (to be asked for)",
            id="a resize that wasn't accepted is requested again",
        ),
        pytest.param(
            _three(STALLED, OLD), "", True, "k-0", "k-1", "Rolling 2/3: restarting k-1",
            id="a resize that wasn't accepted stops no restart",
        ),
        pytest.param(
            _three(STALLED, OLD), "", False, "k-0", None, "Rolling 2/3: waiting for the next maintenance window",
            id="a closed window stops no request for a resize",
        ),
        pytest.param(
            _three(STALLED, OLD), "k-etcd-0 to be ready", True, None, None,
            "Rolling 2/3: waiting for k-etcd-0 to be ready", id="no request is repeated while a pod of etcd is away",
        ),
        pytest.param(
            _three(STALLED, {"ready": False}), "", True, None, None, "Resizing 2/3: waiting for k-1 to be ready",
            id="no request is repeated while another broker is away",
        ),
        pytest.param(
            _three(UNKNOWN, OLD), "", True, None, "k-1", "Rolling 2/3: restarting k-1",
            id="a resize that isn't known to be enough stops no restart",
        ),
        pytest.param(
            _three(UNKNOWN, RESIZE), "", True, "k-1", None, "Resizing 1/3: resizing k-1",
            id="a resize that isn't known to be enough stops no resize",
        ),
        pytest.param(
            _three(UNKNOWN), "", True, None, None,
            "Resizing 2/3: waiting for k-0 to have its new resources (it isn't known whether they can change in place)",
            id="a resize that isn't known to be enough is waited for",
        ),
    ],
)  # fmt: skip
def test_resizes(
    pods: list[Pod], hold: str, window_open: bool, resized: str | None, restarted: str | None, message: str
) -> None:
    decision = decide(pods, hold=hold, window_open=window_open)
    assert (decision.resize.name if decision.resize else None) == resized
    assert (decision.restart.pod.name if decision.restart else None) == restarted
    assert decision.message == message


def test_who_is_cut_off_from_the_others_goes_one_at_a_time_unless_records_would_be_lost() -> None:
    def chosen(*changes: Mapping[str, object], others: str = "") -> tuple[str | None, str]:
        found = decide(_three(*changes), window_open=False, others=others, cut_off={0, 1})
        assert not found.evictable
        return found.restart.pod.name if found.restart is not None else None, found.waits_for

    risk = {"report": _risk("offline", "orders-0")}
    assert chosen(risk, risk) == ("k-0", "")
    assert chosen(risk) == ("k-1", "")
    assert chosen({"report": Report(controls=True)}) == ("k-1", "")
    assert chosen({}, {}, {"ready": False}) == (None, "k-2 to be ready")
    assert chosen(others="k-etcd-0 to be ready") == (None, "k-etcd-0 to be ready")
    assert chosen({"report": _risk("loses_records", "orders-0")}) == ("k-1", "")
    lossy = {"report": _risk("loses_records", "orders-0")}
    assert chosen(lossy, lossy)[0] is None
