"""Applies the dynamic settings that the Cluster's spec has for single brokers (`spec.configOverrides`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.operator.kafka import KafkaAdmin, Unreachable, admin_of, said
from ottla.operator.link import Link
from ottla.operator.objects import Object
from ottla.operator.plan.observed import address, is_ready
from ottla.operator.plan.overrides import changes
from ottla.operator.queue import Tell
from ottla.operator.spec.cluster import Cluster
from ottla.protocol.errors import KafkaError


class Told(NamedTuple):
    """The result of `apply_overrides`. `waits_for`: broker → why its settings aren't in force; `refusal`: the first
    broker's refusal, or empty; `present`: the dynamic settings that each ready broker had before the changes, or None
    if the brokers' release can't list them."""

    waits_for: Mapping[int, str]
    refusal: str
    present: Mapping[int, Mapping[str, str]] | None


async def apply_overrides(
    admin: KafkaAdmin, cluster: Cluster, pods: Mapping[int, Object], link: Link, tell: Tell
) -> Told:
    """Sets and resets the dynamic settings of each ready broker. `admin`: a client of any broker, because any broker
    knows the settings of all; `link`: the way to connect to a single one. Raises Unreachable, KafkaError."""
    serving = {broker: pod for broker, pod in pods.items() if is_ready(pod)}
    present = await admin.own_settings(serving)
    if present is None:
        older = "the brokers are older than the operator, and can't list the settings of single brokers"
        return Told(dict.fromkeys(cluster.overrides, older), "", None)
    waits_for: dict[int, str] = {}
    refusal = ""
    for broker, change in changes(cluster.overrides, present).items():
        own = admin_of(address(serving[broker]), link)  # only the broker itself accepts settings for it alone
        try:
            await own.configure_brokers(change.given, change.reset, broker=str(broker))
            await tell("SettingsChanged", f"broker {broker}: {change}")
        except KafkaError as error:
            waits_for[broker] = f"broker {broker} refuses its settings: {said(error)}"
            refusal = refusal or waits_for[broker]
        except Unreachable as error:
            waits_for[broker] = f"broker {broker} doesn't answer: {error}"
        finally:
            own.close()
    return Told(waits_for, refusal, present)
