"""Brokers with a listener for every security protocol and with an authorizer, for the suites of other projects.

`TLS` asks for a client's certificate, `LOGIN` is SASL_PLAINTEXT, and `SECURE` is SASL_SSL. The brokers log in at one
another over SASL_SSL. At `CLIENTS` everybody is ANONYMOUS.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.peers.certificates import Authority
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

MODULES = "org.apache.kafka.common.security"
PROTOCOLS = {"TLS": "SSL", "LOGIN": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"}
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
LITERAL = ResourcePatternType.LITERAL
EVERYTHING = (
    (ResourceType.TOPIC, "*"),
    (ResourceType.GROUP, "*"),
    (ResourceType.TRANSACTIONAL_ID, "*"),
    (ResourceType.BROKER, "kafka-cluster"),
)
_SUPER_USERS = ("broker", "admin")


@dataclass(frozen=True)
class Secured:
    """Running brokers, the authority of their certificates and those of clients, and the users' passwords."""

    cluster: OttlaCluster
    authority: Authority
    folder: Path
    passwords: Mapping[str, str]

    def key(self, user: str) -> Path:
        """A new key with a certificate, by whose name the listener TLS knows the user."""
        return self.authority.issue(f"client-{user}", common_name=user)

    def java(self, listener: str, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """The properties of Java's clients, without the brokers' addresses."""
        properties = {"security.protocol": PROTOCOLS[listener]}
        if listener != "LOGIN":
            properties |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.trust),
            }
        if listener == "TLS":
            return properties | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.key(user))}
        return properties | {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{_module(mechanism)} username="{user}" password="{self.passwords[user]}";',
        }

    def file(self, listener: str, user: str, mechanism: str = "SCRAM-SHA-512") -> str:
        """A file of these properties."""
        path = self.folder / f"{listener}-{user}-{mechanism}.properties"
        properties = self.java(listener, user, mechanism)
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return str(path)

    def tool(self, user: str = "admin") -> tuple[str, ...]:
        """The arguments by which Kafka's command-line tools find the brokers, and log in over SASL_SSL."""
        return ("--bootstrap-server", self.cluster.further("SECURE"), "--command-config", self.file("SECURE", user))

    def librdkafka(self, listener: str, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """librdkafka's settings, without the brokers' addresses."""
        settings = {"security.protocol": PROTOCOLS[listener]}
        if listener != "LOGIN":
            settings["ssl.ca.location"] = str(self.authority.trust)
        if listener != "TLS":
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": self.passwords[user]}
        return settings

    def admin(self) -> AdminClient:
        """librdkafka's client for administrators, as the user `admin` over SASL_SSL."""
        return AdminClient(
            {"bootstrap.servers": self.cluster.further("SECURE"), **self.librdkafka("SECURE", "admin", "PLAIN")}
        )

    def grant(self, principal: str, *resources: tuple[ResourceType, str]) -> None:
        """Allows a principal everything with these resources."""
        acls = [
            AclBinding(kind, name, LITERAL, principal, "*", AclOperation.ALL, AclPermissionType.ALLOW)
            for kind, name in resources
        ]
        admin = self.admin()
        for made in admin.create_acls(acls, request_timeout=30).values():
            made.result(30)


@contextmanager
def secured_brokers(folder: Path, size: int, passwords: Mapping[str, str], /, **settings: str) -> Iterator[Secured]:
    """`size` brokers that know the users of `passwords` by PLAIN and SCRAM. `admin` is a super user.

    No log of a broker may have a traceback or a password at the end; a password without the word "secret" isn't looked
    for, because other names may be the same.
    """
    everybody = {"broker": "brokers-secret", "admin": "admins-secret"} | dict(passwords)
    authority = Authority(folder / "ca")
    store = str(folder / "metadata")
    command = [sys.executable, "-m", "ottla.cli.main", "users", "create", "broker", "--store", store]
    environment = os.environ | {"OTTLA_USER_PASSWORD": everybody["broker"]}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    named = "".join(f' user_{user}="{password}"' for user, password in everybody.items())
    protocols = ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items())
    all_settings = {
        "listener_security_protocol_map": f"CLIENTS:PLAINTEXT,BROKERS:SASL_SSL,{protocols}",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(authority.issue("brokers", common_name="broker")),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.trust),
        "ssl_client_auth": "required",  # it reaches TLS alone: the other listeners have logins
        "ssl_principal_mapping_rules": "RULE:^CN=([^,]+),.*$/$1/,DEFAULT",
        "sasl_enabled_mechanisms": ",".join(["PLAIN", *SCRAM]),
        "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
        "listener_name_brokers_scram-sha-512_sasl_jaas_config": f'{_module(SCRAM[1])} username="broker" '
        f'password="{everybody["broker"]}";',
        **{
            f"listener_name_{name}_plain_sasl_jaas_config": f"{_module('PLAIN')}{named};"
            for name in ("login", "secure")
        },
        "listener_name_brokers_plain_sasl_jaas_config": f"{_module('PLAIN')}{named};",
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": ";".join(f"User:{user}" for user in _SUPER_USERS),
        "delegation_token_secret_key": "key-of-the-tokens",
    }
    with ottla_cluster(folder, size, **all_settings | settings) as cluster:
        secured = Secured(cluster, authority, folder, everybody)
        admin = secured.admin()
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # one of a user in a request
            logins = [
                UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), everybody[user].encode())
                for user in everybody
                if user != "broker"
            ]
            for made in admin.alter_user_scram_credentials(logins, request_timeout=30).values():
                made.result(30)
        yield secured
        cluster.stop()
        for broker in cluster.brokers:
            written = broker.log_path.read_text()
            assert "Traceback" not in written, written[written.index("Traceback") :][:4000]
            assert not [secret for secret in everybody.values() if "secret" in secret and secret in written]


def _module(mechanism: str) -> str:
    name = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return f"{MODULES}.{name} required"
