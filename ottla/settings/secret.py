"""Values that must never be shown: passwords, private keys, login modules. Pure.

A `Secret` prints as `***`, so that a log line, an error message or a data class with a secret in it shows nothing. The
text itself is read by `value`, which makes each place that uses a secret easy to find. Source: Kafka's
`org.apache.kafka.common.config.types.Password`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that prints as `***`."""

    value: str

    def __repr__(self) -> str:
        return "***"
