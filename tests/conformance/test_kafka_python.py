"""kafka-python's own integration suite: the same tests run, are skipped and pass as against Apache Kafka.

This module lists every difference with its reason.
"""

import pytest

from tests.peers import kafka_python_suite
from tests.peers.apache_kafka import ApacheKafka

# These tests fail against Ottla and against Apache Kafka.
FAILS_ANYWHERE = {
    "test_admin_integration::test_create_describe_delete_acls": "the brokers have no authorizer",
}
# These tests pass against Apache Kafka only.
DIFFERENCES = {
    "test_admin_integration::test_describe_metadata_quorum": "there is no Raft quorum to describe",
}


@pytest.mark.timeout(600)
def test_suite_runs_as_against_apache_kafka(bootstrap: str, apache_kafka: ApacheKafka) -> None:
    ours = kafka_python_suite.run_twice_where_it_fails(bootstrap, [*FAILS_ANYWHERE, *DIFFERENCES])
    theirs = kafka_python_suite.run_twice_where_it_fails(apache_kafka.bootstrap, FAILS_ANYWHERE)
    assert list(ours) == list(theirs)
    assert {name for name, outcome in ours.items() if outcome.startswith("skipped")} == {
        name for name, outcome in theirs.items() if outcome.startswith("skipped")
    }
    failed_theirs = {name: outcome for name, outcome in theirs.items() if outcome.startswith("failed")}
    failed_ours = {name: outcome for name, outcome in ours.items() if outcome.startswith("failed")}
    assert set(failed_theirs) == set(FAILS_ANYWHERE), failed_theirs
    assert set(failed_ours) == set(FAILS_ANYWHERE) | set(DIFFERENCES), failed_ours
