"""The reasons why a broker isn't ready, in the order of its start."""

from __future__ import annotations

from unittest.mock import Mock

from ottla.broker.readiness import Readiness


def test_a_broker_says_what_its_start_still_lacks() -> None:
    store, membership, making_way = Mock(refusal=None), Mock(registered=False), Mock(made=False)
    readiness = Readiness(store, membership, making_way)
    assert readiness.missing == "the logs are being recovered"
    readiness.recovered = True
    assert readiness.missing == "the broker isn't registered yet"
    membership.registered = True
    assert readiness.missing == "the broker is starting to lead, or draining"
    readiness.serving = True
    assert readiness.missing == ""
    making_way.made = True
    assert readiness.missing == "the metadata store answers other brokers, and not this one"


def test_a_store_of_others_is_the_reason_whatever_else_is_missing() -> None:
    store = Mock(refusal=ValueError("an empty store"))
    readiness = Readiness(store, Mock(registered=False), Mock(made=False))
    assert readiness.missing == "an empty store"
