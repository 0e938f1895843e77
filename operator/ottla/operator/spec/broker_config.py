"""The brokers' settings in a Cluster's spec: the common ones, and those that a single broker has in addition. Pure.

Each setting is checked as a broker checks it at its start. Two kinds are kept apart, because they reach brokers in two
ways: static settings stand in a file that a broker reads at its start, dynamic settings are sent to running brokers. A
setting that Kafka lets each broker change only for itself counts as static: such settings are about things that the
operator makes, such as listeners, or about security.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.operator.objects import Object
from ottla.operator.spec.spec_error import SpecError
from ottla.settings.catalogue import BROKER, nearest_name
from ottla.settings.config import BrokerConfig, InvalidConfiguration
from ottla.settings.setting import Update
from ottla.settings.sources import known_setting

# The settings that the operator gives to brokers itself, in their file or as dynamic settings.
RESERVED = frozenset(
    "node.id broker.id process.roles listeners advertised.listeners listener.security.protocol.map "
    "inter.broker.listener.name security.inter.broker.protocol controller.listener.names log.dir log.dirs broker.rack "
    "cordoned.log.dirs ottla.http.listener ottla.http.security.protocol ottla.listener.addresses "
    "ottla.brokers.drained leader.replication.throttled.rate follower.replication.throttled.rate".split()
)
RESERVED_PREFIX = "ottla.metadata."
_BETWEEN_BROKERS = "listener.name.replication", "listener.name.replication-tls"  # the operator's own listeners

_OF_THE_CLUSTER = frozenset(
    "auto.create.topics.enable auto.leader.rebalance.enable default.replication.factor delete.topic.enable "
    "leader.imbalance.check.interval.seconds min.insync.replicas num.partitions ottla.quick.death.enable "
    "unclean.leader.election.enable".split()
)
_OF_THE_CLUSTER_PREFIXES = ("offsets.topic.", "share.coordinator.state.topic.", "transaction.state.log.")


class Settings(NamedTuple):
    """Static and dynamic settings: name → value, as a broker's file has it."""

    static: Mapping[str, str]
    dynamic: Mapping[str, str]


def is_reserved(name: str) -> bool:
    """Whether only the operator itself may give this setting to brokers."""
    return name in RESERVED or name.startswith((RESERVED_PREFIX, *(f"{prefix}." for prefix in _BETWEEN_BROKERS)))


def is_of_the_cluster(name: str) -> bool:
    """Whether all brokers must have the same value of a setting. Such a setting is used by the broker that gets a
    request to create a topic, which may be any broker, or by the controller, which may be in any broker's process."""
    return name in _OF_THE_CLUSTER or name.startswith(_OF_THE_CLUSTER_PREFIXES)


def parse_config(given: Mapping[str, Any]) -> Settings:
    """The settings of all brokers (`spec.config`). Raises SpecError."""
    settings = _parted(given, "config")
    _check(settings, "config")
    return settings


def parse_overrides(given: Iterable[Object], of_all: Settings) -> dict[int, Settings]:
    """The settings that single brokers have in addition (`spec.configOverrides`), by broker id. Raises SpecError."""
    overrides: dict[int, Settings] = {}
    for each in given:
        broker = each["broker"]
        where = f"configOverrides: broker {broker}"
        if broker in overrides:
            raise SpecError(f"{where} is named twice; put its settings together")
        settings = _parted(each.get("config") or {}, where)
        for name in sorted({*settings.static, *settings.dynamic}):
            if is_of_the_cluster(name):
                raise SpecError(f"{where}: brokers can't differ in {name}; set it in config, for all of them")
        static, dynamic = {**of_all.static, **settings.static}, {**of_all.dynamic, **settings.dynamic}
        _check(Settings(static, dynamic), where)
        overrides[broker] = settings
    return overrides


def still_known(given: Mapping[str, Any], *, of_one: bool = False) -> dict[str, Any]:
    """The settings of `given` whose names this release knows; an earlier release accepted them. `of_one`: they are for
    a single broker.

    A setting stays even if this release refuses its value. Without it the brokers would return to the default, and the
    default of a retention may be so much shorter that records are deleted.
    """
    return {
        name: value
        for name, value in given.items()
        if not is_reserved(name) and known_setting(name) is not None and not (of_one and is_of_the_cluster(name))
    }


def _parted(given: Mapping[str, Any], where: str) -> Settings:
    """The settings by kind (static, dynamic), after a check of their names. Raises SpecError."""
    static: dict[str, str] = {}
    dynamic: dict[str, str] = {}
    for name, value in sorted(given.items()):
        if is_reserved(name):
            raise SpecError(f"{where}: the operator sets {name} itself; take it out")
        setting = known_setting(name)
        if setting is None:
            nearest = nearest_name(name, BROKER)
            raise SpecError(f"{where}: there is no setting {name}" + (f", maybe {nearest} is meant" if nearest else ""))
        (dynamic if setting.update is Update.CLUSTER_WIDE else static)[name] = _text(name, value, where)
    return Settings(static, dynamic)


def _check(settings: Settings, where: str) -> None:
    try:
        BrokerConfig({**settings.static, **settings.dynamic, "node.id": "0"})
    except InvalidConfiguration as error:
        raise SpecError(f"{where}: {error.problems[0]}") from None


def _text(name: str, value: Any, where: str) -> str:
    """A setting's value as a broker's file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 1e12 is a whole number to Kubernetes
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float):
        text = str(value)
        if "\n" in text or "\r" in text:
            raise SpecError(f"{where}: the value of {name} holds a line break")
        return text
    raise SpecError(f"{where}: {name} needs a text, a number, true or false, not {value!r}")
