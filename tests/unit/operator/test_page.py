"""The operator's page: its metrics are in Prometheus' format, and a watch that has gone silent is noticed."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from ottla.net.http import Request
from ottla.operator.objects import Ref
from ottla.operator.page import SILENT_S_MAX, Page, Watched
from ottla.operator.queue import Queue, Result


class _Nothing:
    async def reconcile(self, key: Ref) -> Result:
        return Result()


def test_metrics_are_readable() -> None:
    queue = Queue("Cluster", _Nothing())

    async def run() -> None:
        queue.add(Ref("n", "a"))
        task = asyncio.ensure_future(queue.run())
        while queue.counters.reconciles == 0:  # noqa: ASYNC110 — a counter has no event
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(run())
    conditions = {Ref("shop", "k"): {"Ready": True, "Rolling": False}}
    failing = {Ref("shop", "k"): {"Snapshots": True}}
    page = Page({"Cluster": queue}, Watched(), lambda: 7, lambda: conditions, failing=lambda: failing)
    page.leading = True
    found = {family.name: family.samples[0].value for family in text_string_to_metric_families(page.text())}
    assert found["ottla_operator_reconciles"] == 1
    (seconds,) = (one for one in text_string_to_metric_families(page.text()) if one.name.endswith("reconcile_seconds"))
    assert seconds.type == "histogram"
    assert [sample.value for sample in seconds.samples if sample.name.endswith("_count")] == [1]
    assert [sample.value for sample in seconds.samples if sample.labels.get("le") == "+Inf"] == [1]
    assert found["ottla_operator_kubernetes_writes"] == 7
    assert found["ottla_operator_leading"] == 1
    (family,) = (one for one in text_string_to_metric_families(page.text()) if one.name.endswith("cluster_condition"))
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"cluster_namespace": "shop", "cluster": "k", "type": "Ready"}, 1),
        ({"cluster_namespace": "shop", "cluster": "k", "type": "Rolling"}, 0),
    ]
    assert "ottla_operator_cluster_part_failing" in page.text()
    assert found["ottla_operator_cluster_part_failing"] == 1


def test_durations_are_counted_in_every_bucket_that_holds_them() -> None:
    queue = Queue("Cluster", _Nothing())
    for seconds in (0.01, 0.3, 200.0):
        queue.counters.took(seconds)
    text = Page({"Cluster": queue}, Watched(), lambda: 0).text()
    for bound, count in (("0.01", 1), ("0.25", 1), ("0.5", 2), ("120", 2), ("+Inf", 3)):
        assert f'ottla_operator_reconcile_seconds_bucket{{kind="Cluster",le="{bound}"}} {count}\n' in text
    assert 'ottla_operator_reconcile_seconds_sum{kind="Cluster"} 200.31\n' in text


def test_a_watch_is_dead_when_what_was_read_is_not_told() -> None:
    now = 0.0
    watched = Watched(lambda: now)
    key = ("Cluster", "n", "a")
    watched.told(key, "1", gone=False)
    watched.read(key, "1")
    now += 10 * SILENT_S_MAX
    assert not watched.dead  # nothing has changed, so the watch is rightly silent
    watched.read(key, "2")
    now += SILENT_S_MAX - 1
    watched.read(key, "2")
    assert not watched.dead
    now += 2
    assert watched.dead
    watched.told(key, "2", gone=False)
    assert not watched.dead
    assert watched.age_s == 0


def test_ready_means_that_it_can_do_its_work() -> None:
    troubles = ["the lease system/ottla can't be read or taken: forbidden"]

    async def asked(page: Page) -> tuple[int, str]:
        answer = await page._readyz(Request("GET", "/readyz"))
        assert isinstance(answer.body, bytes)
        return answer.status, answer.body.decode()

    page = Page({}, Watched(), lambda: 0, troubles=lambda: troubles)
    assert asyncio.run(asked(page)) == (503, "the lease system/ottla can't be read or taken: forbidden\n")
    assert "\nottla_operator_impeded 1\n" in page.text()
    troubles.clear()
    assert asyncio.run(asked(page)) == (200, "it stands by\n")
    assert "\nottla_operator_impeded 0\n" in page.text()


def test_what_is_gone_need_not_be_told() -> None:
    now = 0.0
    watched = Watched(lambda: now)
    watched.read(("Cluster", "n", "a"), "1")
    watched.read(("Cluster", "n", "a"), "")
    now += SILENT_S_MAX + 1
    assert not watched.dead


def test_a_watch_that_still_tells_its_first_thousands_lives() -> None:
    now = 0.0
    watched = Watched(lambda: now)
    for number in range(3):
        watched.read(("Topic", "n", str(number)), "1")
    for number in range(3):
        now += SILENT_S_MAX - 1
        assert not watched.dead
        watched.told(("Topic", "n", str(number)), "1", gone=False)
    watched.read(("Topic", "n", "0"), "2")
    watched.told(("Topic", "other", "0"), "1", gone=False)
    now += SILENT_S_MAX + 1
    assert watched.dead
    watched.told(("Topic", "n", "0"), "2", gone=True)
    assert not watched.dead
