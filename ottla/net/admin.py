"""What every admin client of ours says and reads, whatever connection it has: settings of resources, and refusals.

The operator asks over a `Peer`, by `ask`; the command line over a blocking connection where kafka-python's admin client
can't ask (settings of all brokers). Messages are dictionaries, as `ottla.protocol.messages` takes them.

Source: Kafka's DescribeConfigs and IncrementalAlterConfigs (KIP-339).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import read_response, write_request

from .peer import Peer

DESCRIBE_CONFIGS, ALTER_CONFIGS = (32, 4), (44, 1)  # an API's key, and the version of these messages
TOPIC, BROKER = 2, 4  # types of resources that have settings; the broker without a name stands for all brokers

Edit = tuple[str, int, str | None]
"""A setting, what is done to it (AlterConfigOp.OpType), and the value."""


async def ask(peer: Peer, api: tuple[int, int], message: Mapping[str, Any], timeout_seconds: float) -> Any:
    """The answer of one broker to a request of that API (key, version). Raises OSError, ProtocolError."""
    key, version = api
    answer = await peer.request(key, version, write_request(key, version, message), timeout_seconds)
    return read_response(key, version, bytes(answer.frame[answer.start : answer.end]))


def settings_wanted(kind: int, names: Iterable[str], settings: Iterable[str] | None = None) -> dict[str, Any]:
    """DescribeConfigs of the named resources: these settings, or all of them."""
    keys = None if settings is None else list(settings)
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def settings_altered(kind: int, changes: Mapping[str, Iterable[Edit]]) -> dict[str, Any]:
    """IncrementalAlterConfigs: the edits of each named resource, of which a broker does all or none."""
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
    """Why a broker refused what this part of an answer is about; None where it did it."""
    if answered.error_code == ErrorCode.none:
        return None
    return KafkaError(answered.error_code, answered.error_message or "")
