"""The files that identify a directory's owner, and the marker of a clean shutdown, as bytes. Pure.

A log directory has `meta.properties` and `.kafka_cleanshutdown`; a partition's directory has `partition.metadata`.
Source: Kafka's MetaProperties (version 1), CleanShutdownFileHandler and PartitionMetadataFile.
"""

from __future__ import annotations

import json
from uuid import UUID

from ottla.uuids import uuid_from_text, uuid_text


def parse_properties(text: bytes) -> dict[str, str]:
    """The properties in `meta.properties`. Raises UnicodeDecodeError if `text` isn't UTF-8."""
    found = {}
    for line in text.decode().splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            found[name.strip()] = value.strip()
    return found


def render_properties(properties: dict[str, str]) -> bytes:
    """The bytes of `meta.properties`."""
    return "".join(f"{name}={value}\n" for name, value in properties.items()).encode()


def parse_topic_id(text: bytes) -> UUID:
    """The topic id in `partition.metadata`. Raises ValueError if `text` is damaged, or has another version than 0."""
    fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("the file isn't a partition.metadata of version 0")
    return uuid_from_text(fields["topic_id"])


def render_topic_id(topic_id: UUID) -> bytes:
    """The bytes of `partition.metadata`."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def parse_clean_marker(text: bytes) -> int:
    """The broker epoch in the marker of a clean shutdown; −1 if the marker has none (Kafka up to 3.6)."""
    try:
        return int(json.loads(text).get("brokerEpoch", -1))
    except (ValueError, AttributeError, TypeError):  # Kafka up to 3.6 left the file empty
        return -1


def render_clean_marker(broker_epoch: int) -> bytes:
    """The bytes of `.kafka_cleanshutdown`, the marker of a clean shutdown."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
