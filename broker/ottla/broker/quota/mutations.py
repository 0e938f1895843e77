"""The quota of changes that one request makes: partitions that it creates or deletes. Pure.

In versions of an API that know the error THROTTLING_QUOTA_EXCEEDED the quota is strict: while a debt is paid back, each
change is refused. A change is allowed whole if there is no debt, however large the change is. In older versions the
quota is permissive: each change is made, and the answer's throttle time grows. Source: KIP-599, and
StrictControllerMutationQuota and PermissiveControllerMutationQuota in Kafka's ControllerMutationQuotaManager.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError

from .samples import Samples
from .token_bucket import TokenBucket


class Mutations:
    """The changes of one request. `rate` is the client's limit, in partitions per second. `made` are the changes that
    the client has made; they are measured for the metrics alone."""

    __slots__ = ("_bucket", "_made", "_noted_ms", "_rate", "_strict", "_throttle_ms")

    def __init__(self, bucket: TokenBucket, rate: float, made: Samples, *, strict: bool) -> None:
        self._bucket = bucket
        self._rate = rate
        self._made = made
        self._strict = strict
        self._throttle_ms = 0
        self._noted_ms = 0

    def take(self, partitions: int, now_ms: int) -> None:
        """Counts a change. Raises KafkaError(throttling_quota_exceeded) if the quota is strict and has a debt."""
        if not self._strict:
            self._take(partitions, now_ms)
        debt_ms = self._bucket.throttle_ms(self._rate, now_ms)
        if debt_ms:
            self._throttle_ms, self._noted_ms = debt_ms, now_ms
        if not self._strict:
            return
        if debt_ms:
            raise KafkaError(ErrorCode.throttling_quota_exceeded)
        self._take(partitions, now_ms)

    def _take(self, partitions: int, now_ms: int) -> None:
        self._bucket.take(partitions, self._rate, now_ms)
        self._made.record(partitions, now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """How long the client is to be throttled from now on, in ms: the time since the last change has passed
        already."""
        return max(self._throttle_ms - (now_ms - self._noted_ms), 0)
