"""Every API names the rights that Apache Kafka asks for, or why it needs none, and has exactly one handler."""

from typing import Any

import pytest

from ottla.broker.api.compatibility import LEFT_OUT
from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.api.registry import ROUTES, Route
from ottla.protocol.rights import AclOperation, ResourceType, Right

APIS = {route.api.name: route.api for route in ROUTES.values()}
NEEDED = {
    "produce": {"WRITE TOPIC", "WRITE TRANSACTIONAL_ID"},
    "fetch": {"READ TOPIC", "CLUSTER_ACTION CLUSTER"},
    "list_offsets": {"DESCRIBE TOPIC"},
    "metadata": {"DESCRIBE TOPIC", "CREATE TOPIC", "CREATE CLUSTER"},
    "offset_commit": {"READ GROUP", "READ TOPIC"},
    "offset_fetch": {"DESCRIBE GROUP", "DESCRIBE TOPIC"},
    "find_coordinator": {"DESCRIBE GROUP", "DESCRIBE TRANSACTIONAL_ID"},
    "join_group": {"READ GROUP"},
    "heartbeat": {"READ GROUP"},
    "leave_group": {"READ GROUP"},
    "sync_group": {"READ GROUP"},
    "describe_groups": {"DESCRIBE GROUP"},
    "list_groups": {"DESCRIBE CLUSTER", "DESCRIBE GROUP"},
    "api_versions": set(),
    "sasl_handshake": set(),
    "sasl_authenticate": set(),
    "create_delegation_token": {"CREATE_TOKENS USER"},
    "renew_delegation_token": set(),
    "expire_delegation_token": set(),
    "describe_delegation_token": {"DESCRIBE DELEGATION_TOKEN", "DESCRIBE_TOKENS USER"},
    "describe_user_scram_credentials": {"DESCRIBE CLUSTER"},
    "alter_user_scram_credentials": {"ALTER CLUSTER"},
    "create_topics": {"CREATE CLUSTER", "CREATE TOPIC", "DESCRIBE_CONFIGS TOPIC"},
    "delete_topics": {"DELETE TOPIC"},
    "delete_records": {"DELETE TOPIC"},
    "init_producer_id": {"WRITE TRANSACTIONAL_ID", "IDEMPOTENT_WRITE CLUSTER", "WRITE TOPIC"},
    "offset_for_leader_epoch": {"DESCRIBE TOPIC", "CLUSTER_ACTION CLUSTER"},
    "add_partitions_to_txn": {"WRITE TRANSACTIONAL_ID", "WRITE TOPIC", "CLUSTER_ACTION CLUSTER"},
    "add_offsets_to_txn": {"WRITE TRANSACTIONAL_ID", "READ GROUP"},
    "end_txn": {"WRITE TRANSACTIONAL_ID"},
    "write_txn_markers": {"ALTER CLUSTER", "CLUSTER_ACTION CLUSTER"},
    "txn_offset_commit": {"WRITE TRANSACTIONAL_ID", "READ GROUP", "READ TOPIC"},
    "describe_transactions": {"DESCRIBE TRANSACTIONAL_ID", "DESCRIBE TOPIC"},
    "list_transactions": {"DESCRIBE TRANSACTIONAL_ID"},
    "describe_acls": {"DESCRIBE CLUSTER"},
    "create_acls": {"ALTER CLUSTER"},
    "delete_acls": {"ALTER CLUSTER"},
    "describe_configs": {"DESCRIBE_CONFIGS TOPIC", "DESCRIBE_CONFIGS GROUP", "DESCRIBE_CONFIGS CLUSTER"},
    "alter_configs": {"ALTER_CONFIGS TOPIC", "ALTER_CONFIGS GROUP", "ALTER_CONFIGS CLUSTER"},
    "incremental_alter_configs": {"ALTER_CONFIGS TOPIC", "ALTER_CONFIGS GROUP", "ALTER_CONFIGS CLUSTER"},
    "alter_replica_log_dirs": {"ALTER CLUSTER"},
    "describe_log_dirs": {"DESCRIBE CLUSTER"},
    "create_partitions": {"ALTER TOPIC"},
    "delete_groups": {"DELETE GROUP"},
    "elect_leaders": {"ALTER CLUSTER"},
    "alter_partition_reassignments": {"ALTER CLUSTER"},
    "list_partition_reassignments": {"DESCRIBE CLUSTER"},
    "offset_delete": {"DELETE GROUP", "READ TOPIC"},
    "describe_client_quotas": {"DESCRIBE_CONFIGS CLUSTER"},
    "alter_client_quotas": {"ALTER_CONFIGS CLUSTER"},
    "describe_cluster": set(),
    "describe_producers": {"READ TOPIC"},
    "unregister_broker": {"ALTER CLUSTER"},
    "update_features": {"ALTER CLUSTER"},
    "list_config_resources": {"DESCRIBE_CONFIGS CLUSTER"},
    "describe_topic_partitions": {"DESCRIBE TOPIC"},
    "await_revision": {"CLUSTER_ACTION CLUSTER"},
}
"""By API: the rights that Apache Kafka 4.3.1 asks for (KafkaApis, ControllerApis). AwaitRevision is between brokers."""


def test_every_api_names_its_rights_or_why_it_needs_none() -> None:
    silent = {name for name, api in APIS.items() if not api.rights and not isinstance(api.needs, NoRightNeeded)}
    assert not silent


@pytest.mark.parametrize("name", sorted(APIS))
def test_the_rights_are_those_that_apache_kafka_asks_for(name: str) -> None:
    assert {f"{right.operation.name} {right.resource_type.name}" for right in APIS[name].rights} == NEEDED[name]


def test_a_right_on_the_cluster_alone_comes_with_a_refusal() -> None:
    on_cluster, on_topic = (
        Right(AclOperation.ALTER, ResourceType.CLUSTER),
        Right(AclOperation.ALTER, ResourceType.TOPIC),
    )
    assert Api(key=43, versions=(0, 2), needs=(on_topic, on_cluster)).refuse is None
    with pytest.raises(ValueError, match="API 43 needs a refusal"):
        Api(key=43, versions=(0, 2), needs=(on_cluster,))
    with pytest.raises(ValueError, match="API 43 needs a refusal"):
        Api(key=43, versions=(0, 2), needs=(on_topic,), refuse=lambda version, body: {})


def test_no_api_can_be_declared_without_rights() -> None:
    undeclared: Any = Api
    with pytest.raises(TypeError, match="needs"):
        undeclared(key=3, versions=(0, 13))
    with pytest.raises(ValueError, match="API 3 names neither"):
        Api(key=3, versions=(0, 13), needs=())
    with pytest.raises(ValueError, match="why"):
        NoRightNeeded("")


def test_an_api_is_served_in_one_way() -> None:
    async def handle(*_: object) -> dict[str, Any]:
        return {}

    for ways in ({}, {"handle": handle, "serve": handle}):
        with pytest.raises(ValueError, match="API 3 needs exactly one of handle, taskless and serve"):
            Route(APIS["metadata"], **ways)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "resource_type"),
    [
        (AclOperation.READ, ResourceType.CLUSTER),
        (AclOperation.WRITE, ResourceType.GROUP),
        (AclOperation.CLUSTER_ACTION, ResourceType.TOPIC),
        (AclOperation.READ, ResourceType.TRANSACTIONAL_ID),
    ],
)
def test_a_right_that_nobody_could_be_granted_is_none(operation: AclOperation, resource_type: ResourceType) -> None:
    with pytest.raises(ValueError, match="no operation"):
        Right(operation, resource_type)


def test_no_api_is_served_and_left_out() -> None:
    """Otherwise docs/compatibility.md would list an API both as served and as left out."""
    assert not {key for keys in LEFT_OUT.values() for key in keys} & ROUTES.keys()
