"""The files with which clients of each kind connect: properties for Java's, a configuration for librdkafka, and options
for Spark. Pure.

The properties and Spark's options have certificates and keys as text (KIP-651), so they work wherever they are.
librdkafka reads files, and expects them where the Secret is mounted by convention (`MOUNT`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ottla.protocol.sasl import SCRAM_SHA_512
from ottla.security.jaas import SCRAM_MODULE

MOUNT = "/etc/ottla/user"
TRUST, CERTIFICATE, KEY = "ca.crt", "user.crt", "user.key"
PROPERTIES, LIBRDKAFKA, SPARK = "client.properties", "librdkafka.conf", "spark-options.json"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


@dataclass(frozen=True, slots=True)
class Access:
    """How a user connects. Texts are empty where they don't apply: `trust` without TLS, `password` for a certificate,
    `certificate` and `key` for a password."""

    bootstrap: str
    protocol: str  # Kafka's name of the security protocol
    name: str  # the user's name in Kafka
    trust: str = ""  # PEM
    password: str = field(default="", repr=False)
    certificate: str = ""  # PEM
    key: str = field(default="", repr=False)  # PEM

    @property
    def jaas(self) -> str:
        """The login of a user with a password, as Kafka's clients take it."""
        return f"{SCRAM_MODULE} required username={_quoted(self.name)} password={_quoted(self.password)};"


def properties(access: Access) -> dict[str, str]:
    """The properties of Kafka's own clients."""
    found = {"bootstrap.servers": access.bootstrap, "security.protocol": access.protocol}
    if access.trust:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": access.trust}
    if access.certificate:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": access.certificate,
            "ssl.keystore.key": access.key,
        }
    if access.password:
        found |= {"sasl.mechanism": SCRAM_SHA_512, "sasl.jaas.config": access.jaas}
    return found


def client_files(access: Access) -> dict[str, str]:
    """All files: name → text."""
    found = properties(access)
    return {
        PROPERTIES: "".join(f"{name}={_escaped(value)}\n" for name, value in found.items()),
        LIBRDKAFKA: _librdkafka(access),
        SPARK: json.dumps({f"kafka.{name}": value for name, value in found.items()}, indent=2) + "\n",
    }


def _librdkafka(access: Access) -> str:
    found = {"bootstrap.servers": access.bootstrap, "security.protocol": access.protocol.lower()}
    if access.trust:
        found["ssl.ca.location"] = f"{MOUNT}/{TRUST}"
    if access.certificate:
        found |= {"ssl.certificate.location": f"{MOUNT}/{CERTIFICATE}", "ssl.key.location": f"{MOUNT}/{KEY}"}
    if access.password:
        found |= {"sasl.mechanisms": SCRAM_SHA_512, "sasl.username": access.name, "sasl.password": access.password}
    return "".join(f"{name}={value}\n" for name, value in found.items())


def _quoted(text: str) -> str:
    """A value in a JAAS configuration."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(value: str) -> str:
    """A value in Java's .properties syntax, in ASCII."""
    text = value.translate(_ESCAPES)
    if text.startswith(" "):
        text = "\\" + text
    return "".join(each if each.isascii() else _utf16(each) for each in text)


def _utf16(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
