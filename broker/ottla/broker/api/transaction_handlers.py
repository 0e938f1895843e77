"""The handlers of transactions' APIs, which `registry.py` doesn't route to yet.

An API that has a route is advertised to clients. These APIs need parts that no broker has yet: the
`TransactionService`, and implementations of `MarkerLog` and `Confirmations`. As soon as a broker has these parts, each
handler becomes a route, and takes the place of the route that has its key already.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from ottla.broker import ports
from ottla.broker.request import Request

from . import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from .declaration import Api, Response
from .registry import Ports


class TransactionPorts(Ports, ports.WithConfirmations, ports.WithMarkerLog, ports.WithTransactions, Protocol):
    """The ports of all handlers together, when these have routes."""


Handler = Callable[[TransactionPorts, Request, Any], Coroutine[Any, Any, Response]]

HANDLERS: Mapping[int, tuple[Api, Handler]] = {
    api.key: (api, handler)
    for api, handler in (
        (find_coordinator.API, find_coordinator.handle_transactional),
        (init_producer_id.API, init_producer_id.handle_transactional),
        (add_partitions_to_txn.API, add_partitions_to_txn.handle),
        (add_offsets_to_txn.API, add_offsets_to_txn.handle),
        (end_txn.API, end_txn.handle),
        (write_txn_markers.API, write_txn_markers.handle),
        (txn_offset_commit.API, txn_offset_commit.handle),
        (describe_transactions.API, describe_transactions.handle),
        (list_transactions.API, list_transactions.handle),
    )
}
"""The handlers of transactions' APIs, by the APIs' keys."""
