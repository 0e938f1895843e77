"""SASL_SSL for a cluster of a test: an authority, a user of the brokers and one of the clients, and their settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ottla.net.logging_in import logged_in
from ottla.net.streams import Connect
from ottla.net.tls_streams import connect_tls
from ottla.protocol.sasl import ClientExchange
from ottla.security.client_settings import client_security
from ottla.security.preparation import prepared
from tests.peers.certificates import Authority

MECHANISM = "SCRAM-SHA-512"
_JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'
_PASSWORDS = {"broker": "brokers-secret", "client": "clients-secret"}


class ClusterSecurity:
    """The users are in the metadata store `store` before any broker runs."""

    def __init__(self, folder: Path, store: str) -> None:
        self._authority = Authority(folder / "ca")
        self._key = self._authority.issue("brokers", common_name="broker")
        for user, password in _PASSWORDS.items():
            command = [sys.executable, "-m", "ottla.cli.main", "users", "create", user, "--store", store]
            environment = os.environ | {"OTTLA_USER_PASSWORD": password}
            subprocess.run(command, check=True, capture_output=True, timeout=120, env=environment)

    def settings(self, between_brokers: str) -> dict[str, str]:
        """The settings of brokers whose listener of this name is for brokers, with underscores for dots."""
        jaas = f"listener_name_{between_brokers.lower()}_{MECHANISM.lower()}_sasl_jaas_config"
        return {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(self._key),
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(self._authority.trust),
            "sasl_enabled_mechanisms": MECHANISM,
            "sasl_mechanism_inter_broker_protocol": MECHANISM,
            jaas: _JAAS.format("broker", _PASSWORDS["broker"]),
            "connections_max_reauth_ms": "3000",
        }

    @property
    def librdkafka(self) -> dict[str, str]:
        """librdkafka's settings of a client."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authority.trust),
            "sasl.mechanism": MECHANISM,
            "sasl.username": "client",
            "sasl.password": _PASSWORDS["client"],
        }

    def connect(self) -> Connect:
        """Opens streams of a client, for tasks of an event loop."""
        security = prepared(
            client_security(
                {
                    "security.protocol": "SASL_SSL",
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": str(self._authority.trust),
                    "sasl.mechanism": MECHANISM,
                    "sasl.jaas.config": _JAAS.format("client", _PASSWORDS["client"]),
                }
            )
        )
        context, begin_login = security.tls, security.begin_login
        assert context is not None
        assert begin_login is not None

        async def begin() -> ClientExchange:
            return begin_login()

        return logged_in(connect_tls(lambda: context), begin)

    def secrets_in(self, text: str) -> list[str]:
        """The passwords that stand in the text."""
        return [password for password in _PASSWORDS.values() if password in text]
