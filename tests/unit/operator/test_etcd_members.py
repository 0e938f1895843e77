"""etcd's list of members changes step by step from any state to the wanted one, and never loses its majority."""

import itertools
from typing import Any

import pytest

from ottla.operator.plan.etcd_members import (
    Add,
    Member,
    Remove,
    Seen,
    StartNow,
    left_behind,
    next_step,
    replicas,
    start_rules,
)
from ottla.operator.plan.etcd_pods import member_names, peer_url, quota_bytes
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, Volume, parse_cluster


def _cluster(members: int) -> tuple[Cluster, Etcd]:
    spec: dict[str, Any] = {
        "brokers": {"replicas": 3, "storage": {"size": "1Gi"}},
        "metadata": {"etcd": {"members": members}},
    }
    cluster = parse_cluster({"metadata": {"namespace": "n", "name": "k"}, "spec": spec}, Defaults("i", "e"))
    assert isinstance(cluster.metadata, Etcd)
    return cluster, cluster.metadata


def _members(cluster: Cluster, *names: str) -> list[Member]:
    return [Member(f"id-{name}", name, peer_url(cluster, name)) for name in names]


def test_a_member_without_data_is_removed_then_added_then_started() -> None:
    cluster, etcd = _cluster(3)
    names = member_names(cluster, etcd)
    members = _members(cluster, *names)
    seen = [Seen(names[0], True), Seen(names[1], False, no_data=True, uid="u"), Seen(names[2], True)]
    step = next_step(cluster, etcd, members, seen)
    assert isinstance(step, Remove)
    assert step.member.name == names[1]
    members.remove(step.member)
    assert next_step(cluster, etcd, members, seen) == Add(names[1], peer_url(cluster, names[1]))
    members.append(Member("id-new", "", peer_url(cluster, names[1])))
    rules = start_rules(cluster, etcd, members, formed=True)
    assert rules[f"join-{names[1]}"] == "id-new"
    assert names[1] in rules["initial-cluster"]
    assert next_step(cluster, etcd, members, seen) == StartNow(names[1], "u")


def test_without_a_majority_nothing_is_removed() -> None:
    cluster, etcd = _cluster(3)
    names = member_names(cluster, etcd)
    seen = [Seen(names[0], True), Seen(names[1], False, no_data=True), Seen(names[2], False)]
    assert next_step(cluster, etcd, _members(cluster, *names), seen) is None


def test_a_single_member_that_lost_its_data_waits_for_a_person() -> None:
    cluster, etcd = _cluster(1)
    (name,) = member_names(cluster, etcd)
    assert next_step(cluster, etcd, _members(cluster, name), [Seen(name, False, no_data=True)]) is None
    assert start_rules(cluster, etcd, None, formed=True)["state"] == "existing"


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 3), (1, 1)])
def test_more_and_fewer_members(before: int, after: int) -> None:
    """The test starts each member as soon as the rules allow the member to start. At each step a majority of the listed
    members runs, unless only two are listed: then the second one may just have been added. In the end the list is as
    wanted.
    """
    cluster, etcd = _cluster(after)
    present = [f"k-etcd-{number}" for number in range(before)]
    members = _members(cluster, *present)
    wanted = member_names(cluster, etcd)
    for serial in itertools.count():
        assert serial < 20
        started = {member.name for member in members if member.name}
        pods = sorted({*present, *wanted})
        seen = [Seen(name, name in started, no_data=name not in started) for name in pods]
        assert len(started) >= len(members) // 2 + 1 or len(members) == 2
        step = next_step(cluster, etcd, members, seen)
        if step is None:
            break
        if isinstance(step, Remove):
            members.remove(step.member)
        elif isinstance(step, Add):
            members.append(Member(f"id-{serial}", "", step.peer_url))
        else:
            url = peer_url(cluster, step.name)
            assert f"join-{step.name}" in start_rules(cluster, etcd, members, formed=True)
            members = [Member(one.id, step.name, url) if one.peer_url == url else one for one in members]
    assert sorted(member.name for member in members) == wanted


def test_before_there_is_an_etcd_everybody_may_form_one_and_afterwards_nobody() -> None:
    cluster, etcd = _cluster(3)
    first = start_rules(cluster, etcd, None, formed=False)
    assert first["state"] == "new"
    assert first["initial-cluster"].count("=http://") == 3
    later = start_rules(cluster, etcd, _members(cluster, *member_names(cluster, etcd)), formed=True)
    assert later == {**first, "state": "existing"}


def test_a_database_leaves_room_for_its_defragmentation() -> None:
    assert quota_bytes(Volume("2Gi")) < 2**30
    assert quota_bytes(Volume("1Ti")) == 8 * 2**30


def test_a_member_that_goes_stays_until_it_is_off_the_list_and_leaves_no_volume() -> None:
    cluster, etcd = _cluster(1)
    three = _members(cluster, "k-etcd-0", "k-etcd-1", "k-etcd-2")
    claims = ["data-k-etcd-0", "data-k-etcd-1", "data-k-etcd-2", "k-etcd-snapshots"]
    assert replicas(cluster, etcd, three, 3) == 3
    assert replicas(cluster, etcd, None, 3) == 3
    assert left_behind(cluster, etcd, None, claims) == []
    assert replicas(cluster, etcd, three[:2], 3) == 2
    assert left_behind(cluster, etcd, three[:2], claims) == ["data-k-etcd-2"]
    assert replicas(cluster, etcd, three[:1], 2) == 1
    assert left_behind(cluster, etcd, three[:1], claims) == ["data-k-etcd-1", "data-k-etcd-2"]
