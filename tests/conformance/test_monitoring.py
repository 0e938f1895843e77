"""A broker as monitoring sees it: Prometheus' own parser reads its metrics, and its health pages and its log are
right."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.raw import exchange, fetch_request, produce_request
from ottla.broker.metrics.catalogue import METRICS
from tests.peers.certificates import Authority
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port

RECORDS = 7
LOGGERS = 8  # the type of resource


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    settings = {"ottla_http_listener": f"127.0.0.1:{free_port()}", "ottla_log_format": "json"}
    broker = OttlaBroker(tmp_path_factory.mktemp("monitored"), **settings)
    broker.http = "http://" + settings["ottla_http_listener"]  # type: ignore[attr-defined]
    yield broker
    broker.stop()


def get(broker: OttlaBroker, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(broker.http + path, timeout=10) as answer:  # type: ignore[attr-defined]
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(broker: OttlaBroker) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the page, by name and labels."""
    status, page = get(broker, "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_alive_and_ready(broker: OttlaBroker) -> None:
    assert get(broker, "/healthz") == (200, "ok\n")
    assert get(broker, "/readyz") == (200, "ready\n")
    assert get(broker, "/nothing")[0] == 404


def test_every_metric_is_on_the_page_with_its_type(broker: OttlaBroker) -> None:
    families = {family.name: family.type for family in text_string_to_metric_families(get(broker, "/metrics")[1])}
    # The parser counts the suffix `_total` of a counter as part of the sample's name, not of the family's.
    assert families == {metric.name.removesuffix("_total"): metric.kind for metric in METRICS}


def test_what_clients_do_is_counted(broker: OttlaBroker) -> None:
    with Wire(broker.bootstrap) as wire:
        new = {"name": "counted", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        assert wire.call(19, 5, {"topics": [new], "timeout": 10_000}).topics[0].error_code == 0
        assert wire.call(19, 5, {"topics": [new], "timeout": 10_000}).topics[0].error_code == 36
    exchange(broker.bootstrap, produce_request("counted", b"x"), 1, RECORDS)
    exchange(broker.bootstrap, fetch_request("counted", 0, 1_000_000), 1, 2)
    exchange(broker.bootstrap, fetch_request("counted", 1_000, 1_000_000), 1, 1)
    found = samples(broker)

    def of_topic(name: str) -> float:
        return found[f"kafka_server_brokertopicmetrics_{name}_total", (("topic", "counted"),)]

    def of_request(name: str, request: str) -> float:
        return found[f"kafka_network_requestmetrics_{name}", (("request", request),)]

    assert of_topic("messagesin") == of_topic("totalproducerequests") == RECORDS
    assert of_topic("bytesout") == 2 * of_topic("bytesin") > 0
    assert of_topic("totalfetchrequests") == 3
    assert of_topic("failedfetchrequests") == 1
    assert of_request("requests_total", "Produce") == of_request("totaltimems_count", "Produce") == RECORDS
    assert of_request("totaltimems_sum", "Produce") > 0
    out_of_range = (("error", "OFFSET_OUT_OF_RANGE"), ("request", "Fetch"))
    assert found["kafka_network_requestmetrics_errors_total", out_of_range] == 1
    exists = (("error", "TOPIC_ALREADY_EXISTS"), ("request", "CreateTopics"))
    assert found["kafka_network_requestmetrics_errors_total", exists] == 1
    of_partition = (("partition", "0"), ("topic", "counted"))
    assert found["kafka_log_log_logendoffset", of_partition] == RECORDS
    assert found["kafka_log_log_size", of_partition] == of_topic("bytesin")
    assert found["kafka_server_replicamanager_leadercount", ()] >= 1
    assert found["kafka_server_replicamanager_underreplicatedpartitions", ()] == 0
    assert found["kafka_controller_kafkacontroller_activecontrollercount", ()] == 1
    assert found["kafka_controller_kafkacontroller_activebrokercount", ()] == 1
    assert found["kafka_controller_kafkacontroller_offlinepartitionscount", ()] == 0


def test_logs_are_lines_of_json(broker: OttlaBroker) -> None:
    lines = [line for line in broker.log_path.read_text().splitlines() if not line.startswith("ottla broker")]
    assert lines
    for line in lines:
        assert {"time", "level", "logger", "message", "event"} <= set(json.loads(line))


def test_the_level_of_a_logger_changes_while_the_broker_runs(broker: OttlaBroker) -> None:
    logger, level = "ottla", "ERROR"

    def lines_of_a_topic_made(name: str) -> int:
        """Creates a topic, and returns the number of new lines in the broker's log that name its partition."""
        before = len(broker.log_path.read_text())
        new = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        assert wire.call(19, 5, {"topics": [new], "timeout": 10_000}).topics[0].error_code == 0
        exchange(broker.bootstrap, produce_request(name, b"x"), 1, 1)  # the partition has a leader now
        return broker.log_path.read_text()[before:].count(f"{name}-0")

    def altered(operation: int, value: str | None) -> None:
        change = {"name": logger, "config_operation": operation, "value": value}
        resource = {"resource_type": LOGGERS, "resource_name": "0", "configs": [change]}
        answer = wire.call(44, 1, {"resources": [resource], "validate_only": False})
        assert answer.responses[0].error_code == 0, answer

    def described() -> str:
        asked = {"resource_type": LOGGERS, "resource_name": "0", "configuration_keys": [logger]}
        answer = wire.call(32, 4, {"resources": [asked], "include_synonyms": False})
        (config,) = answer.results[0].configs
        return str(config.value)

    with Wire(broker.bootstrap) as wire:
        assert described() == "INFO"
        assert lines_of_a_topic_made("told") > 0
        altered(0, level)
        assert described() == level
        assert lines_of_a_topic_made("untold") == 0
        altered(1, None)
        assert described() == "INFO"
        assert lines_of_a_topic_made("told-again") > 0


def test_pages_that_are_encrypted_and_ask_for_a_login(tmp_path: Path) -> None:
    """The real process: its pages are open to no one but the user who may describe the cluster, also while it runs."""
    authority = Authority(tmp_path / "ca")
    port = free_port()
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    secured = OttlaBroker(
        tmp_path / "broker",
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS;User:alice",
        ottla_http_listener=f"127.0.0.1:{port}",
        ottla_http_security_protocol="SASL_SSL",
        sasl_enabled_mechanisms="PLAIN",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(authority.issue("pages")),
        listener_name_http_plain_sasl_jaas_config=f'{plain} user_alice="alice-secret" user_bob="bob-secret";',
    )
    tls = ssl.create_default_context(cafile=str(authority.trust))

    def status(path: str, login: str = "") -> int:
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}")
        if login:
            request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    try:
        for path, expected in (("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/v1/restart-risk", 401)):
            assert status(path) == expected, path
        for login, expected in (("alice:alice-secret", 200), ("bob:bob-secret", 403), ("alice:wrong-secret", 401)):
            assert status("/metrics", login) == status("/v1/caught-up", login) == expected, login
        configs = ["configs", "alter", "broker", "0", "--bootstrap", secured.bootstrap, "--set"]
        jaas = f'listener.name.http.plain.sasl.jaas.config={plain} user_alice="newer-secret";'
        subprocess.run([sys.executable, "-m", "ottla.cli.main", *configs, jaas], check=True, capture_output=True)
        assert status("/metrics", "alice:alice-secret") == 401
        assert status("/metrics", "alice:newer-secret") == 200
    finally:
        secured.stop()
    log = secured.log_path.read_text()
    assert "is Denied operation = DESCRIBE" in log
    assert "-secret" not in log
