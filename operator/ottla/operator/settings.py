"""Applies the dynamic settings of a Cluster's spec as the brokers' dynamic defaults.

The spec decides: settings that another client has given to all brokers are reset. Exceptions are the settings that the
operator and its users set by other means (drained brokers, throttles).
"""

from __future__ import annotations

from ottla.net.admin import BROKER
from ottla.operator.kafka import KafkaAdmin, said
from ottla.operator.queue import Tell
from ottla.operator.spec.broker_config import RESERVED
from ottla.operator.spec.cluster import Cluster
from ottla.protocol.errors import KafkaError


async def apply_settings(admin: KafkaAdmin, cluster: Cluster, tell: Tell) -> str:
    """Sets and resets the dynamic defaults. Returns the brokers' refusal in a sentence; empty where all settings are
    applied. Raises Unreachable."""
    try:
        present = await admin.settings(BROKER, "")
        given = {name: value for name, value in cluster.dynamic_config.items() if present.get(name) != value}
        reset = [name for name in present if name not in cluster.dynamic_config and name not in RESERVED]
        if given or reset:
            await admin.configure_brokers(given, reset)
            taken_back = [f"{name} (reset)" for name in reset]
            changed = ", ".join([*(f"{name}={value}" for name, value in given.items()), *taken_back])
            await tell("SettingsChanged", f"all brokers: {changed}")
    except KafkaError as error:
        return f"the brokers refuse the settings: {said(error)}"
    return ""
