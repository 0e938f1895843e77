"""A broker's configuration in layers: defaults, the settings of its start, and the dynamic settings.

Pure. A configuration is immutable: `with_dynamic` returns a new BrokerConfig, and the names whose values differ. A
value is checked once, when its layer is built; afterwards a lookup is one dictionary access. The layers in Kafka's
order of precedence: dynamic value of this broker, dynamic default of the cluster, command line, environment, file,
default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from ottla.settings.catalogue import BROKER, TOPIC
from ottla.settings.consistency import inconsistencies
from ottla.settings.contradiction import Contradiction
from ottla.settings.listeners import PAGES, Listeners, check_listeners, parse_endpoints, parse_protocol_map
from ottla.settings.properties import properties_checksum
from ottla.settings.setting import InvalidSetting, Update, Value
from ottla.settings.sources import gather, known_setting
from ottla.settings.typed_values import TypedValues

_NOTHING: Mapping[str, str] = MappingProxyType({})
_OF_LISTENERS = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "controller.listener.names",
    "ottla.http.security.protocol",
)
"""The settings that describe listeners together."""
_DEFAULTS = {name: setting.default_value for name, setting in BROKER.items()}


class InvalidConfiguration(ValueError):
    """A configuration with which a broker can't start. `problems` has one sentence for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class BrokerConfig(TypedValues):
    """All settings of one broker at one moment.

    `static`, `dynamic_broker` and `dynamic_default` are the layers, as texts by name. `warnings` has sentences on
    settings that are accepted but not used. Values are typed: `config["log.segment.bytes"]`. `get_int` and its siblings
    also check the type for the caller.
    """

    __slots__ = (
        "connection_overrides",
        "dynamic_broker",
        "dynamic_default",
        "fetch_bytes_max",
        "file_checksum",
        "listener_connections",
        "listener_creation_rates",
        "listeners",
        "static",
        "topic_defaults",
        "warnings",
    )

    static: Mapping[str, str]
    dynamic_broker: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    warnings: tuple[str, ...]
    listeners: Listeners
    connection_overrides: Mapping[str, int]
    """max.connections.per.ip.overrides: limits by host."""
    listener_connections: Mapping[str, int]
    """max.connections of each listener that is opened, by its name."""
    listener_creation_rates: Mapping[str, int]
    """max.connection.creation.rate of each listener that is opened, by its name."""
    fetch_bytes_max: int
    """fetch.max.bytes, as an attribute, because every fetch reads it."""
    file_checksum: str
    """`properties_checksum` of the properties file that the broker was started with; empty if there was no file."""
    topic_defaults: Mapping[str, Value]
    """The values that a topic without settings of its own gets from the broker's settings, by the topic settings'
    names."""

    def __init__(
        self,
        static: Mapping[str, str],
        dynamic_broker: Mapping[str, str] = _NOTHING,
        dynamic_default: Mapping[str, str] = _NOTHING,
        problems: Iterable[str] = (),
        warnings: Iterable[str] = (),
        file_checksum: str = "",
    ) -> None:
        """Checks and joins the layers. Raises InvalidConfiguration, with all problems."""
        values, wrong = dict(_DEFAULTS), list(problems)
        for layer in (static, dynamic_default, dynamic_broker):
            for name, text in layer.items():
                setting = known_setting(name)
                assert setting is not None, name
                try:
                    values[name] = setting.parse(text)
                except InvalidSetting as error:
                    shown = "(hidden)" if setting.sensitive else error.value
                    wrong.append(Contradiction(f"{name}={shown}: {error.reason}", name))
        _join_identities(values)
        if not wrong:
            wrong.extend(inconsistencies(values))
        listeners, listener_problems = _listeners(values)
        wrong.extend(Contradiction(problem, *_OF_LISTENERS) for problem in listener_problems)
        if "inter.broker.listener.name" in static and "security.inter.broker.protocol" in static:
            names = ("inter.broker.listener.name", "security.inter.broker.protocol")
            wrong.append(Contradiction(f"Only one of {names[0]} and {names[1]} should be set.", *names))
        overrides = _connection_overrides(values, wrong)
        if wrong:
            raise InvalidConfiguration(wrong)
        assert listeners is not None
        self.static = _with_both_identities(static)
        self.dynamic_broker = dict(dynamic_broker)
        self.dynamic_default = dict(dynamic_default)
        self.warnings = tuple(warnings)
        self.file_checksum = file_checksum
        self.listeners = listeners
        super().__init__(values)
        self.connection_overrides = overrides
        self.listener_connections = {
            endpoint.listener: cast(int, self.for_listener(endpoint.listener, "max.connections"))
            for endpoint in listeners.opened
        }
        self.listener_creation_rates = {
            endpoint.listener: cast(int, self.for_listener(endpoint.listener, "max.connection.creation.rate"))
            for endpoint in listeners.opened
        }
        self.fetch_bytes_max = self.get_int("fetch.max.bytes")
        self.topic_defaults = _topic_defaults(values)

    @classmethod
    def from_sources(
        cls,
        properties: str = "",
        overrides: Mapping[str, str] = _NOTHING,
        environment: Mapping[str, str] = _NOTHING,
    ) -> BrokerConfig:
        """The configuration from a properties file's text, `--set` pairs and OTTLA_… variables."""
        given = gather(properties, overrides, environment)
        checksum = properties_checksum(properties) if properties else ""
        return cls(given.values, problems=given.problems, warnings=given.warnings, file_checksum=checksum)

    def with_dynamic(
        self, broker: Mapping[str, str], default: Mapping[str, str]
    ) -> tuple[BrokerConfig, frozenset[str]]:
        """(the configuration with other dynamic layers, the names whose values differ).

        Dynamic settings were checked when they were written, perhaps by another version of Ottla. If this version can't
        use an entry, it leaves the entry out with a warning, so that an entry in the metadata never stops a broker. If
        entries contradict one another or the static settings, as entries of one broker and of the cluster may, the
        settings in the contradiction keep their present values, and all others change. (Kafka's DynamicBrokerConfig
        changes none then.) At a broker's start the present values are those of the static settings, so a restarted
        broker may have other values than one that runs.
        """
        warnings: list[str] = []
        usable_broker = _usable(broker, True, warnings)
        usable_default = _usable(default, False, warnings)
        try:
            changed = self._with(usable_broker, usable_default, warnings)
        except InvalidConfiguration:
            changed = self._consistent(usable_broker, usable_default, warnings)
        names = self._values.keys() | changed._values.keys()
        return changed, frozenset(n for n in names if self._values.get(n) != changed._values.get(n))

    def _with(
        self, broker: Mapping[str, str], default: Mapping[str, str], warnings: Iterable[str] = ()
    ) -> BrokerConfig:
        return BrokerConfig(self.static, broker, default, warnings=warnings, file_checksum=self.file_checksum)

    def _consistent(self, broker: Mapping[str, str], default: Mapping[str, str], warnings: list[str]) -> BrokerConfig:
        """The configuration with these entries, except that settings which contradict one another or the static
        settings keep the entries that this configuration has. Adds a warning for each contradiction.

        Contradictions are ended one after the other, because the end of one may be the end of others. The rounds end,
        because each gives settings their present entries back, and the present entries don't contradict one another.
        If a problem names none of the settings that change, all of them keep their present entries; those about logins
        only if nothing else helps.
        """
        present, wanted = (self.dynamic_broker, self.dynamic_default), (dict(broker), dict(default))
        layers = list(zip(wanted, present, strict=True))
        while True:
            try:
                return self._with(*wanted, warnings)
            except InvalidConfiguration as error:
                problem = error.problems[0]
            names = sorted({name for layer in (*wanted, *present) for name in layer})
            changing = [name for name in names if any(new.get(name) != old.get(name) for new, old in layers)]
            named = problem.settings if isinstance(problem, Contradiction) else ()
            changed = (
                [name for name in named if name in changing]
                or [name for name in changing if "sasl." not in name]  # a removed user must not be able to log in again
                or changing
            )
            assert changed, problem  # only if the present entries were a problem
            for name in changed:
                for new, old in layers:
                    new.pop(name, None)
                    new.update({name: old[name]} if name in old else {})
            warnings.append(f"{_left(changed, present)}: {problem}")

    def serving(self, opened: Listeners) -> BrokerConfig:
        """This configuration for a broker that has opened its listeners: it keeps their names and protocols until its
        next start, whatever the settings say meanwhile. Only the advertised addresses are new."""
        endpoints = {each.listener: each for each in self.listeners.advertised}
        told = tuple(endpoints.get(each.listener, each)._replace(protocol=each.protocol) for each in opened.advertised)
        changed = BrokerConfig.__new__(BrokerConfig)  # a copy: the settings were checked when this one was made
        for name in (*TypedValues.__slots__, *BrokerConfig.__slots__):
            setattr(changed, name, getattr(self, name))
        changed.listeners = opened._replace(advertised=told)
        return changed

    def for_listener(self, listener: str, name: str) -> Value:
        """The value of a setting for one listener (`listener.name.<listener>.<name>`), or else for the broker."""
        return self._values.get(f"listener.name.{listener.lower()}.{name}", self._values[name])

    @property
    def node_id(self) -> int:
        """The broker's id."""
        return self.get_int("node.id")

    @property
    def roles(self) -> frozenset[str]:
        """The roles of this process: broker, controller, or both."""
        return frozenset(self.get_list("process.roles"))

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories."""
        return self.get_list("log.dirs") or self.get_list("log.dir")

    @property
    def cordoned_log_dirs(self) -> tuple[str, ...]:
        """The log directories that get no new replicas: those in cordoned.log.dirs, or all if it is `*`."""
        given = self.get_list("cordoned.log.dirs")
        return self.log_dirs if given == ("*",) else given


def _join_identities(values: dict[str, Value]) -> None:
    """Gives node.id and broker.id the same value, because they are two names of one setting."""
    if values["node.id"] is None and values["broker.id"] != -1:
        values["node.id"] = values["broker.id"]
    elif values["node.id"] is not None and values["broker.id"] == -1:
        values["broker.id"] = values["node.id"]


def _with_both_identities(static: Mapping[str, str]) -> dict[str, str]:
    """The static layer as DescribeConfigs shows it: with both node.id and broker.id if either of them was given."""
    given = static.get("node.id", static.get("broker.id"))
    return {**static, "node.id": given, "broker.id": given} if given is not None else dict(static)


def _connection_overrides(values: Mapping[str, Value], wrong: list[str]) -> dict[str, int]:
    name = "max.connections.per.ip.overrides"
    overrides: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in str(values[name]).split(","))):
        host, _, count = entry.rpartition(":")
        if host and count.isascii() and count.isdigit():
            overrides[host.strip("[] ")] = int(count)
        else:
            wrong.append(Contradiction(f"{name}={values[name]}: must look like host:count,host:count", name))
            break
    return overrides


def _listeners(values: Mapping[str, Value]) -> tuple[Listeners | None, list[str]]:
    """(the listeners or None, sentences on the problems with them)."""
    entries, advertised = values["listeners"], values["advertised.listeners"]
    names = values["controller.listener.names"] or ()
    assert isinstance(entries, tuple)
    assert isinstance(names, tuple)
    controllers = {name.upper() for name in names}
    setting = "listener.security.protocol.map"
    try:
        protocols = parse_protocol_map(str(values[setting]))
        for name in controllers:
            protocols.setdefault(name, "PLAINTEXT")
        setting = "listeners"
        opened = parse_endpoints(entries, protocols)
        setting = "advertised.listeners"
        told = parse_endpoints(advertised, protocols) if isinstance(advertised, tuple) else None
    except ValueError as error:
        return None, [f"{setting}={_shown(values[setting])}: {error}"]
    named, protocol = values["inter.broker.listener.name"], str(values["security.inter.broker.protocol"])
    inter_broker = str(named or protocol).upper()
    if named is None and opened and inter_broker not in {endpoint.listener for endpoint in opened}:
        # Kafka takes the listener that has the protocol's name. If there is only one listener, Ottla takes it.
        serving = [endpoint.listener for endpoint in opened if endpoint.listener not in controllers]
        inter_broker = serving[0] if len(serving) == 1 else inter_broker
    listeners, problems = check_listeners(opened, told, inter_broker, controllers)
    pages = str(values["ottla.http.security.protocol"]).upper()
    if pages != "PLAINTEXT" and PAGES in {endpoint.listener for endpoint in listeners.opened}:
        problems.append(("listeners", f"names {PAGES}, which is the name of the pages' listener"))
    listeners = listeners._replace(pages=pages)
    return listeners, [f"{name}={_shown(values[name])}: {reason}" for name, reason in problems]


def _shown(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)


def _usable(layer: Mapping[str, str], per_broker: bool, warnings: list[str]) -> dict[str, str]:
    """The entries of a dynamic layer that are known, dynamic and valid. Adds a warning for each of the others."""
    usable: dict[str, str] = {}
    for name, text in layer.items():
        setting = known_setting(name)
        if setting is None or not _is_dynamic(setting.update, per_broker):
            warnings.append(f"{name} is left out: it is not a setting that can change while a broker runs")
            continue
        try:
            setting.parse(text)
        except InvalidSetting as error:
            warnings.append(f"{name} is left out: it {error.reason}")
            continue
        usable[name] = text
    return usable


def _left(names: Sequence[str], present: Sequence[Mapping[str, str]]) -> str:
    """Says that settings keep their present dynamic entries or, without such entries, what the static settings say."""
    stay = [name for name in names if any(name in layer for layer in present)]
    out = [name for name in names if name not in stay]
    parts = [(stay, ("stays unchanged", "stay unchanged")), (out, ("is left out", "are left out"))]
    return ", and ".join(f"{' and '.join(some)} {words[len(some) > 1]}" for some, words in parts if some)


def _is_dynamic(update: Update, per_broker: bool) -> bool:
    return update is Update.CLUSTER_WIDE or (per_broker and update is Update.PER_BROKER)


_UNITS_MS = {"hours": 3_600_000, "minutes": 60_000}


def _topic_defaults(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """The broker's defaults for topic settings, each from the first synonym that has a value; times are in ms."""
    defaults: dict[str, Value] = {}
    for name, setting in TOPIC.items():
        defaults[name] = setting.default_value
        for synonym in setting.synonyms:
            value = values[synonym]
            if value is not None:
                factor = _UNITS_MS.get(synonym.rpartition(".")[2])
                if factor is not None:
                    assert isinstance(value, int)
                    value = value * factor
                defaults[name] = value
                break
    retention_ms = defaults["retention.ms"]
    assert isinstance(retention_ms, int)
    defaults["retention.ms"] = max(retention_ms, -1)
    return MappingProxyType(defaults)
