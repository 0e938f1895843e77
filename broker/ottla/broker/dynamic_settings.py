"""Follows the dynamic settings of a broker: those of this broker, and those of all brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set

from ottla.metadata.image import Changed, Image
from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

_BROKER = "broker"


class DynamicSettings:
    """A listener of the image. `told` is called with each new configuration, and with the names of the settings whose
    values differ: with none of them, where only the layer that a value is from has changed."""

    def __init__(self, broker_id: int, config: BrokerConfig, told: Callable[[BrokerConfig, Set[str]], None]) -> None:
        self._broker_id = broker_id
        self._config = config
        self._told = told

    def changed(self, image: Image, changed: Changed) -> None:
        """Takes over what the image has of the broker's settings, if any of them may have changed."""
        if not any(resource.type == _BROKER for resource in changed.configs):
            return
        of_this_broker, of_all_brokers = image.config(_BROKER, str(self._broker_id)), image.config(_BROKER, "")
        self._config, names = self._config.with_dynamic(of_this_broker, of_all_brokers)
        for warning in self._config.warnings:
            logger.warning("%s", warning)
        if names:
            logger.info("settings changed: %s", ", ".join(sorted(names)))
        self._told(self._config, names)
