"""The authorizer: it tells handlers what the client of a request may do, and writes the audit log.

Kafka's `authorizer.class.name` chooses one of two. Without a name, `AllowEverything` allows every request. With the
name of Kafka's StandardAuthorizer, `AclAuthorizer` decides by the ACLs in the metadata (`authorization/rules.py`).

Decisions are kept by client (principal and address), operation and resource. They are dropped when an ACL changes, and
when a topic is deleted, because some are kept by the topic's id. The super users are those of the broker's start, as in
Kafka. A connection's principal may change while the connection is open, so it is read at each question.

The audit log is written by the logger `kafka.authorizer.logger`, in Kafka's words: a denial at INFO, and what is
allowed at DEBUG. If a right is only looked for (`quiet`), its denial isn't logged: a client that lists topics doesn't
ask for each of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from ottla.broker.authorization.addresses import as_java
from ottla.broker.authorization.rules import Decision, Rules
from ottla.broker.request import Asker, Request
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right, supported_operations
from ottla.settings.consistency import principals

if TYPE_CHECKING:
    from ottla.metadata.image import Changed, Image
    from ottla.settings.config import BrokerConfig

AUDIT_LOGGER = "kafka.authorizer.logger"
audit = logging.getLogger(AUDIT_LOGGER)

KEPT_MAX = 200_000  # decisions; when there are as many, all are dropped
NAME_LENGTH_MAX = 255  # decisions about longer names aren't kept: clients choose names, and memory is bounded
LOGGED_LENGTH_MAX = 1000

_NONE: Set[str | bytes] = frozenset()

Count = Callable[[], int]
"""How often a request refers to a resource, which the audit log says. It is called only if the log needs it."""


class Authorizer(Protocol):
    """The port by which dispatch and handlers ask what a client may do."""

    enforced: bool
    """Whether anything can be denied. Hot handlers ask nothing where it is False."""

    changes: int
    """How often the rights of clients have changed since the broker's start."""

    def allows(
        self,
        request: Asker,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        count: int = 1,
        *,
        quiet: bool = False,
    ) -> bool:
        """Whether the request's client may do the operation on the resource, whether that exists or not. The request
        refers `count` times to the resource."""

    def known_topics(self, request: Request, operation: AclOperation) -> Set[str | bytes]:
        """Topics on which the client may do the operation (READ or WRITE), by their names or ids, as far as that is
        known already, and isn't to be logged. A hot handler asks `allows_topic` about other topics only. The set holds
        for this turn of the event loop."""

    def allows_topic(
        self, request: Request, operation: AclOperation, topic: str | bytes, count: Count | None = None
    ) -> bool:
        """`allows` for a topic that is given by its name, or by the 16 bytes of its id. True for an id that no topic
        has: the caller finds that the topic doesn't exist."""

    def allows_on_some(self, request: Request, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the client may do the operation on at least one resource of the type; see `Rules.allows_on_some`."""

    def authorized_operations(self, request: Request, resource_type: ResourceType, name: str) -> int:
        """The operations that the client may do on the resource, as a bit set over the codes of AclOperation."""


class AllowEverything:
    """The authorizer of a broker without `authorizer.class.name`."""

    enforced = False
    changes = 0

    def changed(self, image: Image, changed: Changed) -> None:
        """Does nothing: ACLs have no effect."""

    def allows(
        self,
        request: Asker,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        count: int = 1,
        *,
        quiet: bool = False,
    ) -> bool:
        """True."""
        return True

    def known_topics(self, request: Request, operation: AclOperation) -> Set[str | bytes]:
        """No topic; hot handlers don't ask."""
        return _NONE

    def allows_topic(
        self, request: Request, operation: AclOperation, topic: str | bytes, count: Count | None = None
    ) -> bool:
        """True."""
        return True

    def allows_on_some(self, request: Request, operation: AclOperation, resource_type: ResourceType) -> bool:
        """True."""
        return True

    def authorized_operations(self, request: Request, resource_type: ResourceType, name: str) -> int:
        """All operations that the type has."""
        return sum(1 << operation for operation in supported_operations(resource_type))


class _Client:
    """The decisions for the clients of one principal at one address."""

    __slots__ = ("decisions", "host", "known", "on_some", "principal", "topics")

    def __init__(self, principal: str, host: str) -> None:
        self.principal = principal
        self.host = as_java(host)
        self.decisions: dict[tuple[AclOperation, ResourceType, str], Decision] = {}
        self.topics: dict[tuple[AclOperation, str | bytes], tuple[Decision, str]] = {}  # with the topic's name
        self.known: dict[AclOperation, set[str | bytes]] = {AclOperation.READ: set(), AclOperation.WRITE: set()}
        self.on_some: dict[tuple[AclOperation, ResourceType], bool] = {}


class AclAuthorizer:
    """Kafka's StandardAuthorizer. It learns the ACLs as a listener of the metadata's image."""

    enforced = True

    def __init__(self, rules: Rules, image: Callable[[], Image]) -> None:
        """`rules` have no bindings yet."""
        self.changes = 0
        self._rules = rules
        self._image = image
        self._clients: dict[tuple[str, str], _Client] = {}
        self._kept = 0

    def changed(self, image: Image, changed: Changed) -> None:
        """Takes over the ACLs of an image, and drops the decisions to which they don't lead any more."""
        for binding in changed.acls:
            if binding in image.acls:
                self._rules.index.add(binding)
            else:
                self._rules.index.remove(binding)
        self.changes += bool(changed.acls)
        if changed.acls or changed.tombstones:
            self._drop()

    def allows(
        self,
        request: Asker,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        count: int = 1,
        *,
        quiet: bool = False,
    ) -> bool:
        """As the rules decide."""
        client = self._client(request)
        decision = client.decisions.get((operation, resource_type, name))
        if decision is None:
            decision = self._rules.decide(client.principal, client.host, operation, resource_type, name)
            if len(name) <= NAME_LENGTH_MAX:
                self._keep()
                client.decisions[operation, resource_type, name] = decision
        if decision.allowed:
            if audit.isEnabledFor(logging.DEBUG):
                _log(logging.DEBUG, request, client, operation, resource_type, name, count, decision)
        elif not quiet:
            _log(logging.INFO, request, client, operation, resource_type, name, count, decision)
        return decision.allowed

    def known_topics(self, request: Request, operation: AclOperation) -> Set[str | bytes]:
        """The topics that `allows_topic` has allowed, unless the audit log has a line for each permission."""
        connection = request.connection
        client = self._clients.get((connection.principal, connection.client_host))
        return _NONE if client is None or audit.isEnabledFor(logging.DEBUG) else client.known[operation]

    def allows_topic(
        self, request: Request, operation: AclOperation, topic: str | bytes, count: Count | None = None
    ) -> bool:
        """As the rules decide."""
        client = self._client(request)
        kept = client.topics.get((operation, topic)) or self._decide_topic(client, operation, topic)
        if kept is None:
            return True
        decision, name = kept
        level = logging.DEBUG if decision.allowed else logging.INFO
        if audit.isEnabledFor(level):
            times = 1 if count is None else count()
            _log(level, request, client, operation, ResourceType.TOPIC, name, times, decision)
        if decision.allowed and len(name) <= NAME_LENGTH_MAX:
            client.known[operation].add(topic)
        return decision.allowed

    def _decide_topic(
        self, client: _Client, operation: AclOperation, topic: str | bytes
    ) -> tuple[Decision, str] | None:
        name = topic
        if not isinstance(name, str):
            found = self._image().topics_by_id.get(UUID(bytes=name))
            if found is None:
                return None
            name = found.name
        decision = self._rules.decide(client.principal, client.host, operation, ResourceType.TOPIC, name)
        if len(name) <= NAME_LENGTH_MAX:
            self._keep()
            client.topics[operation, topic] = decision, name
        return decision, name

    def allows_on_some(self, request: Request, operation: AclOperation, resource_type: ResourceType) -> bool:
        """As the rules decide."""
        client = self._client(request)
        allowed = client.on_some.get((operation, resource_type))
        if allowed is None:
            allowed = self._rules.allows_on_some(client.principal, client.host, operation, resource_type)
            client.on_some[operation, resource_type] = allowed
        return allowed

    def authorized_operations(self, request: Request, resource_type: ResourceType, name: str) -> int:
        """As the rules decide."""
        client = self._client(request)
        return self._rules.authorized_operations(client.principal, client.host, resource_type, name)

    def _client(self, request: Asker) -> _Client:
        identity = request.principal, request.client_host
        client = self._clients.get(identity)
        if client is None:
            self._keep()
            client = self._clients[identity] = _Client(*identity)
        return client

    def _keep(self) -> None:
        """Makes room for one more decision."""
        self._kept += 1
        if self._kept > KEPT_MAX:
            self._drop()

    def _drop(self) -> None:
        self._clients.clear()
        self._kept = 0


def authorizer_of(config: BrokerConfig, image: Callable[[], Image]) -> AclAuthorizer | AllowEverything:
    """The authorizer that the settings choose."""
    if not config.get_str("authorizer.class.name"):
        return AllowEverything()
    super_users = principals(config.get_str("super.users"))
    return AclAuthorizer(Rules(super_users, allow_if_none=config.get_bool("allow.everyone.if.no.acl.found")), image)


def allowed_names(
    authorizer: Authorizer,
    request: Request,
    operation: AclOperation,
    resource_type: ResourceType,
    names: Iterable[str],
    *,
    quiet: bool = False,
) -> Set[str]:
    """The names of resources on which the client may do the operation, of those that a request names. One line of the
    audit log covers all references of a request to a resource."""
    if not authorizer.enforced:
        return set(names)
    counts = Counter(names)
    return {
        name
        for name, count in counts.items()
        if authorizer.allows(request, operation, resource_type, name, count, quiet=quiet)
    }


def allows_on_cluster(authorizer: Authorizer, request: Request, *operations: AclOperation) -> bool:
    """Whether the client may do one of the operations on the cluster. Of a denial, the audit log names the last
    operation."""
    *others, last = operations
    return any(
        authorizer.allows(request, operation, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True) for operation in others
    ) or authorizer.allows(request, last, ResourceType.CLUSTER, CLUSTER_NAME)


def has_one_of(authorizer: Authorizer, request: Request, rights: Iterable[Right]) -> bool:
    """Whether the client has one of the rights, which are all rights on the cluster."""
    return allows_on_cluster(authorizer, request, *(right.operation for right in rights))


def _log(
    level: int,
    request: Asker,
    client: _Client,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    count: int,
    decision: Decision,
) -> None:
    audit.log(
        level,
        "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s "
        "with resourceRefCount = %d based on rule %s",
        _printable(client.principal),
        "Allowed" if decision.allowed else "Denied",
        operation.name,
        client.host,
        _words(resource_type.name),
        _printable(name),
        _printable(request.request_name),
        count,
        _printable(str(decision)),
    )


def _printable(text: str) -> str:
    """A text for a line of the log: without characters that would begin a new line, and shortened if it is longer than
    any name. Names of groups and of users come from clients."""
    if len(text) > LOGGED_LENGTH_MAX:
        text = f"{text[:LOGGED_LENGTH_MAX]}…"
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _words(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
