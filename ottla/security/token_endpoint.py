"""A token endpoint of an identity provider: the request for a token, its answer, and when a token is renewed. Pure.

The grant is that of client credentials (RFC 6749, 4.4), with the client's id and secret in HTTP's basic authentication.
The settings are Kafka's: `sasl.oauthbearer.token.endpoint.url` (KIP-768), `sasl.oauthbearer.client.credentials.…`,
`sasl.oauthbearer.scope` (KIP-1139) or the older options clientId, clientSecret and scope of the JAAS configuration,
`sasl.login.…` for times. Options of the JAAS configuration that begin with `ssl.` say which authorities may vouch for
the endpoint. Source: Kafka's HttpJwtRetriever, ClientCredentialsRequestFormatter and ExpiringCredentialRefreshingLogin.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlsplit

from ottla.security.oauthbearer import InvalidToken
from ottla.security.tls_settings import InvalidTls, TlsSettings, client_tls_settings
from ottla.security.token_claims import TIME_MAX_S, parts_of, time_of
from ottla.settings.secret import Secret
from ottla.settings.setting import Value

ANSWER_BYTES_MAX = 1 << 20
_FINAL = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505})
"""The statuses of HTTP after which another attempt is of no use, as in Kafka."""

_TIMEOUT_S = 10.0  # Kafka waits for ever where no time is set
_ERROR = re.compile(r"[a-z_]{1,40}")


class InvalidEndpoint(ValueError):
    """Settings by which no token can be fetched. The message has no secret."""


class TokenRefused(Exception):
    """The endpoint gave no token. `final` says that another attempt is of no use."""

    def __init__(self, why: str, *, final: bool) -> None:
        super().__init__(why)
        self.final = final


@dataclass(frozen=True, slots=True)
class Renewal:
    """When a token is renewed before it expires: after a share `factor` of its life and a random part of `jitter`, but
    not within `min_period_s` of its beginning, and at least `buffer_s` before its end."""

    factor: float
    jitter: float
    min_period_s: float
    buffer_s: float

    def at(self, began_s: float, expires_s: float, random: float) -> float:
        """The time of the renewal, for a random number from 0 to 1."""
        life_s = expires_s - began_s
        wanted = began_s + life_s * (self.factor + self.jitter * random)
        if self.min_period_s + self.buffer_s > life_s:
            return wanted
        return max(min(wanted, expires_s - self.buffer_s), began_s + self.min_period_s)


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Where and how tokens are fetched. Times are in seconds."""

    url: str
    client_id: str
    client_secret: Secret
    scope: str
    url_encoded: bool
    tls: TlsSettings | None
    connect_s: float
    read_s: float
    backoff_s: float
    backoff_max_s: float
    renewal: Renewal

    @property
    def name(self) -> str:
        """The URL as messages show it: without a user, and without a query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}:{self.port}{parts.path}"

    @property
    def port(self) -> int:
        """The port of the endpoint."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def headers(self) -> dict[str, str]:
        """The headers of a request."""
        pair = [self.client_id, self.client_secret.value]
        login = ":".join(quote_plus(each) if self.url_encoded else each for each in pair)
        return {
            "Authorization": "Basic " + base64.b64encode(login.encode()).decode(),
            "Accept": "application/json",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def body(self) -> bytes:
        """The body of a request."""
        scope = f"&scope={quote_plus(self.scope)}" if self.scope else ""
        return f"grant_type=client_credentials{scope}".encode()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A token, and the time of its end in seconds since the Unix epoch (None: it isn't known)."""

    token: str = field(repr=False)
    expires_s: float | None


def token_endpoint(value_of: Callable[[str], Value], options: Mapping[str, str]) -> TokenEndpoint:
    """The endpoint that a client's or a broker's settings name, and the options of its JAAS configuration. Raises
    InvalidEndpoint."""
    url = str(value_of("sasl.oauthbearer.token.endpoint.url"))
    secret = value_of("sasl.oauthbearer.client.credentials.client.secret")
    client_id = str(value_of("sasl.oauthbearer.client.credentials.client.id") or options.get("clientId", ""))
    client_secret = secret if isinstance(secret, Secret) and secret.value else Secret(options.get("clientSecret", ""))
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidEndpoint(
            "sasl.oauthbearer.token.endpoint.url must begin with file:, http:// or https://, and name a host"
        )
    if not client_id or not client_secret.value:
        raise InvalidEndpoint(
            "a token from sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and"
            " sasl.oauthbearer.client.credentials.client.secret, or clientId and clientSecret in sasl.jaas.config"
        )
    return TokenEndpoint(
        url,
        client_id,
        client_secret,
        str(value_of("sasl.oauthbearer.scope") or options.get("scope", "")),
        bool(value_of("sasl.oauthbearer.header.urlencode")),
        _tls(options) if parts.scheme == "https" else None,
        _seconds(value_of("sasl.login.connect.timeout.ms")) or _TIMEOUT_S,
        _seconds(value_of("sasl.login.read.timeout.ms")) or _TIMEOUT_S,
        _seconds(value_of("sasl.login.retry.backoff.ms")),
        _seconds(value_of("sasl.login.retry.backoff.max.ms")),
        Renewal(
            _number(value_of("sasl.login.refresh.window.factor")),
            _number(value_of("sasl.login.refresh.window.jitter")),
            _number(value_of("sasl.login.refresh.min.period.seconds")),
            _number(value_of("sasl.login.refresh.buffer.seconds")),
        ),
    )


def read_answer(status: int, body: bytes, now_s: float) -> Fetched:
    """The token in an answer. Raises TokenRefused."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    fields = document if isinstance(document, dict) else {}
    if not 200 <= status < 300:
        error = fields.get("error")
        told = f" ({error})" if isinstance(error, str) and _ERROR.fullmatch(error) else ""
        raise TokenRefused(f"HTTP status {status}{told}", final=status in _FINAL)
    token = fields.get("access_token")
    if not isinstance(token, str) or not token.strip() or not token.isprintable():
        raise TokenRefused("the answer has no access_token", final=False)
    return Fetched(token.strip(), _expires_s(token.strip(), fields.get("expires_in"), now_s))


def _expires_s(token: str, expires_in: object, now_s: float) -> float | None:
    """The end of a token's life: by its claim exp, else by the answer's field expires_in."""
    try:
        _, claims, _ = parts_of(token)
        return time_of(claims, "exp")
    except InvalidToken:  # an opaque token
        return now_s + expires_in if isinstance(expires_in, int | float) and 0 < expires_in < TIME_MAX_S else None


def _tls(options: Mapping[str, str]) -> TlsSettings:
    try:
        return client_tls_settings({name: value for name, value in options.items() if name.startswith("ssl.")})
    except InvalidTls as error:
        raise InvalidEndpoint(f"ssl.* in sasl.jaas.config: {error}") from None


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _seconds(ms: Value) -> float:
    return 0.0 if ms is None else _number(ms) / 1000
