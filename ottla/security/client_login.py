"""The login of a client, from a mechanism and a JAAS configuration: the user's name, and how an exchange begins. Pure.

Brokers (for their connections to other brokers), the command line and Spark's data source log in by it.
`ottla.security.preparation` draws what a new login needs. OAUTHBEARER takes its token from a file (`file:` in
`sasl.oauthbearer.token.endpoint.url`), which is read at each login, or makes an unsecured one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ottla.protocol.sasl import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, ClientExchange
from ottla.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, InvalidJaas, JaasLogin, parse_jaas
from ottla.security.oauthbearer import OAuthClient
from ottla.security.plain import PlainClient
from ottla.security.scram import ScramClient
from ottla.security.unsecured_tokens import makes_own_token, own_token

MODULE_OF: Mapping[str, str] = {
    PLAIN: PLAIN_MODULE,
    SCRAM_SHA_256: SCRAM_MODULE,
    SCRAM_SHA_512: SCRAM_MODULE,
    OAUTHBEARER: OAUTHBEARER_MODULE,
}
"""The login module that a mechanism needs."""


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """A mechanism with the client's credentials, which `repr` leaves out.

    `by_token`: the user's name is the id of a delegation token. For OAUTHBEARER there is neither user nor password, but
    a file with the token, or the options by which the client makes an unsecured one.
    """

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    token_file: str = ""
    token_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def exchange(
        self, nonce: Callable[[], str], now_s: Callable[[], float], read: Callable[[str], str]
    ) -> ClientExchange:
        """The client's side of a new login. `nonce` draws random printable text without commas, `now_s` is the wall
        clock, and `read` returns the content of a file."""
        if self.mechanism == OAUTHBEARER:
            own = dict(self.token_options)
            return OAuthClient(read(self.token_file).strip() if self.token_file else own_token(own, now_s()))
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        return ScramClient(self.mechanism, self.user, self.password, nonce(), by_token=self.by_token)


def client_login(mechanism: str, jaas: str, token_url: str = "") -> ClientLogin:
    """The login by `mechanism` with the credentials in a JAAS configuration; `token_url` is where OAUTHBEARER's token
    is. Raises InvalidJaas, whose message has no secret, also for a mechanism that Ottla's clients don't have."""
    if mechanism not in MODULE_OF:
        raise InvalidJaas(f"is for the mechanism {mechanism}; Ottla's own clients have {', '.join(MODULE_OF)}")
    login = parse_jaas(jaas)
    if login.module != MODULE_OF[mechanism]:
        raise InvalidJaas(f"has the login module {login.module}, and {mechanism} needs {MODULE_OF[mechanism]}")
    if mechanism == OAUTHBEARER:
        return _by_oauth(login, token_url)
    missing = [name for name in ("username", "password") if not login.options.get(name)]
    if missing:
        raise InvalidJaas(f"has no {' and no '.join(missing)}")
    by_token = login.options.get("tokenauth", "false").lower() == "true"
    return ClientLogin(mechanism, login.options["username"], login.options["password"], by_token)


def _by_oauth(login: JaasLogin, token_url: str) -> ClientLogin:
    if token_url.startswith("file:"):
        return ClientLogin(OAUTHBEARER, token_file=unquote(urlsplit(token_url).path))
    if token_url:
        raise InvalidJaas("needs a token from a file: sasl.oauthbearer.token.endpoint.url must begin with file:")
    if not makes_own_token(login.options):
        raise InvalidJaas(
            "says nothing about the token: set sasl.oauthbearer.token.endpoint.url to a file: URL, or, for development,"
            " unsecuredLoginStringClaim_sub"
        )
    return ClientLogin(OAUTHBEARER, token_options=tuple(login.options.items()))
