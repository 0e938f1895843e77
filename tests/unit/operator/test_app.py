"""The events of the watches, and the queues in which they put the objects' keys."""

from __future__ import annotations

import asyncio

from kubernetes.aio import client

from ottla.operator.app import Operator, Options
from ottla.operator.kube import Kube
from ottla.operator.objects import Object, Ref
from ottla.operator.queue import Queue, Result
from ottla.operator.spec.cluster import Defaults

KEY = Ref("shop", "main")


class Waits:
    """A reconciler that asks to be called again in a minute."""

    def __init__(self) -> None:
        self.seen: list[Ref] = []

    async def reconcile(self, key: Ref) -> Result:
        self.seen.append(key)
        return Result(60.0)


def _cluster(version: int, ready: str) -> Object:
    return {
        "metadata": {"namespace": "shop", "name": "main", "resourceVersion": str(version)},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def test_a_cluster_that_becomes_ready_wakes_its_topics_at_once() -> None:
    async def run() -> list[Ref]:
        kube = Kube(client.ApiClient(client.Configuration(host="http://127.0.0.1:1")))
        operator, topics = Operator(Options(Defaults("ottla:1", "etcd:1")), kube), Waits()
        operator.queues = {kind: Queue(kind, topics if kind == "Topic" else Waits()) for kind in operator.queues}
        running = asyncio.ensure_future(operator.queues["Topic"].run())
        operator._cluster_seen("ADDED", _cluster(1, "False"))
        await asyncio.sleep(0.05)
        operator._cluster_seen("MODIFIED", _cluster(2, "True"))
        await asyncio.sleep(0.05)
        assert operator._is_ours(KEY)
        # The same event comes if an object's labels no longer match the operator's selector.
        operator._cluster_seen("DELETED", _cluster(3, "True"))
        assert not operator._is_ours(KEY)
        running.cancel()
        await kube.close()
        return topics.seen

    assert asyncio.run(run()) == [KEY, KEY]
