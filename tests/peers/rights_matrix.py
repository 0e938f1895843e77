"""A matrix of grants and requests: what does a client with these rights get from each API?

The client and the administrator both connect without a login, so both are User:ANONYMOUS. They come from different
addresses of the loopback interface, and the hosts of the ACLs tell them apart.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from ottla.protocol.acls import ANY, AclBinding, PatternType, Permission
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType
from tests.peers.wire import Closed, Wire

ADMINISTRATOR, CLIENT = "127.0.0.1", "127.0.0.9"
EVERYBODY = "User:ANONYMOUS"
AUTHORIZER = {"authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
SUPER_USERS = {"super_users": EVERYBODY}

TOPICS = ("orders", "secret")  # which exist
ABSENT = "absent"
NAMES = (*TOPICS, ABSENT)
GROUP, TRANSACTION = "g", "tx"
NO_ID = UUID(int=0)
UNKNOWN_ID = UUID("11111111-2222-4333-8444-555555555555")

TOPIC, GROUPS, CLUSTER, IDS = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
Op = AclOperation


def acl(
    operation: AclOperation,
    kind: ResourceType = TOPIC,
    name: str = "orders",
    *,
    prefixed: bool = False,
    deny: bool = False,
    principal: str = EVERYBODY,
    host: str = CLIENT,
) -> AclBinding:
    """An ACL for the client."""
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    return AclBinding(kind, pattern, name, principal, host, operation, permission)


def cluster(operation: AclOperation, **more: Any) -> AclBinding:
    """An ACL for the client on the cluster."""
    return acl(operation, CLUSTER, CLUSTER_NAME, **more)


FULL = [acl(Op.ALL, kind, "*") for kind in (TOPIC, GROUPS, IDS)] + [cluster(Op.ALL)]
GRANTS: dict[str, list[AclBinding]] = {
    "nothing": [],
    **{f"{op.name} on a topic": [acl(op)] for op in Op if op <= Op.ALTER_CONFIGS and op is not Op.CLUSTER_ACTION},
    **{
        f"{op.name} on a group": [acl(op, GROUPS, GROUP)]
        for op in (Op.ALL, Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
    },
    **{
        f"{op.name} on the cluster": [cluster(op)]
        for op in Op
        if op <= Op.IDEMPOTENT_WRITE and op not in (Op.READ, Op.WRITE)
    },
    **{f"{op.name} on a transactional id": [acl(op, IDS, TRANSACTION)] for op in (Op.ALL, Op.WRITE, Op.DESCRIBE)},
    "everything": FULL,
    "everything on every topic": [acl(Op.ALL, TOPIC, "*")],
    "READ on a prefix": [acl(Op.READ, TOPIC, "or", prefixed=True)],
    "WRITE on a prefix that is a whole name": [acl(Op.WRITE, TOPIC, "orders", prefixed=True)],
    "DESCRIBE on an absent topic": [acl(Op.DESCRIBE, TOPIC, ABSENT)],
    "WRITE on an absent topic": [acl(Op.WRITE, TOPIC, ABSENT)],
    "everything on a prefix of groups": [acl(Op.ALL, GROUPS, "g", prefixed=True)],
    "everything for everybody": [each._replace(principal="User:*") for each in FULL],
    "everything from elsewhere": [each._replace(host="10.0.0.9") for each in FULL],
    "everything for another user": [each._replace(principal="User:bob") for each in FULL],
    "everything but one topic": [*FULL, acl(Op.ALL, TOPIC, "secret", deny=True)],
    "everything but reading a prefix": [*FULL, acl(Op.READ, TOPIC, "sec", prefixed=True, deny=True)],
    "everything but describing a topic": [*FULL, acl(Op.DESCRIBE, TOPIC, "secret", deny=True)],
    "everything but describing the cluster": [*FULL, cluster(Op.DESCRIBE, deny=True)],
    "everything but altering the cluster": [*FULL, cluster(Op.ALTER, deny=True)],
    "everything but writing": [*FULL, acl(Op.WRITE, TOPIC, "*", deny=True), acl(Op.WRITE, IDS, "*", deny=True)],
    "everything but the group": [*FULL, acl(Op.ALL, GROUPS, GROUP, deny=True)],
    "everything but a transaction's topic": [*FULL, acl(Op.ALL, TOPIC, "orders", deny=True)],
    "a consumer": [acl(Op.READ), acl(Op.READ, GROUPS, GROUP)],
    "a producer": [acl(Op.WRITE), cluster(Op.IDEMPOTENT_WRITE)],
    "a transactional producer": [acl(Op.WRITE), acl(Op.WRITE, IDS, TRANSACTION), acl(Op.READ, GROUPS, GROUP)],
    "a copying producer": [
        acl(Op.READ),
        acl(Op.WRITE, TOPIC, "secret"),
        acl(Op.WRITE, IDS, TRANSACTION),
        acl(Op.READ, GROUPS, GROUP),
    ],
    "a follower": [cluster(Op.CLUSTER_ACTION)],
    "an observer": [cluster(Op.DESCRIBE), cluster(Op.DESCRIBE_CONFIGS), acl(Op.DESCRIBE, TOPIC, "*")],
}

# The API's key and version, and the message. The key `ids` stands for the ids of TOPICS and an unknown one.
Request = tuple[int, int, dict[str, Any]]


def _partitions(field: str, extra: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    return [{field: 0, **(extra or {})}]


def _of_names(name: str, parts: str, value: Any, names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    return [{name: each, parts: value} for each in names]


def requests(ids: Mapping[str, UUID], doomed: UUID) -> dict[str, Request]:
    """All requests, by a label. They leave the topics, the group and the transactional id as they are."""
    now_ms = int(time.time() * 1000)  # retention would delete records of another time
    batch = build_batch([Record(0, now_ms, None, b"v")])
    transactional = build_batch(
        [Record(0, now_ms, None, b"v")], producer_id=12345, producer_epoch=0, base_sequence=0, transactional=True
    )
    fetched = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
    fetched |= {"log_start_offset": -1, "partition_max_bytes": 1000}
    fetch = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0, "rack_id": ""}
    fetch |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    by_id = [*ids.values(), UNKNOWN_ID]
    offset = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    commit = {"group_id": GROUP, "member_id": "", "group_instance_id": None}
    commit |= {"generation_id_or_member_epoch": -1}
    named_offsets = _of_names("name", "partitions", _partitions("partition_index", offset))
    producer = {"producer_id": 12345, "producer_epoch": 0}
    configs = [(2, "orders"), (2, "secret"), (2, ABSENT), (4, "0"), (32, GROUP), (8, "0"), (16, "m")]
    changed = [{"resource_type": 2, "resource_name": name, "configs": []} for name in NAMES]
    changed += [{"resource_type": kind, "resource_name": name, "configs": []} for kind, name in ((4, "0"), (32, GROUP))]
    member = {"group_id": GROUP, "member_id": "m", "group_instance_id": None}
    entity = [{"entity_type": "user", "entity_name": "u"}]
    quota = {"key": "producer_byte_rate", "value": 1000.0, "remove": False}
    filters = {"resource_name_filter": None, "principal_filter": "User:nobody", "host_filter": None}
    filters |= {"resource_type_filter": ANY, "pattern_type_filter": ANY, "operation": ANY, "permission_type": ANY}
    creation = {"resource_type": 2, "resource_name": "z", "resource_pattern_type": 3, "principal": "User:nobody"}
    creation |= {"host": "*", "operation": 3, "permission_type": 3}
    mistakes: list[dict[str, Any]] = [{"resource_name": ""}, {"resource_type": 4}, {"principal": "nobody"}]
    marker = {"producer_id": 12345, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    marker |= {"topics": [{"name": ABSENT, "partition_indexes": [0]}]}
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    timeout = 5000
    added = {"v3_and_below_transactional_id": TRANSACTION, "v3_and_below_producer_id": 12345}
    added |= {"v3_and_below_producer_epoch": 0}
    return {
        "Produce": (
            0,
            9,
            {
                "transactional_id": None,
                "acks": 1,
                "timeout": timeout,
                "topic_data": _of_names("name", "partition_data", _partitions("index", {"records": batch})),
            },
        ),
        "Produce in a transaction": (
            0,
            9,
            {
                "transactional_id": TRANSACTION,
                "acks": 1,
                "timeout": timeout,
                "topic_data": _of_names("name", "partition_data", _partitions("index", {"records": transactional})),
            },
        ),
        "Produce by id": (
            0,
            13,
            {
                "transactional_id": None,
                "acks": 1,
                "timeout": timeout,
                "topic_data": [
                    {"topic_id": each, "partition_data": _partitions("index", {"records": batch})} for each in by_id
                ],
            },
        ),
        "Fetch": (1, 12, {**fetch, "replica_id": -1, "topics": _of_names("topic", "partitions", [fetched])}),
        "Fetch by id": (
            1,
            13,
            {**fetch, "replica_id": -1, "topics": _of_names("topic_id", "partitions", [fetched], by_id)},
        ),
        "Fetch of a follower": (
            1,
            12,
            {**fetch, "replica_id": 7, "topics": _of_names("topic", "partitions", [fetched])},
        ),
        "ListOffsets": (
            2,
            7,
            {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": _of_names(
                    "name", "partitions", _partitions("partition_index", {"current_leader_epoch": -1, "timestamp": -1})
                ),
            },
        ),
        "Metadata": (3, 12, _metadata([{"topic_id": NO_ID, "name": name} for name in NAMES])),
        "Metadata of all topics": (3, 12, _metadata(None)),
        "Metadata by id": (3, 12, _metadata([{"topic_id": each, "name": None} for each in by_id])),
        "Metadata with the cluster's operations": (
            3,
            9,
            {**_metadata([{"name": "orders"}]), "include_cluster_authorized_operations": True},
        ),
        "OffsetCommit": (8, 8, {**commit, "topics": named_offsets}),
        "OffsetCommit by id": (
            8,
            10,
            {**commit, "topics": _of_names("topic_id", "partitions", _partitions("partition_index", offset), by_id)},
        ),
        "OffsetFetch": (9, 8, _offsets_of([_asked(name, "name") for name in NAMES])),
        "OffsetFetch of all topics": (9, 8, _offsets_of(None)),
        "OffsetFetch by id": (9, 10, _offsets_of([_asked(each, "topic_id") for each in by_id])),
        "OffsetFetch, an older version": (
            9,
            5,
            {"group_id": GROUP, "topics": [_asked(name, "name") for name in NAMES]},
        ),
        "FindCoordinator of groups": (10, 4, {"key_type": 0, "coordinator_keys": [GROUP, "another"]}),
        "FindCoordinator of transactions": (10, 4, {"key_type": 1, "coordinator_keys": [TRANSACTION, "another"]}),
        "FindCoordinator, an older version": (10, 2, {"key_type": 0, "key": GROUP}),
        "JoinGroup": (
            11,
            5,
            {
                "group_id": "another-group",
                "session_timeout": 6000,
                "rebalance_timeout": timeout,
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        ),
        "Heartbeat": (12, 3, {**member, "generation_id": 3}),
        "LeaveGroup": (13, 3, {"group_id": GROUP, "members": [{"member_id": "m", "group_instance_id": None}]}),
        "SyncGroup": (14, 3, {**member, "generation_id": 3, "assignments": []}),
        "DescribeGroups": (15, 5, {"groups": [GROUP, "another"], "include_authorized_operations": True}),
        "ListGroups": (16, 4, {"states_filter": []}),
        "CreateTopics": (
            19,
            7,
            {
                "topics": [{"name": "new", **new}, {"name": "orders", **new}],
                "timeout": timeout,
                "validate_only": True,
            },
        ),
        "DeleteTopics": (20, 6, {"topics": [{"name": ABSENT, "topic_id": NO_ID}], "timeout": timeout}),
        "DeleteTopics by id": (
            20,
            6,
            {"topics": [{"name": None, "topic_id": each} for each in (UNKNOWN_ID, doomed)], "timeout": timeout},
        ),
        "DeleteRecords": (
            21,
            2,
            {
                "topics": _of_names("name", "partitions", _partitions("partition_index", {"offset": 0})),
                "timeout": timeout,
            },
        ),
        "InitProducerId": (22, 3, _init(None)),
        "InitProducerId of a transaction": (22, 3, _init(TRANSACTION)),
        "OffsetForLeaderEpoch": (
            23,
            4,
            {
                "replica_id": -1,
                "topics": _of_names(
                    "topic", "partitions", _partitions("partition", {"current_leader_epoch": -1, "leader_epoch": 0})
                ),
            },
        ),
        "AddPartitionsToTxn": (24, 3, {**added, "v3_and_below_topics": _of_names("name", "partitions", [0])}),
        "AddPartitionsToTxn of existing topics": (
            24,
            3,
            {**added, "v3_and_below_topics": _of_names("name", "partitions", [0], TOPICS)},
        ),
        "AddPartitionsToTxn between brokers": (
            24,
            4,
            {
                "transactions": [
                    {
                        "transactional_id": TRANSACTION,
                        **producer,
                        "verify_only": True,
                        "topics": _of_names("name", "partitions", [0], TOPICS),
                    }
                ]
            },
        ),
        "AddOffsetsToTxn": (25, 3, {"transactional_id": TRANSACTION, **producer, "group_id": GROUP}),
        "EndTxn": (26, 3, {"transactional_id": TRANSACTION, **producer, "committed": False}),
        "WriteTxnMarkers": (27, 1, {"markers": [marker]}),
        "TxnOffsetCommit": (
            28,
            3,
            {
                **commit,
                **producer,
                "transactional_id": TRANSACTION,
                "generation_id": -1,
                "topics": _of_names("name", "partitions", _partitions("partition_index", offset), [ABSENT]),
            },
        ),
        "CreateAcls": (30, 3, {"creations": [creation, *({**creation, **mistake} for mistake in mistakes)]}),
        "CreateAcls with a value for filters": (30, 3, {"creations": [creation, {**creation, "operation": ANY}]}),
        "CreateAcls with a pattern for filters": (30, 3, {"creations": [{**creation, "resource_pattern_type": 2}]}),
        "DescribeAcls": (29, 3, {**filters, "principal_filter": None, "host_filter": ADMINISTRATOR}),
        "DeleteAcls": (31, 3, {"filters": [filters]}),
        "DescribeConfigs": (
            32,
            4,
            {
                "resources": [
                    {"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in configs
                ],
                "include_synonyms": False,
                "include_documentation": False,
            },
        ),
        "AlterConfigs": (33, 2, {"resources": changed, "validate_only": True}),
        "IncrementalAlterConfigs": (44, 1, {"resources": changed, "validate_only": True}),
        "AlterReplicaLogDirs": (
            34,
            2,
            {"dirs": [{"path": "/nowhere", "topics": _of_names("name", "partitions", [0], TOPICS)}]},
        ),
        "DescribeLogDirs": (35, 4, {"topics": []}),
        "DescribeLogDirs, an older version": (35, 1, {"topics": []}),
        "CreatePartitions": (
            37,
            3,
            {
                "topics": [{"name": name, "count": 2, "assignments": None} for name in NAMES],
                "timeout": timeout,
                "validate_only": True,
            },
        ),
        "DeleteGroups": (42, 2, {"groups_names": ["another", "a-third"]}),
        "ElectLeaders": (
            43,
            2,
            {"election_type": 0, "topic_partitions": _of_names("topic", "partitions", [0]), "timeout": timeout},
        ),
        "AlterPartitionReassignments": (
            45,
            0,
            {"timeout": timeout, "topics": _of_names("name", "partitions", [{"partition_index": 0, "replicas": None}])},
        ),
        "ListPartitionReassignments": (
            46,
            0,
            {"timeout": timeout, "topics": _of_names("name", "partition_indexes", [0], TOPICS)},
        ),
        "OffsetDelete": (
            47,
            0,
            {
                "group_id": GROUP,
                "topics": _of_names("name", "partitions", _partitions("partition_index"), (ABSENT, "secret")),
            },
        ),
        "DescribeClientQuotas": (48, 1, {"components": [], "strict": False}),
        "AlterClientQuotas": (49, 1, {"entries": [{"entity": entity, "ops": [quota]}], "validate_only": True}),
        "DescribeUserScramCredentials": (50, 0, {"users": [{"name": "carol"}]}),
        "AlterUserScramCredentials": (51, 0, {"deletions": [{"name": "carol", "mechanism": 1}], "upsertions": []}),
        "UpdateFeatures": (57, 1, {"timeout": timeout, "feature_updates": [], "validate_only": True}),
        "DescribeCluster": (60, 1, {"include_cluster_authorized_operations": True, "endpoint_type": 1}),
        "DescribeProducers": (61, 0, {"topics": _of_names("name", "partition_indexes", [0])}),
        "UnregisterBroker": (64, 0, {"broker_id": 77}),
        "DescribeTransactions": (65, 0, {"transactional_ids": [TRANSACTION, "another"]}),
        "ListTransactions": (66, 0, {"state_filters": [], "producer_id_filters": []}),
        "ListConfigResources": (74, 1, {"resource_types": [2]}),
        "DescribeTopicPartitions": (75, 0, _described([{"name": name} for name in NAMES])),
        "DescribeTopicPartitions of all topics": (75, 0, _described([])),
        "Metadata that creates a topic": (
            3,
            9,
            {
                "topics": [{"name": "made"}],
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
                "include_cluster_authorized_operations": False,
            },
        ),
    }


def _metadata(topics: Any) -> dict[str, Any]:
    return {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}


def _asked(topic: object, field: str) -> dict[str, Any]:
    return {field: topic, "partition_indexes": [0]}


def _offsets_of(topics: Any) -> dict[str, Any]:
    group = {"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": topics}
    return {"groups": [group], "require_stable": False}


def _init(transactional_id: str | None) -> dict[str, Any]:
    message = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
    return message | {"producer_id": -1, "producer_epoch": -1}


def _described(topics: Any) -> dict[str, Any]:
    return {"topics": topics, "response_partition_limit": 100, "cursor": None}


_KEPT = frozenset(
    "name topic topic_name group_id transactional_id resource_name resource_type pattern_type key principal host "
    "operation permission_type partition partition_index partition_id index".split()
)
_LEFT_OUT = frozenset("aborted_transactions brokers configs".split())


def outcome(answer: Any, ids: Mapping[UUID, str]) -> Any:
    """The parts of an answer that rights decide: error codes, names, and authorized operations; topics' ids as names.
    The elements of lists are sorted, because their order has no meaning."""
    if isinstance(answer, list | tuple):
        return sorted((outcome(each, ids) for each in answer), key=repr)
    kept: dict[str, Any] = {}
    for field in dataclasses.fields(answer):
        name, value = field.name, getattr(answer, field.name)
        if name in _LEFT_OUT:
            continue
        if name == "topic_id":
            kept[name] = "no id" if not value or value == NO_ID else ids.get(value, "some id")
        elif name.endswith(("error_code", "authorized_operations")) or name in _KEPT:
            kept[name] = int(value) if isinstance(value, int) else value
        elif isinstance(value, list | tuple) and value and dataclasses.is_dataclass(value[0]):
            kept[name] = outcome(value, ids)
        elif isinstance(value, list | tuple) and not value:
            kept[name] = []
        elif dataclasses.is_dataclass(value):
            kept[name] = outcome(value, ids)
    return kept


class Subject:
    """A broker whose answers go into the matrix."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def administrator(self) -> Wire:
        return Wire(self.bootstrap, 60.0, ADMINISTRATOR)

    def create(self, bindings: Sequence[AclBinding]) -> None:
        """Creates ACLs, and waits until the broker has them."""
        with self.administrator() as wire:
            answer = wire.call(30, 3, {"creations": [creation_of(binding) for binding in bindings]})
            assert all(result.error_code == 0 for result in answer.results), answer
        self._wait(lambda found: set(bindings) <= found)

    def delete(self, bindings: Sequence[AclBinding]) -> None:
        """Deletes ACLs, and waits until the broker no longer has them."""
        with self.administrator() as wire:
            answer = wire.call(31, 3, {"filters": [filter_of(binding) for binding in bindings]})
            assert all(result.error_code == 0 for result in answer.filter_results), answer
        self._wait(lambda found: not set(bindings) & found)

    def acls(self) -> set[AclBinding]:
        """The ACLs that the broker knows."""
        with self.administrator() as wire:
            answer = wire.call(29, 3, _EVERY_ACL)
        return {
            AclBinding(
                ResourceType(resource.resource_type),
                PatternType(resource.pattern_type),
                resource.resource_name,
                entry.principal,
                entry.host,
                AclOperation(entry.operation),
                Permission(entry.permission_type),
            )
            for resource in answer.resources
            for entry in resource.acls
        }

    def _wait(self, holds: Callable[[set[AclBinding]], bool]) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if holds(self.acls()):
                return
            time.sleep(0.02)
        raise TimeoutError("the ACLs are not in force")

    def make(self, *names: str) -> dict[str, UUID]:
        """Creates topics with one partition. Returns their ids."""
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            for name in names
        ]
        with self.administrator() as wire:
            wire.call(19, 7, {"topics": topics, "timeout": 20_000, "validate_only": False})
            while True:
                message = _metadata([{"topic_id": NO_ID, "name": name} for name in names])
                found = wire.call(3, 12, message).topics
                if all(topic.error_code == 0 and topic.partitions[0].leader_id >= 0 for topic in found):
                    return {topic.name: topic.topic_id for topic in found}

    def remove(self, *names: str) -> None:
        """Deletes topics, if they exist."""
        with self.administrator() as wire:
            wire.call(
                20,
                6,
                {"topics": [{"name": name, "topic_id": NO_ID} for name in names], "timeout": 20_000},
            )
            message = _metadata([{"topic_id": NO_ID, "name": name} for name in names])
            while any(topic.error_code == 0 for topic in wire.call(3, 12, message).topics):
                pass

    def prepare(self) -> dict[str, UUID]:
        """Makes the topics, the group and the transactional id. Returns the topics' ids."""
        ids = self.make(*TOPICS)
        asked = requests(ids, UNKNOWN_ID)
        with self.administrator() as wire:
            for label in ("FindCoordinator of groups", "FindCoordinator of transactions"):
                key, version, message = asked[label]
                while any(each.error_code for each in wire.call(key, version, message).coordinators):
                    pass
            while any(
                part.error_code in (14, 15, 16)
                for topic in wire.call(*asked["OffsetCommit"]).topics
                for part in topic.partitions
            ):
                pass
            while wire.call(*asked["InitProducerId of a transaction"]).error_code:
                pass
        return ids

    def row(self, grants: Sequence[AclBinding], ids: Mapping[str, UUID]) -> dict[str, Any]:
        """The outcomes of all requests of a client with these grants, by the requests' labels."""
        doomed = self.make("doomed")["doomed"]
        if grants:
            self.create(grants)
        names = {each: f"the id of {name}" for name, each in ids.items()} | {doomed: "the id of doomed"}
        outcomes: dict[str, Any] = {}
        try:
            for label, (key, version, message) in requests(ids, doomed).items():
                with Wire(self.bootstrap, 60.0, CLIENT) as wire:
                    outcomes[label] = "closed"
                    with suppress(Closed):
                        outcomes[label] = outcome(wire.call(key, version, message), names)
        finally:
            if grants:
                self.delete(grants)
            self.remove("made")
        return outcomes


_EVERY_ACL = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}

# The administrator may do everything.
ADMINISTRATORS = [
    *(acl(Op.ALL, kind, "*", host=ADMINISTRATOR) for kind in (TOPIC, GROUPS, IDS)),
    cluster(Op.ALL, host=ADMINISTRATOR),
]


def creation_of(binding: AclBinding) -> dict[str, Any]:
    """The ACL in a CreateAcls request."""
    return {
        "resource_type": binding.resource_type,
        "resource_name": binding.name,
        "resource_pattern_type": binding.pattern_type,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }


def filter_of(binding: AclBinding) -> dict[str, Any]:
    """The filter in a DeleteAcls request that chooses this ACL alone."""
    return {
        "resource_type_filter": binding.resource_type,
        "resource_name_filter": binding.name,
        "pattern_type_filter": binding.pattern_type,
        "principal_filter": binding.principal,
        "host_filter": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }
