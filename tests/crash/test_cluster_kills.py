"""kill -9 of brokers and etcd under load, rolling restarts: no acknowledged record is lost, doubled or reordered."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.faults import LONG, PARTITIONS, ROUNDS, Scene, scene
from tests.crash.workload import GROUP
from tests.peers.etcd import leads

pytestmark = pytest.mark.timeout(1800 if LONG else 120)

QUICK_DEATH_S = 15.0  # an election takes a quarter of a second; the rest is for busy machines


def test_leaders_are_killed(tmp_path: Path) -> None:
    with scene(tmp_path, ("elections", "ISR changes", "ambiguous writes")) as here:
        for number in range(ROUNDS + 1):
            here.leader_dies(number % PARTITIONS)
        assert not here.group_was_rebalanced()


def test_a_follower_is_killed(tmp_path: Path) -> None:
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=1) as here:
        for number in range(ROUNDS):
            victim = here.follower(number % PARTITIONS)
            here.kill(victim)
            here.goes_on(300)
            here.cluster.brokers[victim].start_again()
            here.in_sync()


def test_the_controller_is_killed(tmp_path: Path) -> None:
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=1) as here:
        for _ in range(ROUNDS):
            victim = here.cluster.controller()
            here.kill(victim)
            here.goes_on()
            assert here.cluster.controller() != victim
            here.cluster.brokers[victim].start_again()
            here.in_sync()


def test_two_brokers_are_killed_one_after_the_other_has_come_back(tmp_path: Path) -> None:
    """The second broker dies while the first one is still catching up: records that are sent meanwhile are acknowledged
    when the first broker has caught up."""
    with scene(tmp_path, ("elections", "ISR changes")) as here:
        for number in range(ROUNDS):
            first = here.leader(number % PARTITIONS)
            second = (first + 1) % 3
            here.kill(first)
            here.goes_on(50)
            here.cluster.brokers[first].start_again()
            here.kill(second)
            here.goes_on(50, 60)
            here.cluster.brokers[second].start_again()
            here.in_sync()


def test_all_brokers_are_killed_at_once(tmp_path: Path) -> None:
    with scene(tmp_path, ("elections", "ISR changes")) as here:
        for _ in range(ROUNDS):
            for number in range(3):
                here.kill(number)
            for broker in here.cluster.brokers:
                broker.start_again()
            here.goes_on(100, 60)
            here.in_sync()


def test_who_is_killed_is_not_waited_for_and_who_is_silent_is(tmp_path: Path) -> None:
    """The session's time-out is a minute, so a paused leader keeps its leadership for that long. If a broker or
    controller is killed, its closed sockets cause a faster failover."""
    session = {"broker_session_timeout_ms": "60000"}
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=1, **session) as here:
        for number in range(ROUNDS):
            index = number % PARTITIONS
            victim = here.leader(index)
            here.fault("SIGSTOP of a leader")
            here.cluster.brokers[victim].pause()
            time.sleep(4)
            assert here.leader(index) == victim
            here.cluster.brokers[victim].go_on()
            here.goes_on()
            for victim in dict.fromkeys((here.leader(index), here.cluster.controller())):
                here.kill(victim)
                if here.leader(index) == victim:
                    here.moved(victim, index, QUICK_DEATH_S)
                here.goes_on(20, QUICK_DEATH_S)
                assert here.cluster.controller() != victim
                here.cluster.brokers[victim].start_again()
                here.in_sync()


def test_the_coordinator_of_a_group_is_killed(tmp_path: Path) -> None:
    """Another broker takes the group over in the same generation: its members get no new assignments, and their commits
    are accepted."""
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=1) as here:
        for _ in range(ROUNDS):
            victim = here.cluster.coordinator(GROUP)
            here.kill(victim)
            here.cluster.wait("another coordinator", lambda victim=victim: here.cluster.coordinator(GROUP) != victim)
            committed = commits_of_members(here)
            here.cluster.wait("commits", lambda seen=committed: commits_of_members(here) > seen + 20)
            here.cluster.brokers[victim].start_again()
            here.in_sync()
        assert not here.group_was_rebalanced()


def commits_of_members(here: Scene) -> int:
    """The number of commits that were acknowledged to the group's members."""
    events = here.workload.history.events
    return sum(event["op"] == "commit" and event["phase"] == "ok" and event["group"] == GROUP for event in events)


def test_members_of_etcd_are_killed(tmp_path: Path) -> None:
    """The leader of etcd dies. While two of three members are left, a leader of partitions dies, too."""
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=3) as here:
        for number in range(ROUNDS):
            member = next(member for member in here.cluster.etcd if leads(member))
            here.fault("kill -9 of etcd's leader")
            member.kill()
            here.goes_on()
            victim = here.leader(number % PARTITIONS)
            here.kill(victim)
            here.moved(victim, number % PARTITIONS)
            here.goes_on()
            member.start()
            here.cluster.brokers[victim].start_again()
            here.in_sync()


def test_the_only_etcd_is_killed(tmp_path: Path) -> None:
    """While etcd is dead, clients produce and consume, and a topic's creation waits. After etcd's restart the topic is
    created, and elections work again."""
    with scene(tmp_path, ("elections", "ISR changes"), etcd_members=1) as here:
        (etcd,) = here.cluster.etcd
        admin = AdminClient({"bootstrap.servers": here.cluster.bootstrap, "log_level": 0})
        for number in range(ROUNDS):
            here.fault("kill -9 of the only etcd")
            etcd.kill()
            here.goes_on(600)
            waiting = admin.create_topics([NewTopic(f"meanwhile-{number}", 1, 3)], request_timeout=30)
            etcd.start()
            waiting[f"meanwhile-{number}"].result(30)
            here.leader_dies()


def test_a_rolling_bounce_is_no_event_for_a_producer(tmp_path: Path) -> None:
    """The brokers get SIGTERM one after the other: each hands its leaderships over before it closes a socket."""
    with scene(tmp_path, ("elections", "ISR changes")) as here:
        worst = median(bounce(here) for _ in range(ROUNDS))
        if worst >= 1:  # the test tries again, because the machine may have been busy
            worst = bounce(here)
        assert worst < 1
        assert not here.group_was_rebalanced()


def bounce(here: Scene) -> float:
    """Restarts all brokers, one by one. Returns the 99.9th percentile of the latencies of produced records meanwhile,
    in seconds."""
    began = time.monotonic()
    for broker in here.cluster.brokers:
        here.fault("clean restart")
        broker.restart()
        here.in_sync()
    latencies = sorted(took for sent, took in here.workload.acknowledged if sent > began)
    worst = latencies[int(len(latencies) * 0.999)]
    print(f"{len(latencies)} records during the bounce: p99.9 {worst:.3f} s, longest {latencies[-1]:.3f} s")
    return worst
