"""Settings of single brokers (`spec.configOverrides`): the changes to make, and whether each is in force. Pure.

The Cluster's spec decides, as it does for the settings of all brokers. If another client has given a setting to a
single broker, the setting is reset. Exceptions are the settings that the operator sets by other means, and those that
Kafka's own tools set while they copy replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.operator.objects import Object
from ottla.operator.plan.roll import Pod
from ottla.operator.spec.broker_config import Settings, is_reserved
from ottla.operator.spec.cluster import Cluster
from ottla.wording import abridged

# kafka-reassign-partitions sets it on brokers whose replicas change their log directory, and resets it afterwards.
_WHILE_COPYING = frozenset({"replica.alter.log.dirs.io.max.bytes.per.second"})
NO_SUCH_BROKER, WAITING = "NoSuchBroker", "Waiting"


class Change(NamedTuple):
    """The dynamic settings to set on one broker, and those to reset."""

    given: Mapping[str, str]
    reset: Sequence[str]

    def __str__(self) -> str:
        taken_back = [f"{name} (reset)" for name in self.reset]
        return ", ".join([*(f"{name}={value}" for name, value in self.given.items()), *taken_back])


class Standing(NamedTuple):
    """Whether one broker's own settings are in force. `reason` and `message` are empty where they are in force."""

    broker: int
    settings: tuple[str, ...]
    reason: str = ""
    message: str = ""


def changes(wanted: Mapping[int, Settings], present: Mapping[int, Mapping[str, str]]) -> dict[int, Change]:
    """The changes by broker id, without brokers that need none. `present`: each broker's own dynamic settings now;
    brokers that `present` lacks aren't changed."""
    found = {}
    for broker, own in sorted(present.items()):
        dynamic: Mapping[str, str] = wanted[broker].dynamic if broker in wanted else {}
        given = {name: value for name, value in dynamic.items() if own.get(name) != value}
        reset = [name for name in own if name not in dynamic and not is_reserved(name) and name not in _WHILE_COPYING]
        if given or reset:
            found[broker] = Change(given, reset)
    return found


def standings(cluster: Cluster, pods: Iterable[Pod], waits_for: Mapping[int, str] | None) -> list[Standing]:
    """Whether each broker's own settings are in force. `waits_for`: why a broker's dynamic settings aren't in force, by
    broker; None where no broker was asked."""
    seen = {pod.id: pod for pod in pods}
    return [
        Standing(broker, (*own.static, *own.dynamic), *_in_the_way(cluster, broker, own, seen.get(broker), waits_for))
        for broker, own in sorted(cluster.overrides.items())
    ]


def _in_the_way(
    cluster: Cluster, broker: int, own: Settings, pod: Pod | None, waits_for: Mapping[int, str] | None
) -> tuple[str, str]:
    if broker not in cluster.broker_ids:
        return NO_SUCH_BROKER, f"there is no broker {broker}"
    if pod is None or not pod.ready:
        return WAITING, f"broker {broker} isn't ready"
    if own.dynamic and waits_for is None:
        return WAITING, f"broker {broker} wasn't asked"
    if own.dynamic and waits_for is not None and (sentence := waits_for.get(broker)):
        return WAITING, sentence
    if own.static and pod.file_is_current is None:
        return WAITING, f"broker {broker} doesn't say with which settings it was started"
    if own.static and not pod.file_is_current:
        return WAITING, f"{', '.join(own.static)}: {pod.name} has to be restarted first"
    return "", ""


def noted(each: Standing) -> Object:
    """The entry of a Cluster's status that says whether the broker's own settings are applied, and if not, why."""
    said: Object = {"broker": each.broker, "applied": not each.reason, "settings": list(each.settings)}
    return said | ({"message": abridged(each.message, 1024)} if each.message else {})
