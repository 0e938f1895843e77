"""What a check of rights adds to a Produce or Fetch, as a part of a fixed amount of interpreted work.

The bound stands for 0.5 µs on the machine of `docs/performance.md`, where that work takes 5 µs in a quiet moment.
"""

from __future__ import annotations

import pickle
import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ottla.broker.authorization.rules import Rules
from ottla.broker.authorizer import AclAuthorizer
from ottla.broker.request import Request
from ottla.metadata.image import Image
from ottla.protocol.rights import AclOperation

INTERPRETED = pickle.dumps(("topic", 0, None))
WINDOW = 1_000  # calls, in less than a millisecond: short enough that other processes leave some windows undisturbed
WINDOWS = 1_000
PART_MAX = 0.1  # measured: 0.07


def seconds(call: Callable[[], Any], window: int) -> float:
    """The time of one call, in the cheapest window."""
    return min(timeit.repeat(call, number=window, repeat=WINDOWS)) / window


def test_a_known_right_costs_little() -> None:
    authorizer = AclAuthorizer(Rules(["User:a"], allow_if_none=False), Image)
    connection: Any = SimpleNamespace(principal="User:a", client_host="10.0.0.1")
    broker, request, topics = SimpleNamespace(authorizer=authorizer), Request(0, 9, 1, "c", connection), [("t", [])]
    assert authorizer.allows_topic(request, AclOperation.WRITE, "t")

    def asked() -> bool:  # as `produce.serve` asks
        if broker.authorizer.enforced:
            known = broker.authorizer.known_topics(request, AclOperation.WRITE)
            for topic, _ in topics:
                if topic not in known:
                    return False
        return True

    assert asked()
    added = seconds(asked, WINDOW) - seconds(lambda: None, WINDOW)
    interpreted = seconds(lambda: pickle._loads(INTERPRETED), WINDOW // 10)  # type: ignore[attr-defined]
    assert added < PART_MAX * interpreted
