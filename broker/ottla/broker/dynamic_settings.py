"""Follows the dynamic settings of a broker: its own settings, and the settings of all brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set

from ottla.metadata.image import Changed, Image
from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

_BROKER = "broker"


class DynamicSettings:
    """Keeps the broker's configuration up to date with the metadata. `config` returns the present configuration. `told`
    is called with each new configuration, and with the names of the settings whose values differ. A setting isn't among
    them if the same value only comes from another layer (the broker's settings, the cluster's, …)."""

    def __init__(
        self, broker_id: int, config: Callable[[], BrokerConfig], told: Callable[[BrokerConfig, Set[str]], None]
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._told = told

    def changed(self, image: Image, changed: Changed) -> None:
        """Takes over the broker's settings from the image, if any of them may have changed."""
        if not any(resource.type == _BROKER for resource in changed.configs):
            return
        of_this_broker, of_all_brokers = image.config(_BROKER, str(self._broker_id)), image.config(_BROKER, "")
        config, names = self._config().with_dynamic(of_this_broker, of_all_brokers)
        for warning in config.warnings:
            logger.warning("%s", warning)
        if names:
            logger.info("settings changed: %s", ", ".join(sorted(names)))
        self._told(config, names)
