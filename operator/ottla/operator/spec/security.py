"""The fields about security in a Cluster's spec: authorities, the authentication of listeners, rights. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from ottla.operator.objects import Object
from ottla.operator.spec.spec_error import SpecError

AUTHORIZER, SUPER_USERS = "authorizer.class.name", "super.users"
_VALIDITY_DAYS, _RENEWAL_DAYS = 365, 30


class Authentication(Enum):
    """How a listener's clients prove who they are. The values are those of the spec."""

    NONE = ""
    TLS = "tls"
    SCRAM = "scram-sha-512"


class Links(IntEnum):
    """The links between brokers, in the order in which a cluster comes to encrypted ones (`plan/links.py`): which of
    the two inter-broker listeners are open, and by which one brokers connect to each other."""

    PLAIN = 0  # the plain listener alone
    OPENED = 1  # both are open, and brokers connect by the plain one
    SWITCHED = 2  # both are open, and brokers connect by the encrypted one
    ENCRYPTED = 3  # the encrypted listener alone

    @property
    def plain_open(self) -> bool:
        """Whether the plain listener is open."""
        return self is not Links.ENCRYPTED

    @property
    def encrypted_open(self) -> bool:
        """Whether the encrypted listener is open."""
        return self is not Links.PLAIN

    @property
    def by_encrypted(self) -> bool:
        """Whether brokers connect to each other by the encrypted listener."""
        return self >= Links.SWITCHED


@dataclass(frozen=True)
class Authority:
    """A certificate authority of a Cluster. `generated`: the operator makes and renews it; otherwise its Secret comes
    from elsewhere."""

    generated: bool = True
    validity_days: int = _VALIDITY_DAYS
    renewal_days: int = _RENEWAL_DAYS


def parse_authority(given: Object, field: str) -> Authority:
    """Reads `spec.clusterCa` or `spec.clientsCa`. Raises SpecError."""
    found = Authority(
        given.get("generateCertificateAuthority", True),
        given.get("validityDays") or _VALIDITY_DAYS,
        given.get("renewalDays") or _RENEWAL_DAYS,
    )
    if found.renewal_days >= found.validity_days:
        raise SpecError(
            f"{field}: renewalDays ({found.renewal_days}) has to be below validityDays ({found.validity_days}), "
            "otherwise each new authority would be renewed at once"
        )
    return found


def parse_authentication(listener: Object) -> Authentication:
    """Reads a listener's `authentication`. Raises SpecError."""
    found = Authentication((listener.get("authentication") or {}).get("type") or "")
    if found is Authentication.TLS and not listener.get("tls"):
        raise SpecError(
            f"listeners: {listener['name']}: authentication by certificates (type tls) needs tls: true, because "
            "certificates are shown when an encrypted connection begins"
        )
    if listener.get("certificate") and not listener.get("tls"):
        raise SpecError(f"listeners: {listener['name']}: a certificate needs tls: true")
    return found


def parse_super_users(spec: Object, static_config: Mapping[str, str]) -> tuple[str, ...] | None:
    """The principals in `spec.authorization.superUsers`; None where every client may do everything. Raises
    SpecError."""
    authorization = spec.get("authorization")
    if not authorization:
        return None
    if spec.get("internalTls") is False:
        raise SpecError(
            "authorization: it needs internalTls: true, because without certificates brokers have no names, and "
            "whoever reaches the brokers' own listener could do everything there"
        )
    if given := sorted({AUTHORIZER, SUPER_USERS} & static_config.keys()):
        raise SpecError(f"config: the operator sets {given[0]} because of spec.authorization; take it out")
    return _principals(authorization.get("superUsers") or ())


def _principals(given: Iterable[str]) -> tuple[str, ...]:
    for principal in given:
        if ":" not in principal or ";" in principal or "\n" in principal:
            raise SpecError(
                f"authorization.superUsers: {principal!r} isn't a principal: it has its type before a colon, as in "
                "User:admin or User:CN=admin, and no semicolon"
            )
    return tuple(given)
