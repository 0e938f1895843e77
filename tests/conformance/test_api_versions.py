"""The APIs and versions that the broker advertises, compared with Apache Kafka 4.3."""

import struct

from ottla.broker.api.compatibility import LEFT_OUT
from tests.peers.apache_kafka import ApacheKafka, tool
from tests.peers.wire import Wire, frame

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35


def advertised(bootstrap: str) -> dict[int, tuple[int, int]]:
    with Wire(bootstrap) as wire:
        answer = wire.call(API_VERSIONS, 3, {"client_software_name": "ottla-tests", "client_software_version": "1"})
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}


def test_ranges_are_those_of_apache_kafka(bootstrap: str, apache_kafka: ApacheKafka) -> None:
    ours, theirs = advertised(bootstrap), advertised(apache_kafka.bootstrap)
    left_out = frozenset[int]().union(*LEFT_OUT.values())
    assert not {key: versions for key, versions in ours.items() if key not in theirs}, (
        "APIs that Kafka doesn't advertise"
    )
    assert not set(ours) & left_out, "the broker has this API by now: remove it from LEFT_OUT"
    expected = {key: versions for key, versions in theirs.items() if key not in left_out}
    assert ours == expected


def test_features_that_are_not_there_are_not_finalised(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        answer = wire.call(API_VERSIONS, 4, {"client_software_name": "ottla-tests", "client_software_version": "1"})
    finalised = {feature.name for feature in answer.finalized_features}
    assert not finalised & {"group.version", "share.version", "streams.version"}


def test_unknown_version_is_answered_in_version_0(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.send(frame(struct.pack(">hhih", API_VERSIONS, 99, 7, -1) + b"\x00whatever"))
        correlation_id, error, count, key, lowest, highest = struct.unpack(">ihihhh", wire.receive())
        assert (correlation_id, error, count, key) == (7, UNSUPPORTED_VERSION, 1, API_VERSIONS)
        assert (lowest, highest) == advertised(bootstrap)[API_VERSIONS]
        # The connection stays open: the client asks again, in the advertised version.
        assert (
            wire.call(API_VERSIONS, highest, {"client_software_name": "x", "client_software_version": "1"}).error_code
            == 0
        )


def test_client_name_outside_the_rule_is_invalid(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        assert (
            wire.call(API_VERSIONS, 3, {"client_software_name": "-no-", "client_software_version": "1"}).error_code
            == 42
        )


def test_pipelined_with_another_request(bootstrap: str) -> None:
    """A client may send its next requests before the first answer. The answers come in the order of the requests."""
    with Wire(bootstrap) as wire:
        for _ in range(5):
            wire.ask(API_VERSIONS, 0, b"")
        answers = [struct.unpack_from(">i", wire.receive())[0] for _ in range(5)]
    assert answers == [1, 2, 3, 4, 5]


def test_kafkas_own_tool_understands_every_range(bootstrap: str) -> None:
    printed = tool("broker-api-versions", "--bootstrap-server", bootstrap)
    assert "Produce(0): 0 to" in printed
    assert "ListConfigResources(74)" in printed
