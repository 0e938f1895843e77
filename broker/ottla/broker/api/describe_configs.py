"""DescribeConfigs (key 32), versions 1–4: settings of topics, brokers, groups and client metrics, and log levels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from ottla.broker import ports
from ottla.broker.api.config_resources import ConfigResourceType, broker_id, check_broker_name, check_right
from ottla.broker.api.declaration import Api
from ottla.broker.damage import damages
from ottla.broker.log_levels import log_levels
from ottla.broker.request import Request
from ottla.metadata.naming import check_topic_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right
from ottla.settings import own
from ottla.settings.description import (
    Description,
    describe_broker,
    describe_broker_overrides,
    describe_client_metrics,
    describe_cluster_default,
    describe_damaged,
    describe_group,
    describe_load,
    describe_loggers,
    describe_overrides,
    describe_recovered,
    describe_topic,
    only,
)

API = Api(
    key=32,
    versions=(1, 4),
    needs=(
        Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.GROUP),
        Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    ),
    gaps=(
        "Beyond Kafka: a request for one of these names alone is answered with JSON. "
        f"`{own.OVERRIDES}` are the settings that were given to a topic, or to one broker (every broker answers for "
        f"every other). `{own.RECOVERED}` is what the recovery of logs cut off at the broker's start, `{own.DAMAGED}` "
        f"the damage that the broker has met in its logs, `{own.LOAD}` the work of the broker since its start.",
    ),
)

_PARTITIONS_PER_TURN = 500
_DAMAGES_MAX = 200


class Parts(
    ports.WithAuthorizer,
    ports.WithCompactor,
    ports.WithConfig,
    ports.WithId,
    ports.WithImage,
    ports.WithLogs,
    ports.WithPartitions,
    ports.WithReplication,
    Protocol,
): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers each resource's settings, or the error for the resource. Requested settings with unknown names are left
    out, as in Kafka."""
    results = []
    for resource in body.resources:
        result: dict[str, Any] = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_message": "",
            "configs": [],
        }
        try:
            kind, operation = resource.resource_type, AclOperation.DESCRIBE_CONFIGS
            check_right(broker, request, operation, kind, resource.resource_name)
            keys = resource.configuration_keys
            found = only(await _describe(broker, resource.resource_type, resource.resource_name, keys), keys)
            result["configs"] = [_asked(entry, body) for entry in found]
        except KafkaError as error:
            result |= {"error_code": error.code, "error_message": error.message}
        results.append(result)
    return {"results": results}


def _asked(description: Description, body: Any) -> Description:
    """The description without the parts that the client didn't ask for."""
    synonyms = description.get("synonyms", []) if body.include_synonyms else []
    documentation = description.get("documentation") if body.include_documentation else None
    return {**description, "synonyms": synonyms, "documentation": documentation}


async def _traffic(broker: Parts) -> str:
    """The bytes that clients produced and fetched, by topic and partition, as JSON; partitions without traffic are left
    out. Other tasks run in between, because a broker may have tens of thousands of partitions."""
    traffic: dict[str, dict[int, str]] = {}
    for number, partition in enumerate(list(broker.partitions), 1):
        if partition.bytes_in or partition.bytes_out:
            entry = f'"{partition.index}":[{partition.bytes_in},{partition.bytes_out}]'
            traffic.setdefault(partition.topic, {})[partition.index] = entry
        if not number % _PARTITIONS_PER_TURN:
            await asyncio.sleep(0)
    topics = []
    for number, (topic, entries) in enumerate(traffic.items(), 1):
        topics.append(f'"{topic}":{{{",".join(entries.values())}}}')  # no topic's name has characters that JSON escapes
        if not number % _PARTITIONS_PER_TURN:
            await asyncio.sleep(0)
    return f"{{{','.join(topics)}}}"


async def _describe(broker: Parts, kind: int, name: str, keys: Sequence[str] | None) -> Iterable[Description]:
    image = broker.image
    alone = keys[0] if keys is not None and len(keys) == 1 else None
    if kind == ConfigResourceType.TOPIC:
        check_topic_name(name)
        if name not in image.topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if alone == own.OVERRIDES:
            return [describe_overrides(image.config("topic", name))]
        return describe_topic(broker.config, image.config("topic", name))
    if kind == ConfigResourceType.BROKER:
        if not name:
            return describe_cluster_default(broker.config)
        if alone == own.OVERRIDES:
            return [describe_broker_overrides(image.config("broker", str(broker_id(name))))]
        check_broker_name(name, broker.id, "Unexpected broker id, expected {} or empty string, but received {}")
        if alone == own.RECOVERED:
            cuts = broker.logs.cuts
            return [describe_recovered(cuts.logs, cuts.bytes_dropped, (cut._asdict() for cut in cuts.kept))]
        if alone == own.DAMAGED:
            return [describe_damaged(damage._asdict() for damage in islice(damages(broker), _DAMAGES_MAX))]
        if alone == own.LOAD:
            return [describe_load(time.process_time(), await _traffic(broker))]
        return describe_broker(broker.config)
    if kind == ConfigResourceType.BROKER_LOGGER:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Broker id must not be empty")
        check_broker_name(name, broker.id, "Unexpected broker id, expected {} but received {}")
        return describe_loggers(log_levels())
    if kind == ConfigResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Group name must not be empty")
        return describe_group(broker.config, image.config("group", name))
    if kind == ConfigResourceType.CLIENT_METRICS:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Client metrics subscription name must not be empty")
        return describe_client_metrics(image.config("client-metrics", name))
    raise KafkaError(ErrorCode.invalid_request, f"Resources of type {kind} have no settings")
