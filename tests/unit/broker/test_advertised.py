"""The addresses that a broker advertises to clients."""

import pytest

from ottla.broker.advertised import ADDRESSES, advertised
from ottla.settings.config import BrokerConfig

STATIC = {
    "node.id": "1",
    "listeners": "IN://:9092,OUT://:9094",
    "advertised.listeners": "IN://pod-1:9092",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
    "inter.broker.listener.name": "IN",
}
PORTS = {"IN": 9092, "OUT": 9094}


@pytest.mark.parametrize(
    ("addresses", "told"),
    [
        ("", {"IN": "IN://pod-1:9092"}),
        ("OUT://node:31000", {"IN": "IN://pod-1:9092", "OUT": "OUT://node:31000"}),
        ("out://[fd00::1]:31000", {"IN": "IN://pod-1:9092", "OUT": "OUT://[fd00::1]:31000"}),
        ("IN://other:1", {"IN": "IN://other:1"}),
        ("GONE://node:31000", {"IN": "IN://pod-1:9092"}),
    ],
)
def test_addresses_that_come_later(addresses: str, told: dict[str, str]) -> None:
    config, _ = BrokerConfig(STATIC).with_dynamic({ADDRESSES: addresses}, {})
    found = advertised(config, PORTS, "machine")
    shown = {
        name: f"{name}://{f'[{one.host}]' if ':' in one.host else one.host}:{one.port}" for name, one in found.items()
    }
    assert shown == told


def test_without_a_word_of_it_what_is_opened_is_told() -> None:
    found = advertised(BrokerConfig({"node.id": "1", "listeners": "PLAINTEXT://:0"}), {"PLAINTEXT": 4711}, "machine")
    assert (found["PLAINTEXT"].host, found["PLAINTEXT"].port) == ("machine", 4711)
