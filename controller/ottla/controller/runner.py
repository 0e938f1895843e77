"""The controller as a task: it keeps its lease, follows the metadata, decides and writes. It has no state of its own.

The process that owns the key `controller` decides; any number of other candidates wait until that key has been deleted.
Every transaction compares the key, so that a process that was paused beyond its session writes nothing more.

After each round of writes the controller waits until its image shows them, then decides about everything that changed
meanwhile. So at most one decision about a partition is in flight. After a write of unknown outcome, the controller
decides about its partitions again.

A term of the controller ends when its lease or its key is lost. When the store didn't accept a write, the controller
keeps its lease and decides again, because a new lease would burden a store that is slow already.

Between rounds the controller adds words to the store's lineage: random strings by which processes recognise the store
(`ottla.metadata.lineage`). It never adds a word during a round, because a new word rejects every transaction that is
under way at that moment (`own_store.py`). Nor does it add a word soon after its term began, unless the store has none:
where terms follow each other quickly, the store is usually busy.

At intervals the controller also looks for partitions whose preferred replica could lead, but doesn't.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from ottla.metadata import keys, lineage
from ottla.metadata.follower import Follower
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import NO_BROKER, ControllerHolder
from ottla.metadata.store import (
    NO_LEASE,
    TRANSACTION_OPERATIONS_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    Committed,
    ForeignStore,
    Guard,
    LeaseExpired,
    Put,
    Rejected,
    Store,
    StoreUnavailable,
    UnknownOutcome,
    Write,
)

from .decide import Scope, decide, imbalanced, in_order, in_order_of_topics, scope_of, whole_scope
from .proposal import Proposal

logger = logging.getLogger(__name__)

T = TypeVar("T")

BALANCE = "auto.leader.rebalance.enable"
BALANCE_INTERVAL_S = "leader.imbalance.check.interval.seconds"

_RETRY_S = 0.2
_REJECTED_S = 0.05
# Topics or partitions that are decided on without a pause: two transactions' worth of changed partitions.
_SLICE = 2 * (TRANSACTION_OPERATIONS_MAX - 1)
_WRITES_MAX = 8  # transactions under way at a time: together they take one round trip and one sync of the store's disk
_NOTHING = Scope(frozenset(), frozenset())

_Outcome = Committed | Rejected | UnknownOutcome | StoreUnavailable


class Deposed(Exception):
    """Ends the controller's term: another process may be the controller by now."""


class Controller:
    """One candidate for controller. `follower` follows the metadata. It may be shared with a broker in the same
    process, and its owner runs it."""

    def __init__(
        self,
        store: Store,
        follower: Follower,
        name: str,
        defaults: Mapping[str, str] = {},
        session_s: float = 9.0,
        broker_id: int = NO_BROKER,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        """`defaults` are settings by Kafka's names. `broker_id` is the id of the broker in the same process; a process
        without a broker has an id below NO_BROKER, and listens at `address` (host, port)."""
        self.active = False  # whether this process is the controller and decides
        self.rejected_count = 0
        self._store = store
        self._follower = follower
        self._name = name
        self._defaults = defaults
        self._session_s = session_s
        self._broker_id = broker_id
        self._address = address
        self._balance_s = float(defaults.get(BALANCE_INTERVAL_S, 300))
        self._balances = defaults.get(BALANCE, "true") == "true"
        self._balance_due = False
        self._lease = NO_LEASE
        self._left_behind = NO_LEASE  # a lease of an ended term of this process, which couldn't be revoked
        self._term: Guard | None = None
        self._word_at = 0.0  # no lineage word is written before this time of the loop's clock
        self._changed = Changed()
        self._woken = asyncio.Event()
        follower.listen(self._noticed)

    async def run(self) -> None:
        """Tries to become the controller, and is the controller whenever no other process is, until cancelled."""
        while True:
            try:
                await self._acquire()
                await self._govern()
            except (Deposed, LeaseExpired) as reason:
                logger.warning("controller %s: deposed: %s", self._name, reason)
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning("controller %s: waiting for the metadata store: %s", self._name, reason)
                await asyncio.sleep(_RETRY_S)
            finally:
                self.active = False
                await self._resign()

    def _noticed(self, image: Image, changed: Changed) -> None:
        if self.active:
            self._changed |= changed
        self._woken.set()

    async def _acquire(self) -> None:
        while True:
            self._lease = await self._store.grant(self._session_s)
            host, port = self._address
            holder = ControllerHolder(self._name, self._broker_id, host=host, port=port)
            put = Put(keys.controller.key, holder.encode(), self._lease)
            result = await self._store.transact([Guard(keys.controller.key, 0)], [put])
            if isinstance(result, Committed):
                self._term = Guard(keys.controller.key, result.revision, self._lease)
                logger.info("controller %s: is the active controller from revision %d on", self._name, result.revision)
                return
            await self._store.revoke(self._lease)
            self._lease = NO_LEASE
            other = result.failed[keys.controller.key]
            if other is not None and other.lease == self._left_behind != NO_LEASE:
                await self._store.revoke(other.lease)
            elif other is not None:
                await self._wait_until_vacant(other.mod_revision)

    async def _wait_until_vacant(self, revision: int) -> None:
        while True:
            self._woken.clear()
            image = self._follower.image
            if image.revision >= revision and image.controller is None:
                return
            await self._woken.wait()

    async def _resign(self) -> None:
        lease, self._lease = self._lease, NO_LEASE
        if lease != NO_LEASE:
            try:
                await self._store.revoke(lease)
            except (StoreUnavailable, UnknownOutcome):
                self._left_behind = lease
                logger.info(
                    "controller %s: the lease wasn't revoked; it is revoked when the store answers, or ends by itself",
                    self._name,
                )

    async def _govern(self) -> None:
        assert self._term is not None
        keeper = asyncio.ensure_future(self._keep_lease())
        clock = asyncio.ensure_future(self._tell_time())
        try:
            work = asyncio.ensure_future(self._work(self._term.mod_revision))
            try:
                await asyncio.wait((keeper, work), return_when=asyncio.FIRST_COMPLETED)
                for task in (work, keeper):
                    if task.done():
                        task.result()
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        finally:
            for helper in (keeper, clock):
                helper.cancel()
            await asyncio.gather(keeper, clock, return_exceptions=True)

    async def _keep_lease(self) -> None:
        """Keeps the lease alive. Raises Deposed when the store hasn't answered for the length of a session.

        By then the lease may still be alive, if the requests reach the store but the answers don't come back. Without
        the exception, this process would keep every other process from becoming the controller, and couldn't decide
        itself.
        """
        loop = asyncio.get_running_loop()
        confirmed_at = loop.time()
        while True:
            await asyncio.sleep(self._session_s / 4)
            try:
                await self._store.keep_alive(self._lease)
                confirmed_at = loop.time()
            except ForeignStore:
                raise
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning("controller %s: the lease couldn't be kept alive: %s", self._name, reason)
                if loop.time() - confirmed_at > self._session_s:
                    raise Deposed("the metadata store hasn't answered for the length of a session") from reason

    async def _tell_time(self) -> None:
        while self._balances:
            await asyncio.sleep(self._balance_s)
            self._balance_due = True
            self._woken.set()

    async def _work(self, since_revision: int) -> None:
        await self._follower.wait_for_revision(since_revision, None)
        self.active = True
        known = bool(self._follower.image.lineage)  # the first word isn't delayed: the store needs one
        self._word_at = asyncio.get_running_loop().time() + (lineage.INTERVAL_S if known else 0)
        self._changed = Changed()
        scope = whole_scope(self._follower.image)
        again = _NOTHING
        while True:
            again = await self._perform(scope)
            await self._add_word_if_due()
            if again:
                await asyncio.sleep(_REJECTED_S)  # by then the image shows why the writes were rejected
            while not self._changed and not self._balance_due and not again:
                await self._rest()
            changed, self._changed = self._changed, Changed()
            if changed.controller:
                self._check_term()
            scope = scope_of(self._follower.image, changed) | again
            if self._balance_due:
                self._balance_due = False
                scope |= imbalanced(self._follower.image)

    async def _rest(self) -> None:
        """Waits until a decision may be needed. If a word of the store's lineage becomes due meanwhile, writes the
        word and returns."""
        self._woken.clear()
        try:
            async with asyncio.timeout_at(self._word_at if lineage.is_due(self._follower.image) else None):
                await self._woken.wait()
        except TimeoutError:
            await self._add_word_if_due()

    async def _add_word_if_due(self) -> None:
        """Adds a word to the store's lineage if metadata has changed since the last word, and the interval between two
        words has passed."""
        assert self._term is not None
        image, now = self._follower.image, asyncio.get_running_loop().time()
        if now < self._word_at or not lineage.is_due(image):
            return
        self._word_at = now + lineage.INTERVAL_S
        guard, writes = lineage.next_word(image.lineage, secrets.token_urlsafe(lineage.WORD_BYTES))
        try:
            result = await self._store.transact([self._term, guard], writes)
            if isinstance(result, Committed):  # the next transactions must compare the new word
                await self._follower.wait_for_revision(result.revision, None)
        except ForeignStore:
            raise
        except (StoreUnavailable, UnknownOutcome) as reason:
            logger.info(
                "controller %s can't write the next lineage word, by which brokers recognise the store: %s",
                self._name, reason,
            )  # fmt: skip
        except Exception:  # the term continues: without the word, each new connection of a broker costs a snapshot
            logger.exception(
                "controller %s can't write the next lineage word, by which brokers recognise the store", self._name
            )

    def _check_term(self) -> None:
        """Raises Deposed if the metadata names another controller, or none (`quick_death.py` may have deleted the key
        by mistake)."""
        assert self._term is not None
        image = self._follower.image
        if image.controller is None or image.controller.revision != self._term.mod_revision:
            raise Deposed("the metadata names another controller, or none")

    async def _perform(self, scope: Scope) -> Scope:
        """Splits the scope (the partitions, topics, … to decide on), and decides on one portion after the other. Writes
        `_WRITES_MAX` batches of proposals at a time. Returns the scope that must be decided on again."""
        again = _NOTHING
        latest = 0
        decided: list[tuple[Scope, list[Proposal]]] = []
        for part in _slices(scope):
            for batch in _batches(decide(self._follower.image, part, self._defaults)):
                decided.append((part, batch))
                if len(decided) == _WRITES_MAX:
                    rejected, revision = await self._write_all(decided)
                    again, latest, decided = again | rejected, max(latest, revision), []
                await asyncio.sleep(0)  # a broker on this event loop has to serve meanwhile
            await asyncio.sleep(0)
        rejected, revision = await self._write_all(decided)
        again, latest = again | rejected, max(latest, revision)
        if latest:  # without a time-out: a follower that lags is no reason to end the term while the lease is alive
            await self._follower.wait_for_revision(latest, None)
        return again

    async def _write_all(self, decided: Sequence[tuple[Scope, list[Proposal]]]) -> tuple[Scope, int]:
        """Writes all batches concurrently. Returns the scope of the batches that weren't written completely, and the
        last revision that was written."""
        again = _NOTHING
        latest = 0
        outcomes = await asyncio.gather(*(self._write(batch) for _, batch in decided), return_exceptions=True)
        for (part, _), results in zip(decided, outcomes, strict=True):
            if isinstance(results, BaseException):
                raise results
            for result in results:
                if isinstance(result, Committed):
                    latest = max(latest, result.revision)
                else:
                    again |= part
        return again, latest

    async def _write(self, batch: Sequence[Proposal]) -> list[_Outcome]:
        """Writes all proposals in one transaction. If a guard fails (a key has another revision by now), tries again
        without the proposals that have this guard. Returns the outcome of each transaction."""
        assert self._term is not None
        results: list[_Outcome] = []
        while batch:
            guards, writes = _merged(batch)
            try:
                result = await self._store.transact([self._term, *guards], writes)
            except UnknownOutcome as unknown:
                return [*results, unknown]
            except ForeignStore:
                raise
            except StoreUnavailable as reason:
                logger.warning(
                    "controller %s: the store didn't accept a decision, and the controller decides again: %s",
                    self._name,
                    reason,
                )
                await asyncio.sleep(_RETRY_S)
                return [*results, reason]
            results.append(result)
            if isinstance(result, Committed):
                return results
            self.rejected_count += 1
            if keys.controller.key in result.failed:
                raise Deposed("another process has become the controller")
            failed = result.failed.keys()
            batch = [proposal for proposal in batch if not any(guard.key in failed for guard in proposal.guards)]
        return results


def _slices(scope: Scope) -> Iterator[Scope]:
    """The scope in parts, each of which is decided within a few milliseconds: topics first, then partitions.

    Partitions without a leader, for which clients wait, come before partitions that only lose a follower. After the
    death of one of three brokers, a third of the partitions are without a leader.
    """
    for topics in _chunks(in_order(scope.topics)):
        yield Scope(topics, frozenset())
    partitions = scope.partitions | scope.preferred
    for some in (scope.unled, partitions - scope.unled):
        for part in _chunks(in_order_of_topics(some)):
            yield Scope(frozenset(), part & scope.partitions, part & scope.preferred)


def _chunks(items: Sequence[T]) -> Iterator[frozenset[T]]:
    return (frozenset(items[start : start + _SLICE]) for start in range(0, len(items), _SLICE))


def _batches(proposals: Iterable[Proposal]) -> Iterable[list[Proposal]]:
    """The proposals in groups, each of which fits into one transaction together with the guard on the controller's
    key."""
    batch: list[Proposal] = []
    guarded: set[str] = set()
    writes = size = 0
    for proposal in proposals:
        keys_guarded = guarded.union(guard.key for guard in proposal.guards)
        proposal_size = sum(_size(write) for write in proposal.writes)
        full = (
            len(keys_guarded) >= TRANSACTION_OPERATIONS_MAX
            or writes + len(proposal.writes) > TRANSACTION_OPERATIONS_MAX
            or size + proposal_size > TRANSACTION_SIZE_BYTES_MAX
        )
        if batch and full:
            yield batch
            batch, writes, size = [], 0, 0
            keys_guarded = {guard.key for guard in proposal.guards}
        guarded = keys_guarded
        batch.append(proposal)
        writes += len(proposal.writes)
        size += proposal_size
    if batch:
        yield batch


def _merged(batch: Iterable[Proposal]) -> tuple[list[Guard], list[Write]]:
    guards = {guard.key: guard for proposal in batch for guard in proposal.guards}
    writes = {write.key: write for proposal in batch for write in proposal.writes}
    return list(guards.values()), list(writes.values())


def _size(write: Write) -> int:
    return len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
