"""The brokers' settings in a Cluster's spec: those of all brokers, and those that a single broker has on top. Pure.

Each is checked as a broker checks its own at its start. Two kinds are kept apart, because they reach brokers in two
ways: static settings stand in a file that is read at a start, dynamic ones are told to running brokers. What Kafka lets
a broker change only for itself counts as static: it is about what the operator makes itself, and about security.
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

# What the operator says itself, in the file or as a dynamic setting.
RESERVED = frozenset(
    "node.id broker.id process.roles listeners advertised.listeners listener.security.protocol.map "
    "inter.broker.listener.name security.inter.broker.protocol controller.listener.names log.dir log.dirs broker.rack "
    "cordoned.log.dirs ottla.http.listener ottla.listener.addresses ottla.brokers.drained "
    "leader.replication.throttled.rate follower.replication.throttled.rate".split()
)
RESERVED_PREFIX = "ottla.metadata."

_OF_THE_CLUSTER = frozenset(
    "auto.create.topics.enable auto.leader.rebalance.enable default.replication.factor delete.topic.enable "
    "leader.imbalance.check.interval.seconds min.insync.replicas num.partitions ottla.quick.death.enable "
    "unclean.leader.election.enable".split()
)
_OF_THE_CLUSTER_PREFIXES = ("offsets.topic.", "share.coordinator.state.topic.", "transaction.state.log.")


class Settings(NamedTuple):
    """Settings by name, as a broker's file has their values."""

    static: Mapping[str, str]
    dynamic: Mapping[str, str]


def is_reserved(name: str) -> bool:
    """Whether it is a setting that the operator makes itself."""
    return name in RESERVED or name.startswith(RESERVED_PREFIX)


def is_of_the_cluster(name: str) -> bool:
    """Whether brokers can't differ in it: topics are made by it on whichever broker was asked, or the controller
    decides by it, wherever that is."""
    return name in _OF_THE_CLUSTER or name.startswith(_OF_THE_CLUSTER_PREFIXES)


def parse_config(given: Mapping[str, Any]) -> Settings:
    """The settings of all brokers. Raises SpecError."""
    settings = _parted(given, "config")
    _check(settings, "config")
    return settings


def parse_overrides(given: Iterable[Object], of_all: Settings) -> dict[int, Settings]:
    """What single brokers have on top, by their ids. Raises SpecError."""
    overrides: dict[int, Settings] = {}
    for each in given:
        broker = each["broker"]
        where = f"configOverrides: broker {broker}"
        if broker in overrides:
            raise SpecError(f"{where} is named twice; put its settings together")
        settings = _parted(each.get("config") or {}, where)
        for name in sorted({*settings.static, *settings.dynamic}):
            if is_of_the_cluster(name):
                raise SpecError(f"{where}: brokers can't differ in {name}; say it in config, for all of them")
        static, dynamic = {**of_all.static, **settings.static}, {**of_all.dynamic, **settings.dynamic}
        _check(Settings(static, dynamic), where)
        overrides[broker] = settings
    return overrides


def still_known(given: Mapping[str, Any], *, of_one: bool = False) -> dict[str, Any]:
    """The settings whose names this release takes, of those that an earlier one took; `of_one`: for a single broker.
    A value that is refused stays: without it the brokers would go back to the default, and a retention's may be so much
    shorter that records go."""
    return {
        name: value
        for name, value in given.items()
        if not is_reserved(name) and known_setting(name) is not None and not (of_one and is_of_the_cluster(name))
    }


def _parted(given: Mapping[str, Any], where: str) -> Settings:
    """The settings that need a restart, and those that don't."""
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
