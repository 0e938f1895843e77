"""Gives users what they log in with: keeps their Secrets, and tells the brokers their passwords.

The operator may not list or watch Secrets, because that would show it other Secrets. So it reads the Secret of each
User by name: when the User, or what its Secret is made of, has changed, and else now and then (`LOOK_AGAIN_S`), at most
`LOOKS_MAX` in one sweep. With a few hundred Users a Secret that somebody has deleted or changed is noticed in two
minutes, with 5,000 in less than an hour.

Passwords are set in this order: the Secret gets the password, the brokers get it, the Secret is marked. After an
interruption at any point the next sweep goes on from what stands in the Secret.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ottla.operator import kafka_users
from ottla.operator.certificates import Secret, decoded, encoded
from ottla.operator.kafka import KafkaAdmin, said, slices
from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, Ref, annotation, is_owned_by_former, timestamp
from ottla.operator.plan.client_files import CERTIFICATE, KEY, TRUST, Access, client_files
from ottla.operator.plan.names import checksum
from ottla.operator.plan.user import KafkaUsers
from ottla.operator.plan.user_secret import (
    BOOTSTRAP,
    IN_FORCE,
    JAAS,
    PASSWORD,
    USERNAME,
    in_force_mark,
    is_somebody_elses,
    password_problem,
    password_to_keep,
    secret_patch,
    user_secret,
    wants_renewal,
)
from ottla.operator.plan.user_status import Outcome
from ottla.operator.queue import Retry, why
from ottla.operator.records import Keeper
from ottla.operator.reports import News
from ottla.operator.spec.user import Login, UserResource
from ottla.operator.spec.user_rules import ClientListener, UserRules
from ottla.operator.user_certificates import AuthorityUnusable, certified

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 110.0  # a little less than the pause between two sweeps
LOOKS_MAX = 200
AT_A_TIME = 16
_SIGNS = {"tls.crt", "tls.key"}  # the parts of an authority that may sign


class Authorities(NamedTuple):
    """The Cluster's Secrets that users' Secrets are made of: the authority that signs users' certificates, empty where
    there is none yet; and the certificates that clients have to trust, by the names of their Secrets."""

    clients: Secret
    trust: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class _Looked:
    """The last look at a user's Secret: what it was made of, when it was, and its outcome."""

    made_of: str
    at: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Unsent:
    """A password that stands in a user's Secret, and that the brokers don't have yet."""

    resource: UserResource
    name: str
    password: str = field(repr=False)
    mark: str
    secret: Object = field(repr=False)  # the Secret as it was written
    outcome: Outcome  # the user's outcome once the brokers have the password


@dataclass(slots=True)
class Granted:
    """The result of one sweep: the outcome of each user, and the Events about what was made."""

    outcomes: dict[UserResource, Outcome] = field(default_factory=dict)
    news: list[News] = field(default_factory=list)
    left: bool = False  # more Secrets than one sweep looks at have to be looked at


class _Missing(Exception):
    """A user's Secret can't be made yet."""

    def __init__(self, reason: str, message: str, *, expected: bool = False) -> None:
        super().__init__(message)
        self.outcome = Outcome(False, reason, message, expected=expected)


class UserAccess:
    """Looks after the Secrets and passwords of all users."""

    def __init__(self, kube: Keeper, clock: Callable[[], float]) -> None:
        """`clock`: seconds of a monotonic clock."""
        self._kube = kube
        self._clock = clock
        self._looked: dict[Ref, dict[str, _Looked]] = {}  # by Cluster and the User's uid

    def forget(self, cluster: Ref) -> None:
        """Drops what is known about the Secrets of a Cluster's Users."""
        self._looked.pop(cluster, None)

    async def authorities(self, rules: UserRules) -> Authorities:
        """Reads the Cluster's Secrets. Raises KubeError."""
        clients = decoded(await self._of_cluster(rules, rules.clients_authority))
        trust = {}
        for name in sorted({rules.trust_of(listener) for listener in rules.listeners if listener.tls}):
            if (found := await self._of_cluster(rules, name)) is not None:
                trust[name] = decoded(found).get(TRUST, b"")
        return Authorities(clients, trust)

    async def _of_cluster(self, rules: UserRules, name: str) -> Object | None:
        """A Secret that the Cluster has made or names. None if it isn't there, or is that of a deleted Cluster of the
        same name, so that Kubernetes is about to delete it."""
        found = await self._kube.get("Secret", rules.cluster.namespace, name)
        if found is not None and is_owned_by_former(found, "Cluster", rules.cluster.name, rules.uid):
            return None
        return found

    async def grant(
        self,
        users: Mapping[UserResource, str],
        rules: UserRules,
        kafka: KafkaUsers,
        admin: KafkaAdmin,
        looks_max: int,
        now: datetime,
    ) -> Granted:
        """Brings the Secrets and passwords of users up to date. `users`: the User of each name in Kafka; at most
        `looks_max` of those that changed are looked at. Raises Unreachable, KubeError."""
        granted = Granted()
        authorities = await self.authorities(rules) if users else Authorities({}, {})
        made_of = {user: self._made_of(user, name, rules, kafka, authorities) for user, name in users.items()}
        before = self._looked.get(rules.cluster, {})
        known = self._looked[rules.cluster] = {user.uid: before[user.uid] for user in users if user.uid in before}
        due = self._due(made_of, known)
        granted.left = len(due) > looks_max
        unsent: list[_Unsent] = []

        async def look(user: UserResource) -> None:
            visit = _Visit(self._kube, user, users[user], rules, kafka, authorities, now)
            outcome = await visit.outcome()
            granted.outcomes[user] = outcome
            granted.news += visit.news
            unsent.extend(visit.unsent)
            if visit.unsent:  # the next sweep sees whether the brokers have the password
                known.pop(user.uid, None)
            else:
                known[user.uid] = _Looked(made_of[user], self._clock(), outcome)

        for some in slices(due[:looks_max], AT_A_TIME):
            await asyncio.gather(*map(look, some))
        await self._send(unsent, admin, granted)
        for user in users:
            looked = known.get(user.uid)
            if user not in granted.outcomes and looked is not None:
                granted.outcomes[user] = looked.outcome
        return granted

    def _due(self, made_of: Mapping[UserResource, str], known: Mapping[str, _Looked]) -> list[UserResource]:
        """The users to look at: those about whom something has changed or isn't well, and some of the others."""
        changed, others, before = [], [], self._clock() - LOOK_AGAIN_S
        for user, text in made_of.items():
            looked = known.get(user.uid)
            if looked is None or looked.made_of != text or looked.outcome.ready is not True:
                changed.append(user)
            elif looked.at < before:
                others.append((looked.at, user.uid, user))
        return [*changed, *(user for _, _, user in sorted(others, key=lambda each: each[:2])[:LOOKS_MAX])]

    @staticmethod
    def _made_of(user: UserResource, name: str, rules: UserRules, kafka: KafkaUsers, authorities: Authorities) -> str:
        """A digest of what a user's Secret is made of, apart from the Secret itself."""
        listener = rules.listener_for(user.login)
        parts = (
            rules.uid,
            name,
            user.generation,
            user.renew,
            listener and (listener.bootstrap, listener.protocol, authorities.trust.get(rules.trust_of(listener))),
            authorities.clients.get("tls.crt") if user.login is Login.TLS else None,
            name in kafka.passwords if user.login is Login.SCRAM else None,
        )
        return checksum(repr(parts))

    async def _send(self, unsent: Sequence[_Unsent], admin: KafkaAdmin, granted: Granted) -> None:
        """Tells the brokers passwords, and marks the Secrets of those that they have taken."""
        salted = [
            await asyncio.to_thread(
                kafka_users.new_password, each.name, each.password, secrets.token_bytes(kafka_users.SALT_BYTES)
            )
            for each in unsent
        ]
        refusals = await kafka_users.set_passwords(admin, salted)

        async def mark(each: _Unsent) -> None:
            refused = refusals[each.name]
            if refused is not None:
                message = f"the brokers refuse the password: {said(refused)}"
                granted.outcomes[each.resource] = Outcome(False, "PasswordRefused", message)
                return
            granted.news.append(News(each.resource, "PasswordSet", f"user '{each.name}' has another password"))
            meta = each.secret["metadata"]
            seen = {name: meta[name] for name in ("uid", "resourceVersion")}
            patch = {"metadata": {**seen, "annotations": {IN_FORCE: each.mark}}}
            try:
                await self._kube.merge("Secret", *each.resource.ref, patch)
            except KubeError as error:  # the password is sent once more
                logger.info("Secret %s can't be marked: %s", each.resource.ref, error)

        for some in slices(unsent, AT_A_TIME):
            await asyncio.gather(*map(mark, some))


@dataclass(slots=True)
class _Visit:
    """One look at one user's Secret."""

    kube: Keeper
    user: UserResource
    name: str
    rules: UserRules
    kafka: KafkaUsers
    authorities: Authorities
    now: datetime
    news: list[News] = field(default_factory=list)
    unsent: list[_Unsent] = field(default_factory=list)

    async def outcome(self) -> Outcome:
        """Makes the Secret what it has to be. Any error stops only this user."""
        makes: dict[Login, Callable[[ClientListener, Object | None], Awaitable[Outcome]]] = {
            Login.TLS: self._certificate,
            Login.SCRAM: self._password,
        }
        try:
            found = await self._found()
            make = makes.get(self.user.login)
            return await self._nothing(found) if make is None else await make(self._listener(), found)
        except _Missing as error:
            return error.outcome
        except AuthorityUnusable as error:
            return Outcome(False, "AuthorityUnusable", str(error))
        except Retry as error:
            return Outcome(False, "SecretRefused", f"Kubernetes refuses the Secret: {error}")
        except Exception as error:
            logger.warning("user %s: its Secret failed", self.user.ref, exc_info=error)
            message = f"the operator failed unexpectedly ({type(error).__name__}): {why(error)}"
            return Outcome(False, "Unexpected", message)

    async def _found(self) -> Object | None:
        """The Secret as it is. Raises _Missing if it isn't the User's."""
        found = await self.kube.get("Secret", *self.user.ref)
        if found is None:
            return None
        if is_somebody_elses(found, self.user):
            if not self.user.login.has_secret:
                return None
            raise _Missing(
                "SecretNotOwned",
                f"the Secret {self.user.ref.name} exists already and doesn't belong to this User: rename it, delete "
                "it, or give the User another name",
            )
        if is_owned_by_former(found, "User", self.user.ref.name, self.user.uid):
            message = (
                f"the Secret {self.user.ref.name} belongs to a deleted User of this name: Kubernetes deletes it soon"
            )
            raise _Missing("SecretGoes", message, expected=True)
        return found

    def _listener(self) -> ClientListener:
        """The listener at which the user logs in. Raises _Missing."""
        listener, cluster, login = self.rules.listener_for(self.user.login), self.rules.cluster, self.user.login.value
        if listener is None:
            raise _Missing(
                "NoListener",
                f"no listener of the Cluster {cluster} has authentication {login}: add one to its spec.listeners, or "
                "choose another authentication",
            )
        if not listener.bootstrap:
            message = f"the listener {listener.name} of the Cluster {cluster} has no address yet"
            raise _Missing("NoAddress", message, expected=True)
        trust = self.rules.trust_of(listener)
        if listener.tls and trust not in self.authorities.trust:
            message = f"the Secret {trust} of the Cluster {cluster}, which clients trust, isn't there yet"
            raise _Missing("NoAuthority", message, expected=True)
        return listener

    async def _certificate(self, listener: ClientListener, found: Object | None) -> Outcome:
        if not self.authorities.clients.keys() >= _SIGNS:
            message = (
                f"the Secret {self.rules.clients_authority} of the Cluster {self.rules.cluster} has no authority yet "
                "that signs users' certificates"
            )
            raise _Missing("NoAuthority", message, expected=True)
        made = await asyncio.to_thread(
            certified,
            self.user,
            self.authorities.clients,
            decoded(found),
            self.now,
            renew=wants_renewal(found, self.user),
        )
        pair = (made.parts[CERTIFICATE].decode(), made.parts[KEY].decode())
        access = Access(listener.bootstrap, listener.protocol, self.name, self._trust(listener), "", *pair)
        await self._write(found, self._data(access) | made.parts, "")
        if made.is_new:
            message = f"user '{self.name}' has a certificate until {timestamp(made.until)}"
            self.news.append(News(self.user, "CertificateIssued", message))
        return Outcome(True, "Ready", secret=self.user.ref.name, expires=made.until)

    async def _password(self, listener: ClientListener, found: Object | None) -> Outcome:
        given = await self._given()
        password = password_to_keep(
            decoded(found), given=given, renew=wants_renewal(found, self.user), random=secrets.token_urlsafe(24)
        )
        mark = in_force_mark(password, self.name, self.rules.uid, self.user.renew)
        is_in_force = found is not None and annotation(found, IN_FORCE) == mark and self.name in self.kafka.passwords
        access = Access(listener.bootstrap, listener.protocol, self.name, self._trust(listener), password)
        data = self._data(access) | {PASSWORD: password.encode(), JAAS: access.jaas.encode()}
        secret = await self._write(found, data, mark if is_in_force else "")
        outcome = Outcome(True, "Ready", secret=self.user.ref.name)
        if not is_in_force:
            self.unsent.append(_Unsent(self.user, self.name, password, mark, secret, outcome))
        return outcome

    async def _nothing(self, found: Object | None) -> Outcome:
        """The user logs in with what somebody else has made: an earlier Secret of the User is emptied."""
        if found is not None and found.get("data"):
            await self._write(found, {}, "")
        return Outcome(True, "Ready")

    async def _given(self) -> str | None:
        """The password in the Secret that the User names; None if it names none. Raises _Missing."""
        source = self.user.password
        if source is None:
            return None
        where = f"the Secret {source.secret} in the namespace {self.user.ref.namespace}"
        found = decoded(await self.kube.get("Secret", self.user.ref.namespace, source.secret))
        if source.key not in found:
            message = f"{where} has no key {source.key}, from which the password comes: create the Secret with this key"
            raise _Missing("PasswordMissing", message)
        try:
            password = found[source.key].decode()
        except UnicodeDecodeError:
            raise _Missing("PasswordInvalid", f"{source.key} in {where} isn't UTF-8: write another password") from None
        if problem := password_problem(password):
            message = f"the password in {source.key} of {where} {problem}: write another one (printf adds no line feed)"
            raise _Missing("PasswordInvalid", message)
        return password

    def _trust(self, listener: ClientListener) -> str:
        """The certificates that clients have to trust. Empty without TLS, and if the Secret of a listener's own
        certificate has none, as for one that a public authority has signed: then clients trust what their machine
        trusts."""
        return self.authorities.trust[self.rules.trust_of(listener)].decode() if listener.tls else ""

    def _data(self, access: Access) -> Secret:
        """The parts of the Secret that are the same for certificates and passwords."""
        texts = client_files(access) | {USERNAME: access.name, BOOTSTRAP: access.bootstrap}
        if access.trust:
            texts[TRUST] = access.trust
        return {name: text.encode() for name, text in texts.items()}

    async def _write(self, found: Object | None, data: Secret, in_force: str) -> Object:
        """Writes the Secret if it differs, and returns it. Raises KubeError."""
        wanted = user_secret(self.user, encoded(data), in_force)
        if found is None:
            return await self.kube.create(wanted)
        patch = secret_patch(found, wanted)
        return found if patch is None else await self.kube.merge("Secret", *self.user.ref, patch)
