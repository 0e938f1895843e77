"""The record of the Topics that this Kubernetes has had, in a ConfigMap."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, Ref
from ottla.operator.plan.remembered import Remembered, read_record, record
from ottla.operator.refusals import NameTaken
from ottla.operator.topic_memory import TopicMemory
from tests.operator.kube_stand_in import KubeStandIn

MAIN = Ref("shop", "main")
A, B, C = (str(UUID(int=number << 90, version=4)) for number in (1, 2, 3))


def written(uids: list[str]) -> Object:
    return record(read_record(MAIN, "c-1", None), uids)


def test_a_record_is_read_as_it_was_written() -> None:
    memory = read_record(MAIN, "c-1", written(["u-1", "u-2"]))
    assert (memory.has("u-1"), memory.has("u-2"), memory.has("u-3")) == (True, True, False)


def test_no_record_remembers_nothing() -> None:
    assert not read_record(MAIN, "c-1", None).has("u-1")
    emptied: Object = {**written(["u-1"]), "data": None}
    assert not read_record(MAIN, "c-1", emptied).has("u-1")


def test_the_record_of_a_cluster_that_had_the_name_before_remembers_nothing() -> None:
    assert not read_record(MAIN, "c-2", written(["u-1"])).has("u-1")
    orphaned = written(["u-1"])
    del orphaned["metadata"]["ownerReferences"]
    assert not read_record(MAIN, "c-1", orphaned).has("u-1")


def test_seventy_thousand_topics_fit_into_a_config_map() -> None:
    uids = [str(UUID(int=number << 80, version=4)) for number in range(70_000)]
    memory = TopicMemory(kube := KubeStandIn())
    asyncio.run(memory.remember(read_record(MAIN, "c-1", None), uids, uids))
    assert len(kube.objects["ConfigMap", "shop", "main-topics"]["data"]["uids"]) < 1024 * 1024


def remember(kube: KubeStandIn, new: list[str], named: list[str], cluster_uid: str = "c-1") -> Remembered:
    """Adds Topics to the Cluster's record of the Topics that were seen. Returns the record as it is read afterwards."""

    async def whole() -> Remembered:
        memory = TopicMemory(kube)
        await memory.remember(await memory.read(MAIN, cluster_uid), new, named)
        return await memory.read(MAIN, cluster_uid)

    return asyncio.run(whole())


def test_topics_are_added_and_those_that_nothing_names_are_forgotten_with_the_next() -> None:
    kube = KubeStandIn()
    assert remember(kube, [A], [A]).has(A)
    after = remember(kube, [B], [A, B])
    assert (after.has(A), after.has(B)) == (True, True)
    after = remember(kube, [C], [B, C])
    assert (after.has(A), after.has(B), after.has(C)) == (False, True, True)


def test_nothing_is_written_where_nothing_is_new() -> None:
    kube = KubeStandIn()
    remember(kube, [A], [A])
    kube.writes.clear()
    remember(kube, [], [A])
    remember(kube, [A], [A])
    remember(kube, [], [])
    assert kube.writes == []


def test_a_cluster_takes_over_the_record_of_the_one_that_had_its_name_before() -> None:
    kube = KubeStandIn()
    remember(kube, [A], [A], "c-1")
    after = remember(kube, [B], [B], "c-2")
    assert (after.has(A), after.has(B)) == (False, True)
    (owner,) = kube.objects["ConfigMap", "shop", "main-topics"]["metadata"]["ownerReferences"]
    assert owner["uid"] == "c-2"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "main", "uid": "d-1"}]},
        {"ownerReferences": [{"apiVersion": "ottla.dev/v1alpha1", "kind": "Cluster", "name": "other", "uid": "c-2"}]},
        {"labels": written([])["metadata"]["labels"]},
    ],
    ids=["nobody's", "of a Deployment", "of another Cluster", "labelled as the record is"],
)
def test_somebody_elses_config_map_is_not_taken_over_for_the_record(metadata: Object) -> None:
    """Before the fix, such a ConfigMap got the Cluster as its owner, and was deleted with the Cluster."""
    kube = KubeStandIn()
    kube.put("ConfigMap", "main-topics", data={"topics.txt": "orders"}, metadata=metadata)
    before = kube.backup()
    with pytest.raises(NameTaken, match="the ConfigMap main-topics exists already and doesn't belong to this Cluster"):
        remember(kube, [A], [A])
    assert kube.writes == []
    assert kube.objects == before
    memory = asyncio.run(TopicMemory(kube).read(MAIN, "c-1"))
    assert not memory.has(A), "so the topic is kept when its Topic is deleted"


def test_a_record_that_was_left_without_an_owner_is_taken_over() -> None:
    """The old Cluster's objects were orphaned, or a backup was restored without owners."""
    kube = KubeStandIn()
    remember(kube, [A], [A], "c-1")
    left = kube.objects["ConfigMap", "shop", "main-topics"]
    del left["metadata"]["ownerReferences"]
    left["metadata"]["labels"]["velero.io/restore-name"] = "shop"
    after = remember(kube, [B], [B], "c-2")
    assert (after.has(A), after.has(B)) == (False, True)
    (owner,) = left["metadata"]["ownerReferences"]
    assert owner["uid"] == "c-2"


def test_a_record_that_has_changed_since_it_was_read_is_not_written() -> None:
    """This happens if Kubernetes is restored between a read and the write that follows from it."""

    async def scene() -> None:
        kube = KubeStandIn()
        memory = TopicMemory(kube)
        await memory.remember(await memory.read(MAIN, "c-1"), [A], [A])
        backup = kube.backup()
        await memory.remember(await memory.read(MAIN, "c-1"), [B], [A, B])
        seen = await memory.read(MAIN, "c-1")
        kube.restore(backup)
        with pytest.raises(KubeError):
            await memory.remember(seen, [C], [A, B, C])
        assert not (await memory.read(MAIN, "c-1")).has(C)

    asyncio.run(scene())


def test_a_record_that_was_made_since_none_was_found_is_not_written() -> None:
    """This happens if Kubernetes is restored between a read that finds no record and the write that follows from it.
    Before the fix, the operator's memory became the record, and Topics that Kubernetes had never had counted as
    deleted.
    """

    async def scene() -> None:
        kube = KubeStandIn()
        memory = TopicMemory(kube)
        await memory.remember(await memory.read(MAIN, "c-1"), [A], [A])
        backup = kube.backup()
        kube.objects.clear()
        seen = await memory.read(MAIN, "c-1")
        kube.restore(backup)
        with pytest.raises(KubeError):
            await memory.remember(seen, [B], [A, B])
        now = await memory.read(MAIN, "c-1")
        assert (now.has(A), now.has(B)) == (True, False)

    asyncio.run(scene())
