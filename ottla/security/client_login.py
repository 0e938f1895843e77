"""The login of a client, from a mechanism and a JAAS configuration: the user's name, and how an exchange begins. Pure.

Brokers (for their connections to other brokers), the command line and Spark's data source log in by it. Random nonces
are drawn by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ottla.protocol.sasl import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, ClientExchange
from ottla.security.jaas import PLAIN_MODULE, SCRAM_MODULE, InvalidJaas, parse_jaas
from ottla.security.plain import PlainClient
from ottla.security.scram import ScramClient

MODULE_OF: Mapping[str, str] = {
    PLAIN: PLAIN_MODULE,
    SCRAM_SHA_256: SCRAM_MODULE,
    SCRAM_SHA_512: SCRAM_MODULE,
}
"""The login module that a mechanism needs."""


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """A mechanism with the client's credentials, which `repr` leaves out. `by_token`: the user's name is the id of a
    delegation token."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    by_token: bool = False

    def exchange(self, nonce: Callable[[], str]) -> ClientExchange:
        """The client's side of a new login; `nonce` draws random printable text without commas."""
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        return ScramClient(self.mechanism, self.user, self.password, nonce(), by_token=self.by_token)


def client_login(mechanism: str, jaas: str) -> ClientLogin:
    """The login by `mechanism` with the credentials in a JAAS configuration. Raises InvalidJaas, whose message has no
    secret, also for a mechanism that Ottla's clients don't have."""
    if mechanism not in MODULE_OF:
        raise InvalidJaas(f"is for the mechanism {mechanism}; Ottla's own clients have {', '.join(MODULE_OF)}")
    login = parse_jaas(jaas)
    if login.module != MODULE_OF[mechanism]:
        raise InvalidJaas(f"has the login module {login.module}, and {mechanism} needs {MODULE_OF[mechanism]}")
    missing = [name for name in ("username", "password") if not login.options.get(name)]
    if missing:
        raise InvalidJaas(f"has no {' and no '.join(missing)}")
    by_token = login.options.get("tokenauth", "false").lower() == "true"
    return ClientLogin(mechanism, login.options["username"], login.options["password"], by_token)
