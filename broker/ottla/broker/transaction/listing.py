"""Which transactional ids ListTransactions shows. Pure.

Source: Kafka's TransactionStateManager.listTransactionStates; KIP-664, KIP-994 (durations), KIP-1152 (patterns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from .metadata import Transaction
from .states import BY_LABEL, State


@dataclass(frozen=True, slots=True)
class Wish:
    """The filters of a ListTransactions request. An empty set admits all ids, and so does a negative `longer_than_ms`.
    With `nothing` no id is admitted. `matches` tells whether a transactional id matches the request's regular
    expression; None if the request has no expression."""

    states: Set[State] = frozenset()
    nothing: bool = False
    producer_ids: Set[int] = frozenset()
    longer_than_ms: int = -1
    matches: Callable[[str], bool] | None = None

    def admits(self, transactional_id: str, transaction: Transaction, now_ms: int) -> bool:
        """Whether the id passes all filters."""
        return (
            not self.nothing
            and (not self.producer_ids or transaction.producer_id in self.producer_ids)
            and (not self.states or transaction.state in self.states)
            and (self.longer_than_ms < 0 or now_ms - transaction.start_ms > self.longer_than_ms)
            and (self.matches is None or self.matches(transactional_id))
        )


def states_named(names: Iterable[str]) -> tuple[frozenset[State], list[str]]:
    """The states with these names, and the names that no state has."""
    names = list(names)
    return frozenset(BY_LABEL[name] for name in names if name in BY_LABEL), [n for n in names if n not in BY_LABEL]
