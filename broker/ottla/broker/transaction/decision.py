"""The decision about a request: an answer, and the change that is written before the answer is given. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode

from .metadata import NO_EPOCH, NO_PRODUCER_ID, Transaction


class Answer(NamedTuple):
    """The answer to a request. The producer id and epoch are those of the producer's next transaction."""

    error: ErrorCode = ErrorCode.none
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Decision:
    """The state `after` is written, and `answer` is given when the record of that state is committed. Without `after`,
    nothing changes, and `answer` is given at once."""

    answer: Answer
    after: Transaction | None = None


class Wanted(Enum):
    """The request can't be decided yet, because the rules need something from outside first."""

    PRODUCER_ID = "a producer id that was never used; the request is then decided anew"


def refused(error: ErrorCode) -> Decision:
    """The decision that a request changes nothing, and is answered with `error`."""
    return Decision(Answer(error))


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a decision in ms since 1970, and the finalised level of the feature `transaction.version`. The level
    says by which protocol the coordinator itself aborts transactions, and in which format records are written. Which
    protocol a client speaks follows from the versions of its requests alone."""

    now_ms: int
    feature_level: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The coordinator's limits, from the settings `transaction.max.timeout.ms`, `transactional.id.expiration.ms` and
    `transaction.two.phase.commit.enable`."""

    timeout_ms_max: int = 900_000
    expiration_ms: int = 604_800_000
    two_phase_commit: bool = False
