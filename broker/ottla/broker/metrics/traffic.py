"""Metrics of the clients' traffic: topics, requests, connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from ottla.broker.exposition import Histogram, Sample, Sum, powers_of_two
from ottla.broker.metrics.metric import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Metric, single
from ottla.broker.ports import (
    WithFetchSessions,
    WithLogins,
    WithLoopLag,
    WithRequestCounters,
    WithServer,
    WithTopicCounters,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.counters import ApiCounters, TopicCounters
    from ottla.broker.login.gate import LoginCounters

LOWEST_BUCKET = 3  # 8 µs
HIGHEST_BUCKET = 25  # 34 s
TIMED_APIS = ("Produce", "Fetch")
_SOCKET_SERVER = "kafka.server:type=socket-server-metrics,listener=*,name="
MILLISECOND = 1e-3  # in the unit of the counters, µs


class Source(WithFetchSessions, WithLogins, WithLoopLag, WithRequestCounters, WithServer, WithTopicCounters, Protocol):
    """The parts of a broker that the metrics of the clients' traffic read."""


def _by_topic(value: Callable[[TopicCounters], int]) -> Callable[[Source], Iterator[Sample]]:
    def collect(broker: Source) -> Iterator[Sample]:
        for topic, counters in list(broker.counters.items()):
            yield (("topic", topic),), value(counters)

    return collect


def _by_api(value: Callable[[ApiCounters], int | float | Histogram | Sum]) -> Callable[[Source], Iterator[Sample]]:
    def collect(broker: Source) -> Iterator[Sample]:
        for api, counters in broker.request_counters.items():
            if counters.requests:
                yield (("request", api),), value(counters)

    return collect


def _by_timed_api(value: Callable[[ApiCounters], Sum]) -> Callable[[Source], Iterator[Sample]]:
    """The values of a metric that only Produce and Fetch have: for other APIs, work and waiting aren't measured
    separately."""
    return lambda broker: (sample for sample in _by_api(value)(broker) if sample[0][0][1] in TIMED_APIS)


def _errors(broker: Source) -> Iterator[Sample]:
    for api, counters in broker.request_counters.items():
        for error, count in list(counters.errors.items()):
            yield (("request", api), ("error", ErrorCode(error).name.upper())), count


def _latency(counters: ApiCounters) -> Histogram:
    total = counters.latency_microseconds
    return powers_of_two(counters.latency_buckets, LOWEST_BUCKET, HIGHEST_BUCKET, MILLISECOND, total)


def _logins(value: Callable[[LoginCounters], int]) -> Callable[[Source], Iterator[Sample]]:
    def collect(broker: Source) -> Iterator[Sample]:
        for listener, counters in broker.logins.counters.items():
            yield (("listener", listener),), value(counters)

    return collect


def _connections(broker: Source) -> Iterator[Sample]:
    for name, listener in broker.server.listeners.items():
        yield (("listener", name),), len(listener.connections)


def _unanswered(broker: Source) -> int:
    listeners = broker.server.listeners.values()
    return sum(connection.unanswered for listener in listeners for connection in listener.connections)


_TOPIC = "kafka.server:type=BrokerTopicMetrics,topic=*,name="
_REQUEST = "kafka.network:type=RequestMetrics,request=*,name="

METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "kafka_server_brokertopicmetrics_messagesin_total", COUNTER, "Records appended by producers.",
        _by_topic(lambda topic: topic.messages_in), _TOPIC + "MessagesInPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_bytesin_total", COUNTER, "Bytes of record batches appended by producers.",
        _by_topic(lambda topic: topic.bytes_in), _TOPIC + "BytesInPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_bytesout_total", COUNTER, "Bytes of record batches sent to consumers.",
        _by_topic(lambda topic: topic.bytes_out), _TOPIC + "BytesOutPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_bytesrejected_total", COUNTER, "Bytes of record batches refused.",
        _by_topic(lambda topic: topic.bytes_rejected), _TOPIC + "BytesRejectedPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_totalproducerequests_total", COUNTER,
        "Produce requests, counted once for each partition in them.",
        _by_topic(lambda topic: topic.produce_requests), _TOPIC + "TotalProduceRequestsPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_totalfetchrequests_total", COUNTER,
        "Fetch requests, counted once for each partition read for them.",
        _by_topic(lambda topic: topic.fetch_requests), _TOPIC + "TotalFetchRequestsPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_failedproducerequests_total", COUNTER,
        "Produce requests refused, counted once for each partition.",
        _by_topic(lambda topic: topic.failed_produce_requests), _TOPIC + "FailedProduceRequestsPerSec", ("topic",),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_failedfetchrequests_total", COUNTER,
        "Fetch requests refused, counted once for each partition.",
        _by_topic(lambda topic: topic.failed_fetch_requests), _TOPIC + "FailedFetchRequestsPerSec", ("topic",),
    ),
    Metric(
        "kafka_network_requestmetrics_requests_total", COUNTER, "Requests, by API.",
        _by_api(lambda api: api.requests), _REQUEST + "RequestsPerSec", ("request",),
    ),
    Metric(
        "kafka_network_requestmetrics_errors_total", COUNTER, "Error codes answered, by API and code.",
        _errors, "kafka.network:type=RequestMetrics,request=*,error=*,name=ErrorsPerSec", ("request", "error"),
    ),
    Metric(
        "kafka_network_requestmetrics_totaltimems", HISTOGRAM,
        "Time in ms from a request's last byte to its answer handed to the socket, by API.",
        _by_api(_latency), _REQUEST + "TotalTimeMs", ("request",),
    ),
    Metric(
        "kafka_network_requestmetrics_localtimems", SUMMARY,
        "Part of the total time of Produce and Fetch, in ms, that was not spent waiting.",
        _by_timed_api(lambda api: Sum(api.answers, (api.latency_microseconds - api.waited_microseconds) * MILLISECOND)),
        _REQUEST + "LocalTimeMs", ("request",),
    ),
    Metric(
        "kafka_network_requestmetrics_remotetimems", SUMMARY,
        "Part of the total time of Produce and Fetch, in ms, that was spent waiting: for replicas, the disk, or "
        "more to read.",
        _by_timed_api(lambda api: Sum(api.answers, api.waited_microseconds * MILLISECOND)),
        _REQUEST + "RemoteTimeMs", ("request",),
    ),
    Metric(
        "kafka_network_requestmetrics_requestbytes", SUMMARY, "Sizes of requests in bytes, by API.",
        _by_api(lambda api: Sum(api.requests, api.request_bytes)), _REQUEST + "RequestBytes", ("request",),
    ),
    Metric(
        "kafka_network_requestchannel_requestqueuesize", GAUGE,
        "Requests that have no answer yet, waiting fetches included.",
        single(_unanswered), "kafka.network:type=RequestChannel,name=RequestQueueSize",
    ),
    Metric(
        "kafka_network_socketserver_networkprocessoravgidle_percent", GAUGE,
        "Part of the last minute (0 to 1) in which the event loop only waited. One loop does what Kafka's network and "
        "request threads do.",
        single(lambda broker: broker.loop_lag.idle_ratio),
        "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent",
    ),
    Metric(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", GAUGE,
        "The idle part of the event loop (NetworkProcessorAvgIdlePercent), under the name that alerts look for.",
        single(lambda broker: broker.loop_lag.idle_ratio),
        "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent",
    ),
    Metric(
        "kafka_server_socket_server_metrics_connection_count", GAUGE, "Open connections, by listener.",
        _connections, "kafka.server:type=socket-server-metrics,listener=*,name=connection-count", ("listener",),
    ),
    Metric(
        "kafka_server_socket_server_metrics_successful_authentication_total", COUNTER, "Logins that succeeded.",
        _logins(lambda counters: counters.succeeded), f"{_SOCKET_SERVER}successful-authentication-total", ("listener",),
    ),
    Metric(
        "kafka_server_socket_server_metrics_failed_authentication_total", COUNTER, "Logins that failed.",
        _logins(lambda counters: counters.failed), f"{_SOCKET_SERVER}failed-authentication-total", ("listener",),
    ),
    Metric(
        "kafka_server_socket_server_metrics_successful_reauthentication_total", COUNTER,
        "Logins that succeeded over a connection that was logged in before (KIP-368).",
        _logins(lambda counters: counters.succeeded_again),
        f"{_SOCKET_SERVER}successful-reauthentication-total", ("listener",),
    ),
    Metric(
        "kafka_server_socket_server_metrics_failed_reauthentication_total", COUNTER,
        "Logins that failed over a connection that was logged in before.",
        _logins(lambda counters: counters.failed_again),
        f"{_SOCKET_SERVER}failed-reauthentication-total", ("listener",),
    ),
    Metric(
        "kafka_server_socket_server_metrics_expired_connections_killed_count", GAUGE,
        "Connections closed because a request came after the end of the login's session.",
        _logins(lambda counters: counters.expired), f"{_SOCKET_SERVER}expired-connections-killed-count", ("listener",),
    ),
    Metric(
        "ottla_connections_refused_total", COUNTER,
        "Connections refused for max.connections or max.connections.per.ip.",
        single(lambda broker: broker.server.connections_refused),
    ),
    Metric(
        "ottla_connections_closed_for_others_total", COUNTER,
        "Clients' connections closed to make room: another broker connected, or max.connections was lowered.",
        single(lambda broker: broker.server.connections_closed_for_others),
    ),
    Metric(
        "ottla_buffered_memory_used_bytes", GAUGE,
        "Memory held by requests that have not arrived completely, and by answers that clients do not take.",
        single(lambda broker: broker.server.memory.used_bytes),
    ),
    Metric(
        "ottla_buffered_memory_limit_bytes", GAUGE,
        "Bound of the buffered memory (ottla.buffered.memory.bytes.max).",
        single(lambda broker: broker.server.memory.limit_bytes),
        "kafka.network:type=SocketServer,name=MemoryPoolAvailable",
    ),
    Metric(
        "ottla_buffered_memory_waiting_connections", GAUGE,
        "Connections that are not read because the buffered memory is used up.",
        single(lambda broker: broker.server.memory.waiting),
    ),
    Metric(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions", GAUGE, "Incremental fetch sessions.",
        single(lambda broker: len(broker.fetch_sessions)),
        "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
    ),
    Metric(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", COUNTER,
        "Fetch sessions that were dropped in favour of others.", single(lambda broker: broker.fetch_sessions.evictions),
        "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
    ),
)  # fmt: skip
"""The metrics of the clients' traffic."""
