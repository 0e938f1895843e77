"""The settings of logins: which mechanisms each listener offers, and how the broker itself logs in. Pure.

A setting of a mechanism may have prefixes: `listener.name.<listener>.<mechanism>.` (both in lower case), then
`listener.name.<listener>.`, then none; the most special one counts. JAAS configurations are read with both prefixes
only, as in Kafka, which takes one without the mechanism for a mistake. Source: Kafka's SaslChannelBuilder, JaasContext
and KafkaConfig.validateValues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ottla.protocol.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from ottla.security.client_login import ClientLogin, client_login
from ottla.security.client_settings import URL_ENCODED
from ottla.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, InvalidJaas, parse_jaas
from ottla.security.plain import users_of
from ottla.security.scram import HASHES
from ottla.security.token_claims import Expected
from ottla.settings.config import BrokerConfig, InvalidConfiguration
from ottla.settings.listeners import PAGES, WITH_LOGIN
from ottla.settings.secret import Secret
from ottla.settings.setting import Value

_JAAS = "sasl.jaas.config"
_HANDLER = "sasl.server.callback.handler.class"
_OAUTH_CLASSES = "org.apache.kafka.common.security.oauthbearer."
_SECURED = f"{_OAUTH_CLASSES}OAuthBearerValidatorCallbackHandler"
_UNSECURED = f"{_OAUTH_CLASSES}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_SCHEMES = ("http:", "https:", "file:")


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where the keys come from that check tokens, and how often they are fetched; times are in seconds."""

    url: str
    refresh_s: float
    backoff_s: float
    backoff_max_s: float


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """How OAUTHBEARER checks tokens: by the keys of `source`, or, if that is None, unsecured tokens by `options`."""

    source: TokenSource | None
    expected: Expected
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ListenerLogins:
    """The mechanisms of one listener, in the order of the setting, with the longest session of each in ms (0: sessions
    have no end). `plain_users` has the digests of the passwords that PLAIN accepts; `oauth` is None where OAUTHBEARER
    isn't offered."""

    session_ms_max: Mapping[str, int]
    plain_users: Mapping[str, bytes] = field(repr=False)
    frame_bytes_max: int
    oauth: OAuthSettings | None = None


def logins_of(config: BrokerConfig) -> dict[str, ListenerLogins]:
    """The logins of each listener that asks for one, by the listener's name. Raises InvalidConfiguration."""
    logins, problems = usable_logins(config)
    if problems:
        raise InvalidConfiguration(problems)
    return logins


def usable_logins(config: BrokerConfig) -> tuple[dict[str, ListenerLogins], list[str]]:
    """(the logins of each listener that asks for one, sentences on the problems with the settings). A mechanism whose
    settings can't be used isn't among those of its listener: nobody can log in by it."""
    problems: list[str] = []
    logins = {
        endpoint.listener: _listener(config, endpoint.listener, problems)
        for endpoint in config.listeners.opened
        if endpoint.protocol in WITH_LOGIN
    }
    _check_own_login(config, problems)
    return logins, problems


def page_logins(config: BrokerConfig) -> tuple[ListenerLogins | None, list[str]]:
    """(the logins of the HTTP pages, or None if they ask for none; sentences on the problems with the settings), as
    `usable_logins`."""
    problems: list[str] = []
    if config.listeners.pages not in WITH_LOGIN:
        return None, problems
    logins = _listener(config, PAGES, problems)
    others = [name for name in logins.session_ms_max if name != PLAIN and name not in HASHES]
    if others:
        problems.append(
            f"listener.name.{PAGES.lower()}.sasl.enabled.mechanisms: the pages take users and passwords, so it must"
            f" name some of {', '.join((PLAIN, *HASHES))}, not {', '.join(others)}"
        )
        passwords = {name: ms for name, ms in logins.session_ms_max.items() if name not in others}
        logins = replace(logins, session_ms_max=passwords, oauth=None)
    return logins, problems


def check_logins(config: BrokerConfig) -> None:
    """Raises InvalidConfiguration for settings by which nobody could log in somewhere."""
    problems = login_problems(config)
    if problems:
        raise InvalidConfiguration(problems)


def login_problems(config: BrokerConfig) -> list[str]:
    """Sentences on the problems with the settings of all logins."""
    return [*usable_logins(config)[1], *page_logins(config)[1]]


def own_login(config: BrokerConfig) -> ClientLogin | None:
    """How the broker logs in at other brokers; None if the inter-broker listener asks for no login. Raises
    InvalidJaas."""
    listener = config.listeners.inter_broker
    if not _asks_for_login(config, listener):
        return None
    mechanism = _own_mechanism(config)

    def value_of(name: str) -> Value:
        # Kafka's brokers don't have this setting of its clients.
        return False if name == URL_ENCODED else of_mechanism(config, listener, mechanism, name)

    return client_login(mechanism, _jaas(config, listener, mechanism), value_of)


def of_mechanism(config: BrokerConfig, listener: str, mechanism: str, name: str) -> Value:
    """The value of a setting for a mechanism at a listener."""
    special = f"listener.name.{listener.lower()}.{mechanism.lower()}.{name}"
    return config[special] if special in config else config.for_listener(listener, name)


def _jaas(config: BrokerConfig, listener: str, mechanism: str) -> str:
    """The text of the JAAS configuration, whose name needs both prefixes; empty if there is none."""
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{_JAAS}"
    if name not in config:
        return ""
    given = config[name]
    return given.value if isinstance(given, Secret) else ""


def ignored_jaas(config: BrokerConfig) -> Iterator[str]:
    """A sentence on each JAAS configuration that has no effect, because it lacks the listener or the mechanism."""
    listeners = [endpoint.listener for endpoint in config.listeners.opened]
    if config.listeners.pages in WITH_LOGIN:
        listeners.append(PAGES)
    used = {
        f"listener.name.{listener.lower()}.{mechanism.lower()}.{_JAAS}"
        for listener in listeners
        for mechanism in MECHANISMS
    }
    given = {*config.static, *config.dynamic_broker, *config.dynamic_default}
    for name in sorted(name for name in given if name.endswith(_JAAS) and name not in used):
        yield (
            f"{name} has no effect: its name must be listener.name.<listener>.<mechanism>.{_JAAS}, in lower case, for a"
            " listener that is opened and a mechanism that Ottla has"
        )


def _listener(config: BrokerConfig, listener: str, problems: list[str]) -> ListenerLogins:
    enabled = config.for_listener(listener, "sasl.enabled.mechanisms")
    assert isinstance(enabled, tuple)
    unknown = [name for name in enabled if name not in MECHANISMS]
    if unknown or not enabled:
        wrong = f"Ottla doesn't have {', '.join(unknown)}" if unknown else "no mechanism is named"
        problems.append(
            f"sasl.enabled.mechanisms={','.join(enabled)} for the listener {listener}: {wrong}; name some of"
            f" {', '.join(MECHANISMS)}"
        )
    users: Mapping[str, bytes] = {}
    oauth = None
    session_ms_max: dict[str, int] = {}
    for mechanism in enabled:
        wrong_here: list[str] = []
        if mechanism == PLAIN:
            users = _plain_users(config, listener, wrong_here)
        elif mechanism == OAUTHBEARER:
            oauth = _oauth(config, listener, wrong_here)
        handler = of_mechanism(config, listener, mechanism, _HANDLER)
        if handler is not None and (mechanism != OAUTHBEARER or handler not in (_SECURED, _UNSECURED)):
            wrong_here.append(
                f"{_HANDLER}={handler} for {mechanism} at the listener {listener}: it names Java code, which has no"
                f" place in a Python process; for OAUTHBEARER, {_SECURED} is known"
            )
        problems += wrong_here
        if not wrong_here and mechanism not in unknown:
            longest = of_mechanism(config, listener, mechanism, "connections.max.reauth.ms")
            assert isinstance(longest, int)
            session_ms_max[mechanism] = longest
    frame_bytes_max = config.for_listener(listener, "sasl.server.max.receive.size")
    assert isinstance(frame_bytes_max, int)
    return ListenerLogins(session_ms_max, users, frame_bytes_max, oauth)


def _oauth(config: BrokerConfig, listener: str, problems: list[str]) -> OAuthSettings:
    def text(name: str) -> str:
        return str(of_mechanism(config, listener, OAUTHBEARER, name) or "")

    def number(name: str) -> int:
        value = of_mechanism(config, listener, OAUTHBEARER, name)
        assert isinstance(value, int)
        return value

    audiences = of_mechanism(config, listener, OAUTHBEARER, "sasl.oauthbearer.expected.audience")
    assert isinstance(audiences, tuple)
    expected = Expected(
        audiences,
        text("sasl.oauthbearer.expected.issuer"),
        number("sasl.oauthbearer.clock.skew.seconds"),
        text("sasl.oauthbearer.sub.claim.name"),
        text("sasl.oauthbearer.scope.claim.name"),
    )
    options = _oauth_options(
        f"listener.name.{listener.lower()}.oauthbearer.{_JAAS}", _jaas(config, listener, OAUTHBEARER), problems
    )
    url = text("sasl.oauthbearer.jwks.endpoint.url")
    if text(_HANDLER) != _SECURED:
        if url:
            problems.append(
                f"sasl.oauthbearer.jwks.endpoint.url={url}: has no effect for the listener {listener}, which would"
                f" accept unsecured tokens; set listener.name.{listener.lower()}.oauthbearer.{_HANDLER}={_SECURED}"
            )
        return OAuthSettings(None, expected, options)
    if not url.startswith(_SCHEMES):
        problems.append(f"sasl.oauthbearer.jwks.endpoint.url={url}: must begin with one of {', '.join(_SCHEMES)}")
    source = TokenSource(
        url,
        number("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
        number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms") / 1000,
        number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms") / 1000,
    )
    return OAuthSettings(source, expected, options)


def _oauth_options(name: str, jaas: str, problems: list[str]) -> Mapping[str, str]:
    try:
        login = parse_jaas(jaas)
        if login.module != OAUTHBEARER_MODULE:
            problems.append(f"{name}: OAUTHBEARER needs {OAUTHBEARER_MODULE}")
        int(login.options.get("unsecuredValidatorAllowableClockSkewMs", "0"))
    except InvalidJaas as error:
        problems.append(f"{name}: {error}")
        return {}
    except ValueError:
        problems.append(f"{name}: unsecuredValidatorAllowableClockSkewMs isn't a whole number")
        return {}
    return login.options


def _plain_users(config: BrokerConfig, listener: str, problems: list[str]) -> Mapping[str, bytes]:
    name = f"listener.name.{listener.lower()}.plain.{_JAAS}"
    text = _jaas(config, listener, PLAIN)
    if not text:
        problems.append(f"{name}: is needed, because the listener {listener} offers PLAIN")
        return {}
    try:
        login = parse_jaas(text)
    except InvalidJaas as error:
        problems.append(f"{name}: {error}")
        return {}
    if login.module != PLAIN_MODULE:
        problems.append(f"{name}: has the login module {login.module}, and PLAIN needs {PLAIN_MODULE}")
    return users_of(login.options)


def _check_own_login(config: BrokerConfig, problems: list[str]) -> None:
    listener = config.listeners.inter_broker
    if not _asks_for_login(config, listener):
        return
    mechanism = _own_mechanism(config)
    opened = {endpoint.listener for endpoint in config.listeners.opened}
    enabled = config.for_listener(listener, "sasl.enabled.mechanisms")
    assert isinstance(enabled, tuple)
    if listener in opened and mechanism not in enabled:
        problems.append(
            f"sasl.mechanism.inter.broker.protocol={mechanism}: isn't among sasl.enabled.mechanisms of the inter-broker"
            f" listener {listener}"
        )
        return
    try:
        own_login(config)
    except InvalidJaas as error:
        problems.append(
            f"listener.name.{listener.lower()}.{mechanism.lower()}.{_JAAS}: {error} (brokers log in at one another by"
            " it)"
        )


def _own_mechanism(config: BrokerConfig) -> str:
    return str(config.for_listener(config.listeners.inter_broker, "sasl.mechanism.inter.broker.protocol"))


def _asks_for_login(config: BrokerConfig, listener: str) -> bool:
    return config.listeners.protocol_of(listener) in WITH_LOGIN
