"""The operator's process at a real API server, behind the proxy of faults: it dies between writes, and in the end its
objects are the same as without faults."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.operator.found import OWNED
from ottla.operator.kube import Kube
from ottla.operator.objects import Object
from ottla.operator.queue import RESYNC_S
from tests.e2e.chaos.faults import Chances, Faults, missing
from tests.e2e.chaos.supervisor import Supervisor, Upstream
from tests.operator.conftest import Scene
from tests.operator.test_on_an_api_server import KEY, cluster
from tests.peers.kube_apiserver import TOKEN, KubeApiServer
from tests.peers.wire import free_port

pytestmark = pytest.mark.timeout(900)

SEED = 1
ROUNDS_MIN, ROUNDS_MAX = 40, 400
ROUND_S = 0.5
# long enough that the last change meets faults, too, and that only the operator's own retries can mend their damage
LAST_S = 5.0
CHANCES = Chances(refused=0.06, lost=0.03, cut=0.03, late=0.05, too_late=0, twice=0.06, death=0.08, ends=1)
SPEC = {
    "brokers": {"replicas": 3, "storage": {"size": "1Gi"}},
    "metadata": {"etcd": {"members": 1, "storage": {"size": "1Gi"}, "snapshots": {"schedule": "0 * * * *"}}},
    "networkPolicy": {"enabled": True},
}
DELETED = ("ConfigMap", "Service", "PodDisruptionBudget", "CronJob", "NetworkPolicy")


def test_what_is_made_under_chaos_is_what_is_made_without(
    server: KubeApiServer, play: Callable[[Scene], None], tmp_path: Path
) -> None:
    faults = Faults(SEED, CHANCES)
    told: list[dict[str, Any]] = []

    async def scene(kube: Kube) -> None:
        tls = ssl._create_unverified_context()
        upstream = Upstream(f"https://127.0.0.1:{server.port}", TOKEN, tls)
        words: tuple[str, ...] = ("--image", "ottla:1", "--etcd-image", "etcd:1", "--port", str(free_port()))
        words += ("--lease", "ottla", "--namespace", "shop", "--pod", "one")
        supervisor = Supervisor(faults, upstream, tmp_path / "kubeconfig", lambda **each: told.append(each), words)
        running = asyncio.ensure_future(supervisor.run())
        try:
            faults.calm = True
            await kube.create(cluster(**SPEC))
            await until("the spec is followed", lambda: followed(kube))
            undisturbed = await made(kube)
            faults.calm = False
            supervisor.kill()  # so that the watches of the next process get faults, too
            await disturb(kube, Random(SEED), lambda: not missing(faults.counts))
            faults.calm = True
            await until("all is as without chaos", lambda: same(kube, undisturbed), RESYNC_S + 60)
        finally:
            running.cancel()
            await asyncio.wait([running])

    play(scene)
    assert not [each for each in told if "ended" in each and not each["killed"] and each["ended"]], told
    assert not missing(faults.counts), faults.counts


async def disturb(kube: Kube, random: Random, enough: Callable[[], bool]) -> None:
    """Deletes objects of the Cluster, and changes its spec, which in the end is as at the beginning."""
    for number in range(ROUNDS_MAX):
        if number >= ROUNDS_MIN and enough():
            break
        kind = random.choice(DELETED)
        if found := await kube.list(kind, "shop"):
            await kube.delete(kind, "shop", random.choice(found)["metadata"]["name"])
        if number % 8 == 0:
            await kube.merge("Cluster", *KEY, {"spec": {"config": {"num.partitions": number + 1}}})
        await asyncio.sleep(ROUND_S)
    await kube.merge("Cluster", *KEY, {"spec": {"config": None}})
    await asyncio.sleep(LAST_S)


async def made(kube: Kube) -> dict[str, Object]:
    """The Cluster's objects, without the fields that Kubernetes adds and that differ between two equal objects."""
    found = {}
    for kind in OWNED:
        for item in await kube.list(kind, "shop", "app.kubernetes.io/instance=k"):
            meta = {name: item["metadata"].get(name) for name in ("labels", "annotations")}
            spec = {name: value for name, value in item.get("spec", {}).items() if not name.startswith("clusterIP")}
            found[f"{kind} {item['metadata']['name']}"] = {"meta": meta, "spec": spec, "data": item.get("data")}
    return found


async def followed(kube: Kube) -> bool:
    found = await kube.get("Cluster", *KEY)
    assert found is not None
    status = found.get("status", {})
    current = status.get("observedGeneration") == found["metadata"]["generation"]
    return bool(current and status["message"] == "waiting for etcd: 0 of 1 members answer")


async def same(kube: Kube, wanted: dict[str, Object]) -> bool:
    return json.dumps(await made(kube), sort_keys=True) == json.dumps(wanted, sort_keys=True) and await followed(kube)


async def until(what: str, check: Callable[[], Awaitable[Any]], seconds: float = 120.0) -> None:
    for _ in range(int(seconds / 0.2)):
        if await check():
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} s: {what}")
