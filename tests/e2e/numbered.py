"""A client with a certificate that writes numbered records without a pause, from outside of Kubernetes, and reads them
back at the end: each record that was acknowledged is there exactly once."""

from __future__ import annotations

import base64
import threading
import time
from collections import Counter
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, Message, Producer

from ottla.operator.certificates import issued
from tests.e2e.kubectl import wait
from tests.e2e.scene import NAME, Scene

PARTITIONS = 4
_PAUSE_S = 0.01
_SILENCE_S_MAX = 30.0

Settings = dict[str, str]


def secret(scene: Scene, name: str) -> dict[str, bytes]:
    """The decoded data of a Secret; empty where there is none."""
    found = scene.kube.find("secret", name) or {}
    return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}


def settings_of(scene: Scene, listener: str, user: str = "") -> Settings:
    """librdkafka's settings to connect at a listener. `user`: whose certificate the clients' authority signs; empty for
    a client that shows none."""

    def bootstrap() -> str | None:
        listeners = scene.cluster().get("status", {}).get("listeners", [])
        return next((each["bootstrap"] for each in listeners if each["name"] == listener), None)

    found = {
        "bootstrap.servers": wait(f"the listener {listener} has an address", bootstrap, 240),
        "security.protocol": "ssl",
        "ssl.ca.pem": secret(scene, f"{NAME}-cluster-ca-cert")["ca.crt"].decode(),
        "reconnect.backoff.max.ms": "500",
        "log_level": "0",
    }
    if user:
        pair = issued(secret(scene, f"{NAME}-clients-ca"), user, datetime.now(UTC), days=30)
        found |= {"ssl.certificate.pem": pair.certificate.decode(), "ssl.key.pem": pair.key.decode()}
    return found


class Numbered(threading.Thread):
    """The client, for one topic. Call `start`, and `finish` at the end."""

    def __init__(self, settings: Settings, topic: str) -> None:
        super().__init__(name="numbered", daemon=True)
        self._settings = settings
        self._topic = topic
        self._ends = False
        self._next = 0
        self._acknowledged: list[int] = []
        self._last = time.monotonic()
        self._silence_s = 0.0
        self._failed: list[str] = []
        self._renewed = threading.Event()

    def run(self) -> None:
        """Writes until `finish`."""
        while not self._ends:
            producer = Producer({**self._settings, "enable.idempotence": "true", "acks": "all"})
            self._renewed.clear()
            while not self._ends and not self._renewed.is_set():
                number = self._next
                self._next += 1
                producer.produce(self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
                producer.poll(_PAUSE_S)
            if left := producer.flush(120):
                self._failed.append(f"{left} records weren't acknowledged")

    def renew(self, settings: Settings) -> None:
        """Has the client go on with other certificates."""
        self._settings = settings
        self._renewed.set()

    def goes_on(self, records: int = 200, seconds: float = 90.0) -> None:
        """Waits until more records are acknowledged."""
        wanted = len(self._acknowledged) + records
        wait(f"{records} more records are acknowledged", lambda: len(self._acknowledged) >= wanted, seconds)
        assert not self._failed, self._failed[:5]

    def finish(self) -> None:
        """Ends the client, and asserts that nothing was lost, doubled or refused, nor held up for long."""
        self._ends = True
        self.join(150)
        assert not self.is_alive()
        assert not self._failed, self._failed[:5]
        found = self._read()
        doubled = [number for number, count in found.items() if count > 1]
        assert not doubled, doubled[:5]
        assert not set(self._acknowledged) - found.keys()
        assert self._silence_s <= _SILENCE_S_MAX

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(str(error))
            return
        now = time.monotonic()
        self._silence_s = max(self._silence_s, now - self._last)
        self._last = now
        self._acknowledged.append(int(message.value() or b"-1"))

    def _read(self) -> Counter[int]:
        consumer = Consumer({**self._settings, "group.id": "numbered", "auto.offset.reset": "earliest"})
        consumer.subscribe([self._topic])
        found: Counter[int] = Counter()
        missing = set(self._acknowledged)
        deadline = time.monotonic() + 120
        while missing and time.monotonic() < deadline:
            if (message := consumer.poll(1.0)) is not None and message.error() is None:
                number = int(message.value() or b"-1")
                found[number] += 1
                missing.discard(number)
        consumer.close()
        return found
