"""A Topic resource as the operator reads it. Pure.

The schema and the rules of `crds/topics.yaml` have refused most mistakes before, in the API server. This module checks
what they can't know (which values a setting may have), and again what an older definition may have accepted. A refused
resource is still a resource: it claims its topic's name, and its status says what to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ottla.operator.spec.of_cluster import OfCluster, common_fields
from ottla.settings.catalogue import TOPIC, nearest_name
from ottla.settings.own import TOPIC_SETTINGS
from ottla.settings.setting import InvalidSetting

PARTITIONS_MAX = 10_000  # the most partitions that one request may create
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
OWNERSHIP = frozenset(setting.name for setting in TOPIC_SETTINGS)
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class DeletionPolicy(Enum):
    """Whether the topic is deleted or kept when its resource is gone."""

    DELETE = "Delete"
    RETAIN = "Retain"


@dataclass(frozen=True, slots=True)
class TopicResource(OfCluster):
    """A Topic resource. If `partitions` or `replication_factor` is None, a new topic gets the cluster's default, and an
    existing topic keeps its number."""

    topic: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    deletion_policy: DeletionPolicy = DeletionPolicy.DELETE
    paused: bool = False

    def __hash__(self) -> int:
        return hash(self.uid)


def parse_topic(resource: Mapping[str, Any]) -> TopicResource:
    """Reads a resource as the API server gives it. A spec that can't be followed raises nothing: see `refusal`."""
    common, spec = common_fields(resource), resource.get("spec") or {}
    config = {str(name): _text(value) for name, value in (spec.get("config") or {}).items()}
    topic = str(spec.get("topicName") or common["ref"].name)
    partitions, factor = spec.get("partitions"), spec.get("replicationFactor")
    policy = spec.get("deletionPolicy") or DeletionPolicy.DELETE.value
    return TopicResource(
        **common,
        topic=topic,
        partitions=partitions,
        replication_factor=factor,
        config=config,
        deletion_policy=DeletionPolicy.RETAIN if policy == DeletionPolicy.RETAIN.value else DeletionPolicy.DELETE,
        paused=bool(spec.get("paused", False)),
        refusal=_name_refusal(topic) or _numbers_refusal(partitions, factor) or _config_refusal(config, factor),
    )


def _text(value: object) -> str:
    """A setting's value as text: YAML reads what people write without quotes as numbers and Booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 1e12 is a whole number to Kubernetes
    return str(value)


def _name_refusal(topic: str) -> str:
    if topic in INTERNAL:
        return f"'{topic}' belongs to the brokers themselves: choose another topicName"
    if topic in (".", "..") or not _TOPIC_NAME.fullmatch(topic):
        return f"'{topic}' can't be a topic's name: say a topicName of up to 249 letters, digits, '.', '_' and '-'"
    return ""


def _numbers_refusal(partitions: object, factor: object) -> str:
    for name, value, most in (("partitions", partitions, PARTITIONS_MAX), ("replicationFactor", factor, 32767)):
        if value is not None and not (isinstance(value, int) and 1 <= value <= most):
            return f"{name} is {value}: say a number from 1 to {most}"
    return ""


def _config_refusal(config: Mapping[str, str], factor: object) -> str:
    for name, text in config.items():
        if name in OWNERSHIP:
            return f"config has {name}, which only the operator may set: take it out"
        setting = TOPIC.get(name)
        if setting is None:
            nearest = nearest_name(name, TOPIC)
            hint = f" (the nearest is {nearest})" if nearest else ""
            return f"topics have no setting {name}{hint}: correct it in config, or take it out"
        try:
            setting.parse(text)
        except InvalidSetting as error:
            return f"{name} is '{error.value}' in config: it {error.reason}"
    least = config.get("min.insync.replicas")
    if least is not None and isinstance(factor, int) and int(least) > factor:
        return (
            f"min.insync.replicas is {least} with a replicationFactor of {factor}, and no record can have more copies "
            "than replicas: lower the one or raise the other"
        )
    return ""
