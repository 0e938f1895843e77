"""TLS of all encrypted listeners of a process, and the renewal of their certificates while connections are open.

Certificates change by settings, or by their files. A change is prepared in a thread, which reads the stores and checks
them against those in force; then it is installed on the event loop, in one step. New connections get the new
certificates, open connections keep theirs. A change that is refused leaves everything as it was.

A process without encrypted listeners doesn't load the library for certificates.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.security.tls_settings import InvalidTls
from ottla.settings.config import BrokerConfig
from ottla.settings.listeners import ENCRYPTED, PAGES

if TYPE_CHECKING:
    from ottla.security.listener_tls import FileStates, ListenerTls, Loaded

logger = logging.getLogger(__name__)

LOOKED_SECONDS = 1.0  # the time between two looks at the files of the stores

Prepared = Mapping[str, "Loaded"]
"""Checked certificates by listener, ready to be installed."""


class TlsListeners:
    """The encrypted listeners of a process by their names.

    `serves` is False for a process that only connects to brokers; then there are only the inter-broker listener and the
    HTTP pages.
    """

    def __init__(self, *, serves: bool) -> None:
        self._serves = serves
        self._listeners: dict[str, ListenerTls] = {}
        self._inter_broker = ""
        self._refused: dict[str, FileStates] = {}  # the states of files that can't be used, so that it's said once

    async def load(self, config: BrokerConfig) -> None:
        """Reads the stores of all encrypted listeners. Raises InvalidTls."""
        self._inter_broker = config.listeners.inter_broker
        await self._load(config, self._encrypted(config))

    async def load_pages(self, config: BrokerConfig) -> None:
        """Reads the stores of the HTTP pages, which are served before the metadata is known. Raises InvalidTls."""
        await self._load(config, [name for name in self._encrypted(config) if name == PAGES])

    async def _load(self, config: BrokerConfig, names: list[str]) -> None:
        if names:
            self.install(await asyncio.to_thread(self._prepared, config, names, renewed=False))

    @property
    def encrypted(self) -> bool:
        """Whether there is an encrypted listener."""
        return bool(self._listeners)

    def of(self, listener: str) -> ListenerTls | None:
        """TLS of a listener; None if the listener isn't encrypted."""
        return self._listeners.get(listener)

    def client_context(self) -> ssl.SSLContext:
        """The context for a connection to another broker's inter-broker listener that begins now. Raises
        ConnectionError while the stores aren't read yet."""
        listener = self._listeners.get(self._inter_broker)
        if listener is None:
            raise ConnectionError("the certificates for connections to other brokers aren't read yet")
        return listener.client_context()

    async def prepare(self, config: BrokerConfig) -> Prepared:
        """The certificates by this configuration that differ from those in force. Raises InvalidTls for certificates
        that can't be used, or can't take the place of those in force."""
        names = self._encrypted(config)
        if not names:
            return {}
        return await asyncio.to_thread(self._prepared, config, names)

    def install(self, prepared: Prepared) -> None:
        """Puts certificates in force."""
        if not prepared:
            return
        from ottla.security.listener_tls import ListenerTls

        for listener, loaded in prepared.items():
            self._refused.pop(listener, None)
            if listener in self._listeners:
                self._listeners[listener].renew(loaded)
                logger.info("listener %s: new connections get the new certificates", listener)
            else:
                self._listeners[listener] = ListenerTls(loaded)

    async def follow(self, config: BrokerConfig) -> None:
        """Puts in force what changed settings or changed files say. What can't be used is reported in the log. The key
        in force stays while the file of its store is missing, and a changed trust store is read all the same."""
        for listener in self._listeners:
            try:
                prepared = await asyncio.to_thread(self._prepared, config, [listener], keeps_missing=True)
            except InvalidTls as error:
                logger.error("the certificates in force stay: %s", error)
            else:
                self.install(prepared)

    async def follow_files(self, config: Callable[[], BrokerConfig]) -> None:
        """Looks at the files of the stores until cancelled, and puts changes in force."""
        while True:
            await asyncio.sleep(LOOKED_SECONDS)
            if await asyncio.to_thread(self._files_have_changed):
                await self.follow(config())

    def _files_have_changed(self) -> bool:
        from ottla.security.listener_tls import file_states

        found = False
        for name, listener in list(self._listeners.items()):
            loaded = listener.loaded
            states = file_states(loaded.settings.tls.files)
            if states not in (loaded.files, self._refused.get(name)):
                self._refused[name] = states
                found = True
        return found

    def _encrypted(self, config: BrokerConfig) -> list[str]:
        listeners = config.listeners
        names = [endpoint.listener for endpoint in listeners.opened] if self._serves else [listeners.inter_broker]
        return [name for name in (*names, PAGES) if listeners.protocol_of(name) in ENCRYPTED]

    def _prepared(
        self, config: BrokerConfig, names: list[str], *, renewed: bool = True, keeps_missing: bool = False
    ) -> Prepared:
        from ottla.security.listener_tls import listener_settings, load

        prepared = {}
        for name in names:
            settings = listener_settings(config, name, serves=self._serves or name == PAGES)
            present = self._listeners.get(name) if renewed else None
            old = None if present is None else present.loaded
            loaded = load(settings, name, old, keeps_missing=keeps_missing)
            missing = settings.tls.keystore_location
            if keeps_missing and old is not None and missing is not None and None in loaded.files:
                logger.error("listener %s: the key in force stays, because %s is missing", name, missing)
            if old is None or (loaded.settings, loaded.stores) != (old.settings, old.stores):
                prepared[name] = loaded
        return prepared
