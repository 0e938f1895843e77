"""Metrics of the clients' quotas, of the clients that have a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from ottla.broker.exposition import Sample
from ottla.broker.metrics.metric import COUNTER, GAUGE, Metric, single
from ottla.broker.ports import WithServer, WithThrottling
from ottla.broker.quota.client_quotas import FETCH, MUTATION, PRODUCE, REQUEST

if TYPE_CHECKING:
    from ottla.broker.quota.client_quotas import Measured

CLIENTS_MAX = 1000  # of each kind of quota: those that were measured last
RESOURCES = {PRODUCE: "Produce", FETCH: "Fetch", REQUEST: "Request", MUTATION: "ControllerMutation"}
_LABELS = ("resource", "user", "clientId")


class Source(WithServer, WithThrottling, Protocol):
    """The parts of a broker that the metrics of quotas read."""


def _measured(value: Callable[[Measured, float, int], float], *kinds: str) -> Callable[[Source], Iterator[Sample]]:
    """The values of the clients that have a limit of these kinds, from the measurement, the limit, and the time."""

    def collect(broker: Source) -> Iterator[Sample]:
        now_ms = broker.throttling.now_ms()
        for kind in kinds:
            found = broker.throttling.quotas.by_kind[kind].measured(now_ms)
            for client, limit, measured in list(islice(found, CLIENTS_MAX)):
                labels = (("resource", RESOURCES[kind]), ("user", client.user), ("clientId", client.client_id))
                yield labels, value(measured, limit, now_ms)

    return collect


def _rate(measured: Measured, _limit: float, now_ms: int) -> float:
    return measured.samples.rate(now_ms)


METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "kafka_server_quota_byte_rate", GAUGE,
        "Bytes per second of a client's Produce requests or Fetch responses. This metric and the other metrics of "
        "quotas have only the clients with a limit of the kind, at most the 1,000 that were measured last.",
        _measured(_rate, PRODUCE, FETCH), "kafka.server:type=Produce|Fetch,user=*,client-id=*,name=byte-rate", _LABELS,
    ),
    Metric(
        "kafka_server_quota_request_time", GAUGE, "Percentage of the event loop's time that a client's requests take.",
        _measured(_rate, REQUEST), "kafka.server:type=Request,user=*,client-id=*,name=request-time", _LABELS,
    ),
    Metric(
        "kafka_server_quota_exempt_request_time", GAUGE,
        "Percentage of the event loop's time that no quota counts: for requests of brokers, and for Produce requests "
        "with acks=0. It is 0 while no client has a limit.",
        single(lambda broker: broker.throttling.quotas.exempt.rate(broker.throttling.now_ms())),
        "kafka.server:type=Request,name=exempt-request-time",
    ),
    Metric(
        "kafka_server_quota_mutation_rate", GAUGE, "Partitions that a client creates and deletes per second.",
        _measured(_rate, MUTATION), "kafka.server:type=ControllerMutation,user=*,client-id=*,name=mutation-rate",
        _LABELS,
    ),
    Metric(
        "kafka_server_quota_tokens", GAUGE,
        "Partitions that a client may still create or delete before it is throttled; negative while it is throttled.",
        _measured(lambda measured, limit, now_ms: measured.bucket.tokens(limit, now_ms), MUTATION),
        "kafka.server:type=ControllerMutation,user=*,client-id=*,name=tokens", _LABELS,
    ),
    Metric(
        "kafka_server_quota_throttle_time", GAUGE,
        "Mean of the times for which a client was throttled in the last minute, in ms; 0 if it wasn't.",
        _measured(
            lambda measured, _, now_ms: measured.throttle_times.average(now_ms), PRODUCE, FETCH, REQUEST, MUTATION
        ),
        "kafka.server:type=Produce|Fetch|Request|ControllerMutation,user=*,client-id=*,name=throttle-time", _LABELS,
    ),
    Metric(
        "ottla_connections_throttled_total", COUNTER,
        "Connections that waited to be accepted, or were closed unread, because clients connected too fast.",
        single(lambda broker: broker.server.connections_throttled),
    ),
)  # fmt: skip
"""The metrics of the clients' quotas."""
