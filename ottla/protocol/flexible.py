"""Which versions of a request are flexible: compact fields, tagged fields, and request headers of version 2. Pure.

The first flexible version of each API stands here as a table, although kio's schemas know it: to ask a schema, its
module must be imported, and a broker would import the schemas of all versions of Produce and Fetch at its start.

Source: KIP-482; `flexibleVersions` in Kafka's message definitions (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from kio.schema.index import api_key_map

_NEVER = 1 << 15  # no version is flexible

# The first flexible version of each API that has versions before it. All versions of the other APIs are flexible.
_FIRST_FLEXIBLE = {
    "produce": 9,
    "fetch": 12,
    "list_offsets": 6,
    "metadata": 9,
    "offset_commit": 8,
    "offset_fetch": 6,
    "find_coordinator": 3,
    "join_group": 6,
    "heartbeat": 4,
    "leave_group": 4,
    "sync_group": 4,
    "describe_groups": 5,
    "list_groups": 3,
    "sasl_handshake": _NEVER,
    "api_versions": 3,
    "create_topics": 5,
    "delete_topics": 4,
    "delete_records": 2,
    "init_producer_id": 2,
    "offset_for_leader_epoch": 4,
    "add_partitions_to_txn": 3,
    "add_offsets_to_txn": 3,
    "end_txn": 3,
    "txn_offset_commit": 3,
    "describe_acls": 2,
    "create_acls": 2,
    "delete_acls": 2,
    "describe_configs": 4,
    "alter_configs": 2,
    "alter_replica_log_dirs": 2,
    "describe_log_dirs": 2,
    "sasl_authenticate": 2,
    "create_partitions": 2,
    "create_delegation_token": 2,
    "renew_delegation_token": 2,
    "expire_delegation_token": 2,
    "describe_delegation_token": 2,
    "delete_groups": 2,
    "elect_leaders": 2,
    "incremental_alter_configs": 1,
    "offset_delete": _NEVER,
    "describe_client_quotas": 1,
    "alter_client_quotas": 1,
    "begin_quorum_epoch": 1,
    "end_quorum_epoch": 1,
}

_FIRST_BY_KEY = {key: _FIRST_FLEXIBLE.get(name, 0) for key, name in api_key_map.items()}


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of a request is flexible. Ottla's own APIs have no such versions."""
    return version >= _FIRST_BY_KEY.get(api_key, _NEVER)
