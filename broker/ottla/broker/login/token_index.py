"""The delegation tokens of an image by their HMACs, and how many each owner has. Pure.

A request to renew or end a token names it by the HMAC. An HMAC is computed once for each token, when the first such
request comes after the token's creation; brokers that get no such requests compute none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ottla.metadata.image import Changed, Image
from ottla.protocol.errors import ErrorCode, KafkaError


class TokenIndex:
    """Follows the tokens of the metadata. `hmac_of` computes the HMAC of the token with an id."""

    def __init__(self, hmac_of: Callable[[str], bytes]) -> None:
        self._hmac_of = hmac_of
        self._owners: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._ids: dict[bytes, str] = {}
        self._hmacs: dict[str, bytes] = {}
        self._new: set[str] = set()  # ids whose HMACs aren't computed yet

    def changed(self, image: Image, changed: Changed) -> None:
        """Takes over changed tokens."""
        for token_id in changed.tokens:
            token = image.tokens.get(token_id)
            if token is None:
                self._remove(token_id)
            elif token_id not in self._owners:
                self._owners[token_id] = token.owner
                self._counts[token.owner] += 1
                self._new.add(token_id)

    def _remove(self, token_id: str) -> None:
        owner = self._owners.pop(token_id, None)
        if owner is None:
            return
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]
        self._new.discard(token_id)
        if (hmac := self._hmacs.pop(token_id, None)) is not None:
            del self._ids[hmac]

    def count(self, owner: str) -> int:
        """How many tokens an owner has, expired ones included that aren't deleted yet."""
        return self._counts[owner]

    def found(self, hmac: bytes) -> str:
        """The id of the token with this HMAC. Raises KafkaError for an unknown one."""
        for token_id in self._new:
            made = self._hmac_of(token_id)
            self._ids[made] = token_id
            self._hmacs[token_id] = made
        self._new.clear()
        try:
            return self._ids[hmac]
        except KeyError:
            raise KafkaError(ErrorCode.delegation_token_not_found) from None
