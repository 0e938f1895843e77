"""The login of a client, from a mechanism and a JAAS configuration: the user's name, and how an exchange begins. Pure.

Brokers (for their connections to other brokers), the command line and Spark's data source log in by it.
`ottla.security.preparation` draws what a new login needs. OAUTHBEARER takes its token from an identity provider
(`sasl.oauthbearer.token.endpoint.url`), or from a file (`file:` there), which is read at each login, or makes an
unsecured one.
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
from ottla.security.token_endpoint import InvalidEndpoint, TokenEndpoint, token_endpoint
from ottla.security.unsecured_tokens import makes_own_token, own_token
from ottla.settings.setting import Value

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
    an endpoint that gives tokens, a file with the token, or the options by which the client makes an unsecured one.
    """

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    token_file: str = ""
    token_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    token_endpoint: TokenEndpoint | None = None

    def exchange(
        self,
        nonce: Callable[[], str],
        now_s: Callable[[], float],
        read: Callable[[str], str],
        fetch: Callable[[TokenEndpoint], str],
    ) -> ClientExchange:
        """The client's side of a new login. `nonce` draws random printable text without commas, `now_s` is the wall
        clock, `read` returns the content of a file, and `fetch` a token of an endpoint."""
        if self.token_endpoint is not None:
            return OAuthClient(fetch(self.token_endpoint))
        if self.mechanism == OAUTHBEARER:
            own = dict(self.token_options)
            return OAuthClient(read(self.token_file).strip() if self.token_file else own_token(own, now_s()))
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        return ScramClient(self.mechanism, self.user, self.password, nonce(), by_token=self.by_token)


def client_login(mechanism: str, jaas: str, value_of: Callable[[str], Value]) -> ClientLogin:
    """The login by `mechanism` with the credentials in a JAAS configuration. `value_of` gives the settings about
    OAUTHBEARER's tokens, as in the table of brokers' settings. Raises InvalidJaas, whose message has no secret, also
    for a mechanism that Ottla's clients don't have."""
    if mechanism not in MODULE_OF:
        raise InvalidJaas(f"is for the mechanism {mechanism}; Ottla's own clients have {', '.join(MODULE_OF)}")
    login = parse_jaas(jaas)
    if login.module != MODULE_OF[mechanism]:
        raise InvalidJaas(f"has the login module {login.module}, and {mechanism} needs {MODULE_OF[mechanism]}")
    if mechanism == OAUTHBEARER:
        return _by_oauth(login, value_of)
    missing = [name for name in ("username", "password") if not login.options.get(name)]
    if missing:
        raise InvalidJaas(f"has no {' and no '.join(missing)}")
    by_token = login.options.get("tokenauth", "false").lower() == "true"
    return ClientLogin(mechanism, login.options["username"], login.options["password"], by_token)


def _by_oauth(login: JaasLogin, value_of: Callable[[str], Value]) -> ClientLogin:
    token_url = str(value_of("sasl.oauthbearer.token.endpoint.url") or "")
    if token_url.startswith("file:"):
        return ClientLogin(OAUTHBEARER, token_file=unquote(urlsplit(token_url).path))
    if token_url:
        try:
            return ClientLogin(OAUTHBEARER, token_endpoint=token_endpoint(value_of, login.options))
        except InvalidEndpoint as error:
            raise InvalidJaas(f"is for OAUTHBEARER: {error}") from None
    if not makes_own_token(login.options):
        raise InvalidJaas(
            "says nothing about the token: set sasl.oauthbearer.token.endpoint.url, or, for development,"
            " unsecuredLoginStringClaim_sub"
        )
    return ClientLogin(OAUTHBEARER, token_options=tuple(login.options.items()))
