"""The logins at all listeners of a broker: which connections need one, and by which mechanisms.

The mechanisms follow the settings, also while the broker runs; new logins see a change at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.login.gate import Gate, LoginCounters, Rules
from ottla.broker.login.mechanisms import Mechanisms
from ottla.net.connection import Connection
from ottla.security.listener_logins import ListenerLogins, ignored_jaas, logins_of, usable_logins
from ottla.settings.config import BrokerConfig

if TYPE_CHECKING:
    from ottla.net.server import Dispatch

logger = logging.getLogger(__name__)

_TOLD_BY = ("sasl", "reauth", "authentication", "listeners", "protocol.map")  # parts of settings' names


class Logins:
    """Begins the login of each connection that needs one. Raises InvalidConfiguration if the settings contradict one
    another."""

    def __init__(
        self,
        config: BrokerConfig,
        mechanisms: Mechanisms,
        serve: Dispatch,
        now_ms: Callable[[], int],
    ) -> None:
        self.counters: dict[str, LoginCounters] = {}
        self._mechanisms = mechanisms
        self._serve = serve
        self._now_ms = now_ms
        self._rules = self._rules_of(config, logins_of(config))
        for warning in ignored_jaas(config):
            logger.warning("%s", warning)

    @property
    def needed(self) -> bool:
        """Whether some listener asks for a login."""
        return bool(self._rules)

    def start(self, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        """Begins to fetch the keys that check tokens."""
        self._mechanisms.start(spawn)

    def begin(self, connection: Connection) -> Gate | None:
        """The login of a new connection; None if its listener asks for none."""
        rules = self._rules.get(connection.listener.name)
        return None if rules is None else Gate(rules)

    def configured(self, config: BrokerConfig, names: Set[str]) -> None:
        """Takes over changed settings for later logins. By a mechanism whose settings can't be used nobody logs in any
        more: by the former settings, users might log in who have been removed."""
        if not any(word in name for name in names for word in _TOLD_BY):
            return
        logins, problems = usable_logins(config)
        for problem in problems:
            logger.error("logins are refused: %s", problem)
        self._rules = self._rules_of(config, logins)
        for warning in ignored_jaas(config):
            logger.warning("%s", warning)

    def _rules_of(self, config: BrokerConfig, logins: Mapping[str, ListenerLogins]) -> dict[str, Rules]:
        return {
            listener: Rules(
                self._mechanisms.of(one),
                one.frame_bytes_max,
                config.get_int("ottla.login.timeout.ms") / 1000,
                config.get_int("connection.failed.authentication.delay.ms") / 1000,
                self._serve,
                self._now_ms,
                self.counters.setdefault(listener, LoginCounters()),
                partial(self._present, listener),
            )
            for listener, one in logins.items()
        }

    def _present(self, listener: str) -> Rules:
        return self._rules[listener]
