"""The server's sides of the mechanisms, with the credentials that they accept.

PLAIN's passwords stand in the settings. SCRAM's credentials are metadata, and so are delegation tokens, by which SCRAM
logs in, too. Of users that don't exist, `ottla.security.scram` says what they are told. The keys that check OAuth
tokens are fetched by `token_keys.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.broker.login.conversation import Mechanism
from ottla.metadata.image import Image
from ottla.metadata.model.users import ScramKeys
from ottla.protocol.sasl import OAUTHBEARER, PLAIN, ServerExchange
from ottla.security.listener_logins import ListenerLogins, OAuthSettings, TokenSource
from ottla.security.oauthbearer import OAuthServer
from ottla.security.plain import PlainServer
from ottla.security.scram import HASHES, Known, MadeUp, ScramCredential, ScramServer
from ottla.security.unsecured_tokens import unsecured_check

if TYPE_CHECKING:
    from ottla.broker.login.token_keys import TokenKeys

_NONCE_BITS = 130  # as in Kafka
_SECRET_BYTES = 32
_FORMS_MAX = 1000  # credentials whose form is looked at, so that a change among many users costs little


class Mechanisms:
    """Makes the mechanisms of listeners from their settings."""

    def __init__(self, image: Callable[[], Image], now_ms: Callable[[], int], random: Random) -> None:
        self._image = image
        self._now_ms = now_ms
        self._random = random
        self._drawn = b""  # used until the image shows the secret that brokers share
        self._keys: dict[TokenSource, TokenKeys] = {}
        self._made_up: dict[str, tuple[object, MadeUp]] = {}

    def start(self, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        """Begins to fetch the keys that check tokens."""
        for source, keys in self._keys.items():
            spawn(keys.run(), f"keys for tokens from {source.url}")

    def of(self, logins: ListenerLogins) -> dict[str, Mechanism]:
        """The mechanisms of a listener, by their names."""
        return {name: self._mechanism(name, logins) for name in logins.session_ms_max}

    def _mechanism(self, name: str, logins: ListenerLogins) -> Mechanism:
        if name == PLAIN:
            return Mechanism(partial(PlainServer, logins.plain_users), logins.session_ms_max[name])
        if name == OAUTHBEARER and logins.oauth is not None:
            return Mechanism(self._oauth(logins.oauth), logins.session_ms_max[name])
        assert name in HASHES, name
        return Mechanism(partial(self._scram, name), logins.session_ms_max[name])

    def _oauth(self, settings: OAuthSettings) -> Callable[[], ServerExchange]:
        if settings.source is None:
            check = unsecured_check(settings.options, self._now_ms)
            return lambda: OAuthServer(check)
        # Imported only here, because these modules and their libraries take memory.
        from ottla.broker.login.token_keys import TokenKeys
        from ottla.security.signed_tokens import signed_check

        if settings.source not in self._keys:
            self._keys[settings.source] = TokenKeys(settings.source)
        begin_check = signed_check(self._keys[settings.source], settings.expected)
        return lambda: OAuthServer(begin_check())

    def _scram(self, mechanism: str) -> ServerExchange:
        def look_up(user: str, by_token: bool) -> Known | None:
            if by_token:
                return self._by_token(user, mechanism)
            keys = self._image().scram.get((user, mechanism))
            return None if keys is None else Known(user, _credential(keys))

        return ScramServer(mechanism, look_up, self._made_up_of(mechanism), nonce_of(self._random))

    def _by_token(self, token_id: str, mechanism: str) -> Known | None:
        """The owner of a delegation token that hasn't expired."""
        token = self._image().tokens.get(token_id)
        if token is None or token.expiry_ms < self._now_ms() or mechanism not in token.scram:
            return None
        return Known(token.owner.removeprefix("User:"), _credential(token.scram[mechanism]), token.expiry_ms)

    def _made_up_of(self, mechanism: str) -> MadeUp:
        """The credentials of unknown users. They are computed anew when some credential has changed."""
        image = self._image()
        known: Mapping[tuple[str, str], ScramKeys] = image.scram
        kept = self._made_up.get(mechanism)
        if kept is None or kept[0] is not known:
            self._drawn = self._drawn or drawn_secret(self._random)
            secret = self._drawn if image.login_secret is None else image.login_secret.secret
            credentials = (_credential(keys) for (_, other), keys in known.items() if other == mechanism)
            kept = self._made_up[mechanism] = (known, MadeUp(mechanism, secret, islice(credentials, _FORMS_MAX)))
        return kept[1]


def drawn_secret(random: Random) -> bytes:
    """A new secret for `ottla.metadata.intents.users.share_login_secret`."""
    return random.randbytes(_SECRET_BYTES)


def nonce_of(random: Random) -> str:
    """A new nonce for SCRAM: printable text without commas."""
    return f"{random.getrandbits(_NONCE_BITS):033x}"


def _credential(keys: ScramKeys) -> ScramCredential:
    return ScramCredential(keys.salt, keys.stored_key, keys.server_key, keys.iterations)
