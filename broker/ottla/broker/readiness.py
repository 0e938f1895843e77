"""Whether a broker can serve clients, and the reason why not.

Ready means that the broker is registered, has recovered its logs and serves clients. It doesn't mean that replicas are
caught up or that the metadata store can be reached.
"""

from __future__ import annotations

from ottla.broker.making_way import MakingWay
from ottla.broker.membership import Membership
from ottla.metadata.own_store import OwnStore


class Readiness:
    """The readiness of one broker. The broker sets `recovered` and `serving` as its start proceeds."""

    def __init__(self, store: OwnStore, membership: Membership, making_way: MakingWay) -> None:
        self.recovered = False  # whether the logs have been opened and recovered
        self.serving = False
        self._store = store
        self._membership = membership
        self._making_way = making_way

    @property
    def missing(self) -> str:
        """The reason why clients can't be served, as a sentence; empty when they can."""
        if self._making_way.made:
            return "the metadata store answers other brokers, and not this one"
        if self.serving:
            return ""
        if self._store.refusal is not None:
            return str(self._store.refusal)
        if not self.recovered:
            return "the logs are being recovered"
        if not self._membership.registered:
            return "the broker isn't registered yet"
        return "the broker is starting to lead, or draining"
