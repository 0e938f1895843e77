"""The quotas of clients: bytes in, bytes out, share of the event loop's time, changes of topics. Pure.

Each kind measures the clients that have a limit of this kind, and no others. A client above its limit is throttled: it
is told for how many ms, and the broker reads nothing from its connection in this time.

- *Bytes* are throttled for as long as it takes to bring the rate back to the limit, without a bound.
- *Time* is a percentage of the event loop's time, as Kafka's is a percentage of one thread's. Its throttling has a
  bound of one window, so that a client whose single request was expensive isn't shut out for minutes.
- A fetch that is above the limit gets no records, so its bytes are taken back. There is one exception: a batch that is
  larger than all windows allow is sent after windows without a byte, because its consumer would never get it otherwise.

Source: Kafka's ClientQuotaManager, ClientRequestQuotaManager and KafkaApis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .entities import Client, Entity, Limits
from .mutations import Mutations
from .samples import Samples, throttle_ms
from .sensors import Sensors
from .token_bucket import TokenBucket
from .windows import Windows

PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"
REQUEST = "request_percentage"
MUTATION = "controller_mutation_rate"
_PERCENT_PER_NS = 1e-7  # of a second
THROTTLE_TIME_WINDOWS = Windows(2, 30_000)  # Kafka's metrics.num.samples and metrics.sample.window.ms


class Measured:
    """What is measured of one client: a rate or tokens, and how long the client was throttled."""

    __slots__ = ("bucket", "samples", "throttle_times")

    def __init__(self, windows: Windows) -> None:
        self.samples = Samples(windows)
        self.bucket = TokenBucket(windows)
        self.throttle_times = Samples(THROTTLE_TIME_WINDOWS)


class ClientQuota:
    """The quota of one kind. `throttle_ms_max` bounds a single throttle time; None means no bound."""

    def __init__(self, windows: Windows, throttle_ms_max: int | None = None) -> None:
        self._windows = windows
        self._throttle_ms_max = throttle_ms_max
        self._sensors: Sensors[Client, Measured] = Sensors(lambda: Measured(windows))
        self.limits = Limits()

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Adds a value to the client's rate. Returns how long the client is to be throttled, in ms."""
        found = self.limits.of(user, client_id)
        if found is None:
            return 0
        client, bound = found
        samples = self._sensors.of(client, now_ms).samples
        samples.record(value, now_ms)
        time_ms = throttle_ms(samples.rate(now_ms), bound, samples.elapsed_ms(now_ms))
        return time_ms if self._throttle_ms_max is None else min(time_ms, self._throttle_ms_max)

    def take_back(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Takes back a value that was recorded at the same time."""
        if (found := self.limits.of(user, client_id)) is not None:
            self._sensors.of(found[0], now_ms).samples.record(-value, now_ms)

    def largest(self, user: str, client_id: str) -> float | None:
        """The largest value that a client can be allowed at once: a larger one would always be throttled. None means
        that the client has no limit."""
        found = self.limits.of(user, client_id)
        return None if found is None else found[1] * max(self._windows.number - 1, 1) * self._windows.size_ms / 1000

    def is_all(self, user: str, client_id: str, value: float, now_ms: int) -> bool:
        """Whether `value`, which was just recorded, is too large ever to be allowed, and is all that the client has in
        its windows."""
        found, largest = self.limits.of(user, client_id), self.largest(user, client_id)
        if found is None or largest is None or value <= largest:
            return False
        return self._sensors.of(found[0], now_ms).samples.total(now_ms) <= value

    def measurement(self, user: str, client_id: str, now_ms: int) -> tuple[Measured, float] | None:
        """(what is measured of the client, its limit); None if the client has no limit."""
        found = self.limits.of(user, client_id)
        return None if found is None else (self._sensors.of(found[0], now_ms), found[1])

    def throttled(self, user: str, client_id: str, time_ms: int, now_ms: int) -> None:
        """Notes, for the metrics, that a client is throttled because of this quota."""
        if (found := self.limits.of(user, client_id)) is not None:
            self._sensors.of(found[0], now_ms).throttle_times.record(time_ms, now_ms)

    def measured(self, now_ms: int) -> Iterator[tuple[Client, float, Measured]]:
        """(client, limit, measurement) of the clients that have a limit, the last measured one first."""
        self._sensors.expire(now_ms)
        for client, measured in self._sensors.latest():
            found = self.limits.of(client.user, client.client_id)
            if found is not None and found[0] == client:
                yield client, found[1], measured


class ClientQuotas:
    """The quotas of all four kinds. Times are in ms, by a clock that never goes back; time that the event loop spends
    is in ns."""

    def __init__(self, windows: Windows, controller_windows: Windows) -> None:
        self.produce = ClientQuota(windows)
        self.fetch = ClientQuota(windows)
        self.request = ClientQuota(windows, windows.size_ms)
        self.mutation = ClientQuota(controller_windows)
        self.by_kind: Mapping[str, ClientQuota] = {
            PRODUCE: self.produce, FETCH: self.fetch, REQUEST: self.request, MUTATION: self.mutation
        }  # fmt: skip
        self.enforced = False
        """Whether any client has a limit."""
        self.exempt = Samples(windows)
        """The percentage of the event loop's time that no client's quota counts: for brokers' requests, and for Produce
        requests without an answer. It is measured of the requests that are charged."""

    def set_limits(self, entity: Entity, limits: Mapping[str, float]) -> None:
        """Takes over all limits of an entity, by Kafka's names. Measurements go on."""
        for kind, quota in self.by_kind.items():
            quota.limits.set(entity, limits.get(kind))
        self.enforced = any(quota.limits for quota in self.by_kind.values())

    def concern(self, user: str, client_id: str) -> bool:
        """Whether a client has a limit of any kind."""
        return any(quota.limits.of(user, client_id) is not None for quota in self.by_kind.values())

    def produced(self, user: str, client_id: str, size_bytes: int, work_ns: int | None, now_ms: int) -> int:
        """Records a Produce request. Returns how long the client is to be throttled, in ms. Without `work_ns` the
        request's time isn't counted: it has no answer (acks=0) that could tell a throttle time."""
        by_bytes = self.produce.record(user, client_id, size_bytes, now_ms)
        by_time = 0 if work_ns is None else self._worked(user, client_id, work_ns, now_ms)
        return self._throttled(user, client_id, ((by_bytes, self.produce), (by_time, self.request)), now_ms)

    def fetched(self, user: str, client_id: str, size_bytes: int, work_ns: int, now_ms: int) -> tuple[int, bool]:
        """Records the answer of a consumer's fetch. Returns how long the client is to be throttled, in ms, and whether
        it must get an empty answer: then the bytes aren't recorded."""
        by_time = self._worked(user, client_id, work_ns, now_ms)
        by_bytes = self.fetch.record(user, client_id, size_bytes, now_ms)
        empty = bool(by_time or by_bytes) and not self.fetch.is_all(user, client_id, size_bytes, now_ms)
        if empty:
            self.fetch.take_back(user, client_id, size_bytes, now_ms)
        return self._throttled(user, client_id, ((by_bytes, self.fetch), (by_time, self.request)), now_ms), empty

    def answered(self, user: str, client_id: str, work_ns: int, mutations: Mutations | None, now_ms: int) -> int:
        """Records any other request when it is answered. Returns how long the client is to be throttled, in ms."""
        by_time = self._worked(user, client_id, work_ns, now_ms)
        by_mutations = 0 if mutations is None else mutations.throttle_ms(now_ms)
        return self._throttled(user, client_id, ((by_mutations, self.mutation), (by_time, self.request)), now_ms)

    def worked(self, user: str, client_id: str, work_ns: int, now_ms: int) -> None:
        """Records time of the event loop that was spent after the client was answered."""
        self._worked(user, client_id, work_ns, now_ms)

    def exempted(self, work_ns: int, now_ms: int) -> None:
        """Records time of the event loop that no quota counts."""
        self.exempt.record(work_ns * _PERCENT_PER_NS, now_ms)

    def mutations(self, user: str, client_id: str, strict: bool, now_ms: int) -> Mutations | None:
        """The quota of changes for one request; None if the client has no limit."""
        found = self.mutation.measurement(user, client_id, now_ms)
        if found is None:
            return None
        measured, limit = found
        return Mutations(measured.bucket, limit, measured.samples, strict=strict)

    def _worked(self, user: str, client_id: str, work_ns: int, now_ms: int) -> int:
        return self.request.record(user, client_id, work_ns * _PERCENT_PER_NS, now_ms)

    @staticmethod
    def _throttled(
        user: str, client_id: str, reasons: tuple[tuple[int, ClientQuota], tuple[int, ClientQuota]], now_ms: int
    ) -> int:
        """The longest throttle time, which is noted at its quota."""
        (first_ms, first), (second_ms, second) = reasons
        time_ms, quota = (first_ms, first) if first_ms > second_ms else (second_ms, second)
        if time_ms:
            quota.throttled(user, client_id, time_ms, now_ms)
        return time_ms
