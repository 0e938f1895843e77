"""A client's reaction to each of Kafka's error codes: ask again, check that the topic exists, or raise the error. Pure.

Every code is in exactly one of three sets. After a code in PASSING, the client asks again, with the newest metadata. A
code in ABSENT says that the broker doesn't know the topic, which doesn't prove that the topic doesn't exist: the broker
may not have applied its creation yet, or may just have been started. So the client asks other brokers before it reports
the topic as gone (`ottla.net.existence`). Codes in FINAL are raised. No code by itself ever means that records are
lost.

Source: Kafka's `Errors` and its RetriableException, the Java consumer's FetchCollector and the admin client's
PartitionLeaderStrategy. If these differ for a code, a comment says which of them is followed.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError

from .names import Address


def _codes(names: str) -> frozenset[ErrorCode]:
    return frozenset(ErrorCode[name] for name in names.split())


# FetchCollector continues after unknown_server_error. broker_not_available isn't retriable in Java, whose clients ask
# another broker by themselves. After an error of a fetch session or share session, a client begins a new session.
PASSING = _codes(
    """
    unknown_server_error leader_not_available not_leader_or_follower request_timed_out broker_not_available
    replica_not_available network_exception coordinator_load_in_progress coordinator_not_available not_coordinator
    not_enough_replicas not_enough_replicas_after_append not_controller concurrent_transactions kafka_storage_error
    fetch_session_id_not_found invalid_fetch_session_epoch listener_not_found fenced_leader_epoch unknown_leader_epoch
    offset_not_available preferred_leader_not_available eligible_leaders_not_available unstable_offset_commit
    throttling_quota_exceeded fetch_session_topic_id_error share_session_not_found invalid_share_session_epoch
    share_session_limit_reached
    """
)
ABSENT = _codes("unknown_topic_or_partition unknown_topic_id inconsistent_topic_id")
# corrupt_message is retriable in Java, for producers whose batch may have been damaged on its way. But a batch that is
# damaged in the log stays damaged.
FINAL = _codes(
    """
    offset_out_of_range corrupt_message invalid_fetch_size message_too_large stale_controller_epoch
    offset_metadata_too_large invalid_topic_exception record_list_too_large invalid_required_acks illegal_generation
    inconsistent_group_protocol invalid_group_id unknown_member_id invalid_session_timeout rebalance_in_progress
    invalid_commit_offset_size topic_authorization_failed group_authorization_failed cluster_authorization_failed
    invalid_timestamp unsupported_sasl_mechanism illegal_sasl_state unsupported_version topic_already_exists
    invalid_partitions invalid_replication_factor invalid_replica_assignment invalid_config invalid_request
    unsupported_for_message_format policy_violation out_of_order_sequence_number duplicate_sequence_number
    invalid_producer_epoch invalid_txn_state invalid_producer_id_mapping invalid_transaction_timeout
    transaction_coordinator_fenced transactional_id_authorization_failed security_disabled operation_not_attempted
    log_dir_not_found sasl_authentication_failed unknown_producer_id reassignment_in_progress
    delegation_token_auth_disabled delegation_token_not_found delegation_token_owner_mismatch
    delegation_token_request_not_allowed delegation_token_authorization_failed delegation_token_expired
    invalid_principal_type non_empty_group group_id_not_found topic_deletion_disabled unsupported_compression_type
    stale_broker_epoch member_id_required group_max_size_reached fenced_instance_id election_not_needed
    no_reassignment_in_progress group_subscribed_to_topic invalid_record producer_fenced resource_not_found
    duplicate_resource unacceptable_credential inconsistent_voter_set invalid_update_version feature_update_failed
    principal_deserialization_failure snapshot_not_found position_out_of_range duplicate_broker_registration
    broker_id_not_registered inconsistent_cluster_id transactional_id_not_found ineligible_replica new_leader_elected
    offset_moved_to_tiered_storage fenced_member_epoch unreleased_instance_id unsupported_assignor stale_member_epoch
    mismatched_endpoint_type unsupported_endpoint_type unknown_controller_id unknown_subscription_id telemetry_too_large
    invalid_registration transaction_abortable invalid_record_state fenced_state_epoch invalid_voter_key duplicate_voter
    voter_not_found invalid_regular_expression rebootstrap_required streams_invalid_topology
    streams_invalid_topology_epoch streams_topology_fenced
    """
)


class Retry(Exception):
    """A broker answered an error code in PASSING. The message names the code and the broker."""


def check(code: ErrorCode, what: str, address: Address, message: str | None = None) -> None:
    """Raises Retry if the broker at `address` answered an error code in PASSING, and KafkaError for any other error.

    `what` names the topic, partition or id that the client asked about, for the error's message. A code in ABSENT is
    raised as KafkaError, too. If the caller has reason to believe that the topic exists, it asks other brokers
    (`ottla.net.existence`) before it calls this with such a code.
    """
    if code == ErrorCode.none:
        return
    text = f"{what}: {message}" if message else what
    if code in PASSING:
        raise Retry(f"{address} answered {code.name} for {text}")
    raise KafkaError(code, f"{text} (answered by {address})")
