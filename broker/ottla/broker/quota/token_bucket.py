"""A token bucket: a burst is allowed, and its debt is paid back at the rate of the quota. Pure.

A sampled rate judges bursts badly: one large burst keeps the rate above its bound until the sample expires, much longer
than the pause that pays for the burst. So changes of topics, which come in bursts, have tokens. Source: Kafka's
TokenBucket and ControllerMutationQuotaManager (KIP-599).
"""

from __future__ import annotations

from .windows import Windows


class TokenBucket:
    """One client's tokens, which begin with the largest burst. The rate is in tokens per second, and may be another one
    at each call. Times are in ms, by a clock that never goes back."""

    __slots__ = ("_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._updated_ms = 0

    def tokens(self, rate: float, now_ms: int) -> float:
        """The tokens that are left; negative while a debt is paid back."""
        burst = rate * self._windows.span_ms / 1000
        self._tokens = min(burst, self._tokens + rate * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, now_ms: int) -> None:
        """Takes `count` tokens, even if fewer are left."""
        self._tokens = self.tokens(rate, now_ms) - count

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """The ms until the debt is paid back; 0 without a debt."""
        tokens = self.tokens(rate, now_ms)
        return int(-tokens / rate * 1000 + 0.5) if tokens < 0 else 0
