"""Which changes of the metadata change a broker's configuration."""

from __future__ import annotations

from collections.abc import Set
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.dynamic_settings import DynamicSettings
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import Changed
from ottla.settings.config import BrokerConfig

MINE, ALL, TOPIC = ConfigResource("broker", "1"), ConfigResource("broker", ""), ConfigResource("topic", "t")
CONNECTIONS = "max.connections"


class Stage:
    """The dynamic settings of broker 1, and the changes of its configuration that they reported."""

    def __init__(self) -> None:
        self.told: list[tuple[BrokerConfig, Set[str]]] = []
        first = BrokerConfig.from_sources("node.id=1\nlog.dirs=/x")
        self.settings = DynamicSettings(
            1,
            lambda: self.told[-1][0] if self.told else first,
            lambda config, names: self.told.append((config, names)),
        )

    def change(self, resource: ConfigResource, **layers: dict[str, str]) -> None:
        """Reports an image in which a resource has changed: `mine` are the dynamic settings of broker 1, `everybodys`
        the dynamic defaults of all brokers.
        """
        found = {("broker", "1"): layers.get("mine", {}), ("broker", ""): layers.get("everybodys", {})}
        image: Any = SimpleNamespace(config=lambda kind, name: found[kind, name])
        self.settings.changed(image, Changed(configs=frozenset({resource})))


def test_a_change_is_told_with_the_names_of_what_differs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stage = Stage()
    stage.change(ALL, everybodys={CONNECTIONS: "7"})
    config, names = stage.told[-1]
    assert (config.get_int(CONNECTIONS), names) == (7, {CONNECTIONS})
    assert f"settings changed: {CONNECTIONS}" in caplog.text


def test_another_layer_of_the_same_value_is_told_without_a_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stage = Stage()
    stage.change(ALL, everybodys={CONNECTIONS: "7"})
    caplog.clear()
    stage.change(MINE, mine={CONNECTIONS: "7"})
    config, names = stage.told[-1]
    assert (len(stage.told), config.get_int(CONNECTIONS), names) == (2, 7, frozenset())
    assert "settings changed" not in caplog.text


def test_settings_of_topics_are_not_looked_at() -> None:
    stage = Stage()
    stage.change(TOPIC)
    assert stage.told == []


def test_an_entry_that_cannot_be_used_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.change(MINE, mine={CONNECTIONS: "many"})
    assert stage.told[-1][1] == frozenset()
    assert CONNECTIONS in caplog.text
