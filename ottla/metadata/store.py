"""The port to the metadata store: read, watch from a revision, guarded transactions, leases.

Pure: this module has only the port and its values; `embedded.py` implements the port for the processes of one machine,
`etcd.py` for several machines. `tests/contract` is the suite that each implementation must pass.

Every store counts revisions: each transaction that changes something makes the next revision, and all its changes have
that number. A reader takes a snapshot at one revision and watches from there, so that all readers see the same sequence
of states. All writes go through `transact`, which compares the guards and applies the writes atomically (`revoke`, and
the end of a lease, only delete the lease's keys). Keys are relative to the cluster (`keys.py`); values are opaque bytes
(`model/`).

Each failure has its own type, because each requires another reaction:

- `Rejected`: a guard failed; nothing was written. Look at the present entries of the failed keys and decide anew.
- `StoreUnavailable`: nothing was written; the store can't be reached. Wait.
- `AccessRefused`: the store answers, but refuses this process's credentials. Tell a person.
- `UnknownOutcome`: the writes may or may not have been applied. Read before doing anything that depends on them.
- `Compacted`: the watch can't continue from its last revision. Take a new snapshot and compare.
- `ForeignStore`: this isn't the store that the process has known. Do nothing more with it (`own_store.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

LeaseId = NewType("LeaseId", int)
NO_LEASE = LeaseId(0)

# A transaction has at most this many guards and as many writes: etcd's default limit is 128. Beside its caller's
# guards, a transaction may have those of the lineage (`own_store.py`).
TRANSACTION_OPERATIONS_MAX = 120
LINEAGE_GUARDS_MAX = 3
TRANSACTION_SIZE_BYTES_MAX = 1_000_000


class StoreUnavailable(Exception):
    """The store didn't carry out the call, and won't carry it out later."""


class AccessRefused(StoreUnavailable):
    """The store answers, but refuses this process: another user, password or right is needed."""


class UnknownOutcome(Exception):
    """A write was sent, and no answer came. The write may have been applied already, or may still be applied."""


class Compacted(Exception):
    """The history that a watch needs is gone; the reader must start from a new snapshot."""


class ForeignStore(StoreUnavailable):
    """The store isn't the one to which the process or its data belongs, or isn't whole. The message says why."""


class StoreRestored(ForeignStore):
    """The store is a later generation of the process's own cluster: it was restored from a backup."""


class LeaseExpired(Exception):
    """The lease has ended or never existed. The keys that were attached to it are deleted."""


class Entry(NamedTuple):
    """A key's value, with the revisions that created and last changed it."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    lease: LeaseId = NO_LEASE


class Change(NamedTuple):
    """The change that one revision made to one key: `entry` is the key's new entry, None if the key was deleted."""

    key: str
    entry: Entry | None


class Revision(NamedTuple):
    """All changes of one transaction (or of one lease's end), in the order of its writes."""

    revision: int
    changes: tuple[Change, ...]


class Snapshot(NamedTuple):
    """All entries under a prefix at one revision, ordered by key."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of a transaction: the key was last changed at `mod_revision` (0: the key doesn't exist).

    With `lease`, the key must also be attached to that lease.
    """

    key: str
    mod_revision: int
    lease: LeaseId | None = None

    def holds(self, entry: Entry | None) -> bool:
        """Whether the key's present `entry` (None: absent) satisfies the condition."""
        if entry is None:
            return self.mod_revision == 0 and self.lease is None
        return entry.mod_revision == self.mod_revision and (self.lease is None or entry.lease == self.lease)


@dataclass(frozen=True, slots=True)
class Put:
    """Sets a key, attached to `lease` unless that is NO_LEASE."""

    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a key; no change if it doesn't exist."""

    key: str


Write = Put | Delete
Attached = Callable[[], Awaitable[None]]


class Committed(NamedTuple):
    """The writes were applied, and are visible from `revision` on."""

    revision: int


class LeaseLeft(NamedTuple):
    """The time after which a lease ends unless it is kept alive: at least `at_least_s`, and less than `below_s`.

    A store that restarts may start the time of every lease anew. The store then names another `term`. Within one term,
    the time that is left grows only by a keep-alive.
    """

    at_least_s: float
    below_s: float
    term: int


class Rejected(NamedTuple):
    """Nothing was written, because guards failed. `failed` has their keys' present entries (None: absent)."""

    failed: dict[str, Entry | None]


class LeaseLine(Protocol):
    """A thread's own connections to the store, which keep leases alive even while the event loop is blocked."""

    def keep_alive(self, lease: LeaseId, timeout_s: float) -> None:
        """As `Store.keep_alive`, within `timeout_s`. Blocks. Raises LeaseExpired, StoreUnavailable."""
        ...

    def close(self) -> None:
        """Closes the line's connections. Blocks."""
        ...


class Store(Protocol):
    """A metadata store, seen from one process. All methods may raise StoreUnavailable."""

    async def read(self, prefix: str = "") -> Snapshot:
        """All entries under `prefix`, at one revision."""
        ...

    def watch(
        self, prefix: str, after_revision: int, attached: Attached | None = None
    ) -> AsyncGenerator[Revision, None]:
        """Each revision after `after_revision` that changes keys under `prefix`, once and in order. Raises Compacted.

        `attached` is awaited each time that the watch has a new connection to the store, before anything from that
        connection is yielded, because another store may answer there now. An error that it raises ends the watch.

        Each yielded revision has all its changes under the prefix. The iterator ends when the store is closed. A reader
        that leaves it earlier must close it (`aclose`).
        """
        ...

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """Applies `writes` if all `guards` hold. No key may be written twice. Raises UnknownOutcome, LeaseExpired."""
        ...

    async def grant(self, ttl_s: float) -> LeaseId:
        """A new lease, which ends `ttl_s` after it was last kept alive."""
        ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Starts the lease's time anew. Raises LeaseExpired."""
        ...

    async def lease_left(self, lease: LeaseId) -> LeaseLeft:
        """How much time a lease has left. The lease may be another process's. The call doesn't prolong it.

        Raises LeaseExpired.
        """
        ...

    def lease_line(self) -> LeaseLine:
        """A new `LeaseLine` for one thread. It must be closed before the store is closed."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """Ends the lease: its keys are deleted in one revision. Does nothing if the lease has ended already."""
        ...

    async def close(self) -> None:
        """Ends the watches and closes the connections. Leases are left to end by themselves."""
        ...


def check_transaction(guards: Sequence[Guard], writes: Sequence[Write]) -> None:
    """Raises ValueError for a transaction that some store would refuse: too large, or with a key written twice."""
    if len(guards) > TRANSACTION_OPERATIONS_MAX + LINEAGE_GUARDS_MAX or len(writes) > TRANSACTION_OPERATIONS_MAX:
        raise ValueError(
            f"a transaction has {len(guards)} guards and {len(writes)} writes;"
            f" at most {TRANSACTION_OPERATIONS_MAX} of each are allowed"
        )
    if len({write.key for write in writes}) != len(writes):
        raise ValueError("a key is written twice in one transaction")
