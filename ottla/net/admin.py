"""The requests about settings that the operator and the command line share, and the errors in brokers' answers.

The operator sends its requests over a `Peer`, by `ask`. The command line uses kafka-python's admin client. It sends a
request over a blocking connection only if this client can't make the request, as for the settings that apply to all
brokers. Messages are dictionaries, as `ottla.protocol.messages` takes them.

Source: Kafka's DescribeConfigs and IncrementalAlterConfigs (KIP-339).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import read_response, write_request

from .peer import Peer

DESCRIBE_CONFIGS, ALTER_CONFIGS = (32, 4), (44, 1)  # for each API its key, and the version of its messages
TOPIC, BROKER = 2, 4  # types of resources that have settings; the empty name of type BROKER means all brokers

Edit = tuple[str, int, str | None]
"""A setting's name, the operation (a number of AlterConfigOp.OpType), and the value."""


async def ask(peer: Peer, api: tuple[int, int], message: Mapping[str, Any], timeout_seconds: float) -> Any:
    """Sends `message` as a request of `api` (key, version), and returns the answer. Raises OSError, ProtocolError."""
    key, version = api
    answer = await peer.request(key, version, write_request(key, version, message), timeout_seconds)
    return read_response(key, version, bytes(answer.frame[answer.start : answer.end]))


def settings_wanted(kind: int, names: Iterable[str], settings: Iterable[str] | None = None) -> dict[str, Any]:
    """A DescribeConfigs request for `settings` of the named resources (None: for all their settings)."""
    keys = None if settings is None else list(settings)
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def settings_altered(kind: int, changes: Mapping[str, Iterable[Edit]]) -> dict[str, Any]:
    """An IncrementalAlterConfigs request with the edits of each named resource.

    A broker applies either all edits of a resource or none.
    """
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": setting, "config_operation": operation, "value": value} for setting, operation, value in edits
            ],
        }
        for name, edits in changes.items()
    ]
    return {"resources": resources, "validate_only": False}


def refusal(answered: Any) -> KafkaError | None:
    """The error in one resource's part of an answer; None if the broker carried out that part of the request."""
    if answered.error_code == ErrorCode.none:
        return None
    return KafkaError(answered.error_code, answered.error_message or "")
