"""The operator's own HTTP pages: metrics, liveness and readiness.

The operator is alive while its watches report the changes that its own reads find. A watch that reports nothing while
resources change is dead, and only a restart of the process helps. The operator is ready if it can read the lease, may
read all kinds that it needs, and its watches are alive. A process that stands by is ready, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from time import monotonic

from ottla.net.http import HttpServer, Request, Response
from ottla.operator.objects import Ref
from ottla.operator.queue import BUCKETS_S, Counters, Queue

SILENT_S_MAX = 240.0
SILENT = "the watches report no changes, although resources have changed\n"

HELP = {
    "ottla_operator_reconciles_total": ("counter", "Reconciles, failed ones too."),
    "ottla_operator_reconcile_errors_total": ("counter", "Reconciles that failed."),
    "ottla_operator_reconcile_seconds": ("histogram", "How long reconciles took, failed ones too."),
    "ottla_operator_queue_depth": ("gauge", "Resources that are due or being reconciled."),
    "ottla_operator_failing_resources": ("gauge", "Resources whose last reconcile failed."),
    "ottla_operator_last_event_age_seconds": ("gauge", "Seconds since the last event of any watch."),
    "ottla_operator_kubernetes_writes_total": (
        "counter",
        "Requests to Kubernetes that may change something, other than to renew the lease.",
    ),
    "ottla_operator_cluster_condition": ("gauge", "Whether a condition of a Cluster is True."),
    "ottla_operator_cluster_part_failing": (
        "gauge",
        "Whether a part of a Cluster was refused or failed at its last reconcile (1); 0 for a part that only waits.",
    ),
    "ottla_operator_impeded": (
        "gauge",
        "Whether the operator can't read its Lease or other objects that it needs (1).",
    ),
    "ottla_operator_leading": ("gauge", "Whether this process acts (1) or stands by."),
}


class Watched:
    """Compares the versions of resources that watches have reported with the versions that the operator's own reads
    have found."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str, str], str] = {}
        self._missed: dict[tuple[str, str, str], float] = {}  # since when reads find an unreported version
        self._last: dict[tuple[str, str], float] = {}  # (kind, namespace) → the last event; one watch tells in order
        self._begun = clock()

    def told(self, key: tuple[str, str, str], version: str, *, gone: bool) -> None:
        """Notes that a watch has reported a resource (kind, namespace, name) in this version; `gone`: it was
        deleted."""
        self._last[key[:2]] = self._clock()
        self._missed.pop(key, None)
        if gone:
            self._told.pop(key, None)
        else:
            self._told[key] = version

    def read(self, key: tuple[str, str, str], version: str) -> None:
        """Notes that a read has found a resource in this version; an empty version: the read found no such resource."""
        if self._told.get(key, "") == version or not version:
            self._missed.pop(key, None)
        else:
            self._missed.setdefault(key, self._clock())

    @property
    def age_s(self) -> float:
        """How many seconds ago the last event came."""
        return self._clock() - max(self._last.values(), default=self._begun)

    @property
    def dead(self) -> bool:
        """Whether a watch is dead: long ago a read found a version that no watch had reported, and since then no event
        about that kind and namespace came.

        After a start, the events of thousands of resources take long to arrive. Their watch doesn't count as dead,
        because some of these events keep coming.
        """
        long_ago = self._clock() - SILENT_S_MAX
        return any(max(since, self._last.get(key[:2], since)) < long_ago for key, since in self._missed.items())


class Page:
    """Serves the pages `/metrics`, `/healthz` and `/readyz`."""

    def __init__(
        self,
        queues: Mapping[str, Queue],
        watched: Watched,
        writes: Callable[[], int],
        conditions: Callable[[], Mapping[Ref, Mapping[str, bool]]] = dict,
        troubles: Callable[[], Iterable[str]] = tuple,
        failing: Callable[[], Mapping[Ref, Mapping[str, bool]]] = dict,
    ) -> None:
        """`writes`: how many requests have changed something; `conditions`: by Cluster and type, whether the condition
        is True; `troubles`: what keeps the operator from its work; `failing`: by Cluster and part, whether the part was
        refused or failed."""
        self._failing = failing
        self._troubles = troubles
        self._conditions = conditions
        self.leading = False
        self._queues = queues
        self._watched = watched
        self._writes = writes
        self._http = HttpServer(
            {
                ("GET", "/metrics"): self._metrics,
                ("GET", "/healthz"): self._healthz,
                ("GET", "/readyz"): self._readyz,
            }
        )

    async def start(self, port: int) -> None:
        """Opens the port on all addresses. Raises OSError."""
        await self._http.start("", port)

    async def stop(self) -> None:
        """Closes the port."""
        await self._http.stop()

    def text(self) -> str:
        """The metrics in Prometheus' format."""
        rows: dict[str, list[tuple[str, float]]] = {name: [] for name in HELP}
        for kind, queue in self._queues.items():
            label = f'{{kind="{kind}"}}'
            rows["ottla_operator_reconciles_total"].append((label, queue.counters.reconciles))
            rows["ottla_operator_reconcile_errors_total"].append((label, queue.counters.errors))
            rows["ottla_operator_reconcile_seconds"] += _histogram(kind, queue.counters)
            rows["ottla_operator_queue_depth"].append((label, queue.depth))
            rows["ottla_operator_failing_resources"].append((label, len(queue.counters.failing)))
        rows["ottla_operator_last_event_age_seconds"].append(("", self._watched.age_s))
        rows["ottla_operator_kubernetes_writes_total"].append(("", self._writes()))
        rows["ottla_operator_cluster_condition"] = list(_of_clusters("type", self._conditions()))
        rows["ottla_operator_cluster_part_failing"] = list(_of_clusters("part", self._failing()))
        rows["ottla_operator_impeded"].append(("", int(any(self._troubles()))))
        rows["ottla_operator_leading"].append(("", int(self.leading)))
        lines = []
        for name, (kind, doc) in HELP.items():
            lines += [f"# HELP {name} {doc}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value!r}" for label, value in rows[name]]
        return "\n".join(lines) + "\n"

    async def _metrics(self, _: Request) -> Response:
        return Response(200, self.text().encode())

    async def _healthz(self, _: Request) -> Response:
        return Response(503, SILENT.encode()) if self._watched.dead else Response(200, b"ok\n")

    async def _readyz(self, _: Request) -> Response:
        if self._watched.dead:
            return Response(503, SILENT.encode())
        if troubles := list(self._troubles()):
            return Response(503, "".join(f"{trouble}\n" for trouble in troubles).encode())
        return Response(200, b"it acts\n" if self.leading else b"it stands by\n")


def _of_clusters(named: str, found: Mapping[Ref, Mapping[str, bool]]) -> Iterator[tuple[str, float]]:
    """The rows of a metric that is 0 or 1 for each Cluster and each of its conditions or parts: the labels, and the
    value."""
    for cluster, each in sorted(found.items()):
        for name, holds in sorted(each.items()):
            label = f'{{cluster_namespace="{cluster.namespace}",cluster="{cluster.name}",{named}="{name}"}}'
            yield label, int(holds)


def _histogram(kind: str, counters: Counters) -> Iterator[tuple[str, float]]:
    """The rows of a histogram: the text that follows the metric's name, and the value."""
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    for bound, count in zip(bounds, accumulate(counters.buckets), strict=True):
        yield f'_bucket{{kind="{kind}",le="{bound}"}}', count
    yield f'_sum{{kind="{kind}"}}', counters.seconds
    yield f'_count{{kind="{kind}"}}', counters.reconciles
