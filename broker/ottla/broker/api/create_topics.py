"""CreateTopics (key 19), versions 2–7.

An error of one topic doesn't affect the others. The checks have the order of Kafka's ReplicationControlManager, so that
a topic with several faults gets the same error: name, existence, settings, replicas, partitions. The answer comes when
the image of every live broker shows the topics, and each broker leads its share of their partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from operator import itemgetter
from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.authorizer import allowed_names
from ottla.broker.bounded import gather_bounded
from ottla.broker.ports import WithAuthorizer, WithConfig, WithIntents
from ottla.broker.request import Request
from ottla.metadata.intents.replicas import PARTITIONS_PER_REQUEST_MAX
from ottla.metadata.intents.topics import DEFAULT, NewTopic
from ottla.metadata.naming import METADATA_TOPIC
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right
from ottla.settings.description import describe_topic
from ottla.settings.resource_checks import check_topic

API = Api(
    key=19,
    versions=(2, 7),
    needs=(
        Right(AclOperation.CREATE, ResourceType.CLUSTER),
        Right(AclOperation.CREATE, ResourceType.TOPIC),
        Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    ),
    changes_metadata=True,
)
FIRST_VERSION_WITH_DESCRIPTION = 5
FIRST_STRICT_VERSION = 6  # the first version that is refused when the client's quota of changes is used up


class Parts(WithAuthorizer, WithConfig, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    counts = Counter(topic.name for topic in body.topics)
    once = [topic for topic in body.topics if counts[topic.name] == 1]
    names = [topic.name for topic in once if topic.name != METADATA_TOPIC]
    creatable, kind = _creatable(broker, request, names), ResourceType.TOPIC
    refused = [name for name in names if name not in creatable]
    once = [topic for topic in once if topic.name in creatable or topic.name == METADATA_TOPIC]
    shown = allowed_names(broker.authorizer, request, AclOperation.DESCRIBE_CONFIGS, kind, names, quiet=True)
    total = sum(_partition_count(broker, topic) for topic in once)
    if total > PARTITIONS_PER_REQUEST_MAX:
        too_many = KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
        return {"topics": [_failed(name, too_many) for name in counts]}
    timeout_s = milliseconds(body.timeout) / 1000
    results = await gather_bounded(
        lambda topic: _create(broker, request, topic, topic.name in shown, timeout_s, body.validate_only),
        once,
    )
    unauthorized = KafkaError(ErrorCode.topic_authorization_failed, "Authorization failed.")
    results += [_failed(name, unauthorized) for name in refused]
    duplicate = KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
    return {"topics": [*results, *(_failed(name, duplicate) for name, count in counts.items() if count > 1)]}


def _creatable(broker: Parts, request: Request, names: list[str]) -> Set[str]:
    """The names of the topics that the client may create."""
    create = AclOperation.CREATE
    if broker.authorizer.allows(request, create, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True):
        return set(names)
    return allowed_names(broker.authorizer, request, create, ResourceType.TOPIC, names)


async def _create(
    broker: Parts, request: Request, topic: Any, shown: bool, timeout_s: float, validate_only: bool
) -> dict[str, Any]:
    """Creates a topic. The answer describes it if `shown`: the client may see the settings of topics of this name."""
    try:
        broker.intents.check_new_topic_name(topic.name)
        configs = _configs(broker, topic)
        if topic.assignments:
            count, factor = topic.num_partitions, topic.replication_factor
        else:
            count = _partition_count(broker, topic)
            factor = topic.replication_factor
            if factor == DEFAULT:
                factor = broker.config.get_int("default.replication.factor")
        assignments = [(assigned.partition_index, assigned.broker_ids) for assigned in topic.assignments]
        wanted = NewTopic(topic.name, count, factor, assignments, configs)
        if request.charge is not None:  # only a request that could be carried out is charged
            valid = await broker.intents.create_topic(wanted, timeout_s, validate_only=True)
            request.charge.mutates(valid.partition_count, strict=request.api_version >= FIRST_STRICT_VERSION)
        created = await broker.intents.create_topic(wanted, timeout_s, validate_only=validate_only)
    except KafkaError as error:
        return _failed(topic.name, error)
    answer: dict[str, Any] = {"name": topic.name, "topic_id": created.id}
    if not shown:
        answer |= {"num_partitions": -1, "replication_factor": -1, "configs": []}
        answer["topic_config_error_code"] = ErrorCode.topic_authorization_failed
    elif request.api_version >= FIRST_VERSION_WITH_DESCRIPTION:
        answer["num_partitions"] = created.partition_count
        answer["replication_factor"] = created.replication_factor
        answer["configs"] = sorted(describe_topic(broker.config, configs), key=itemgetter("name"))
    return answer


def _partition_count(broker: Parts, topic: Any) -> int:
    if topic.assignments:
        return len(topic.assignments)
    count: int = topic.num_partitions
    return broker.config.get_int("num.partitions") if count == DEFAULT else count


def _configs(broker: Parts, topic: Any) -> dict[str, str]:
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise KafkaError(ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(nulls)}")
    configs = {config.name: config.value for config in topic.configs}
    check_topic(broker.config, configs)
    return configs


def _failed(name: str, error: KafkaError) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": error.code,
        "error_message": error.message or None,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
