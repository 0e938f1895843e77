"""Changes of users' SCRAM credentials, as a request of AlterUserScramCredentials asks for them. Pure.

A request names a user once. Of two changes of one user none is made, unless the first one is refused by itself: then
the user gets the answer to the first one. Source: Apache Kafka 4.3's ScramControlManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from ottla.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, credential_of

MECHANISM_OF = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""The mechanisms by Kafka's numbers (ScramMechanism)."""

TWICE = "A user credential cannot be altered twice in the same request"


@dataclass(frozen=True, slots=True)
class Deletion:
    """A request to delete a credential; the mechanism is one of Kafka's numbers."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class Upsertion:
    """A request to set a credential. The client has salted the password (PBKDF2)."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Change:
    """A valid change of a user's credential for one mechanism: the new one, or None for its deletion."""

    user: str
    mechanism: str
    credential: ScramCredential | None


def changes_of(
    deletions: Iterable[Deletion], upsertions: Iterable[Upsertion], known: Collection[tuple[str, str]]
) -> tuple[list[Change], dict[str, KafkaError]]:
    """(the changes to make, the errors by user). `known` has the (user, mechanism) pairs that have credentials."""
    changes: dict[str, Change] = {}
    errors: dict[str, KafkaError] = {}
    requests: list[Deletion | Upsertion] = [*deletions, *upsertions]
    for request in requests:
        if request.user in errors:
            continue
        if changes.pop(request.user, None) is not None:
            errors[request.user] = KafkaError(ErrorCode.duplicate_resource, TWICE)
            continue
        try:
            changes[request.user] = _change(request, known)
        except KafkaError as error:
            errors[request.user] = error
    return list(changes.values()), errors


def _change(request: Deletion | Upsertion, known: Collection[tuple[str, str]]) -> Change:
    if not request.user:
        raise KafkaError(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = MECHANISM_OF.get(request.mechanism)
    if mechanism is None:
        raise KafkaError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(request, Deletion):
        if (request.user, mechanism) not in known:
            message = "Attempt to delete a user credential that does not exist"
            raise KafkaError(ErrorCode.resource_not_found, message)
        return Change(request.user, mechanism, None)
    if request.iterations < ITERATIONS_MIN:
        raise KafkaError(ErrorCode.unacceptable_credential, "Too few iterations")
    if request.iterations > ITERATIONS_MAX:
        raise KafkaError(ErrorCode.unacceptable_credential, "Too many iterations")
    credential = credential_of(mechanism, request.salted_password, request.salt, request.iterations)
    return Change(request.user, mechanism, credential)
