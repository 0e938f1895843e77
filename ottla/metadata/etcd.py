"""The metadata store on etcd, 3.5 or newer. Any number of clusters may share one etcd: each has a prefix of its own.

Revisions are etcd's, so a cluster sees gaps where other clusters wrote. Transactions compare mod revisions and leases.
A snapshot is read in pages, all at the revision of the first page. If a watch's stream breaks off, the watch resumes
behind the last revision that it has yielded, at another endpoint if need be. The watch's reader gets an error only if
no attempt to resume succeeds for `timeout_s`. If a member's watch has brought nothing for a while, a small request
checks whether the member still answers. At each new stream, before anything of the stream is yielded, the reader may
check that the store is still the same one (`attached`).

Numbered argument that a watch yields every revision exactly once:

1. A revision is yielded only when all its changes have come. The watch's position advances only when a revision is
   yielded, or when etcd reports that all changes up to some revision have been sent.
2. A new stream asks for all revisions after the position.
3. If a stream repeats revisions up to the position, they are dropped.
4. If etcd has forgotten the revisions after the position, or is itself behind the position because it was restored from
   a backup, the reader gets Compacted and must start anew.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
from aetcd import rpc

from .etcd_connection import EtcdAddress, EtcdConnection, Member, cancelling, keep_alive_once, stale_token
from .etcd_lease_line import EtcdLeaseLine
from .etcd_messages import Assembly, Keys, changed_anything
from .store import (
    Attached,
    Committed,
    Compacted,
    Entry,
    Guard,
    LeaseExpired,
    LeaseId,
    LeaseLeft,
    Rejected,
    Revision,
    Snapshot,
    StoreUnavailable,
    UnknownOutcome,
    Write,
    check_transaction,
)

logger = logging.getLogger(__name__)

_PAGE_ENTRIES = 1_000
_SNAPSHOT_ATTEMPTS = 5
_RESUME_S = 0.1
_SILENCE_S = 5.0  # after this silence of a watch, a request checks whether the member answers


class EtcdStore:
    """A `Store` in an etcd cluster, under `prefix`. It belongs to the event loop in which it was created.

    It connects at the first call.
    """

    def __init__(
        self, address: EtcdAddress, prefix: str, timeout_s: float = 5.0, *, page_entries: int = _PAGE_ENTRIES
    ) -> None:
        """`timeout_s`: the longest that one call may take. Raises OSError for a TLS file that can't be read."""
        self._address = address
        self._connection = EtcdConnection(address, timeout_s)
        self._keys = Keys(prefix)
        self._timeout_s = timeout_s
        self._page_entries = page_entries
        self._ttls_s: dict[LeaseId, int] = {}

    async def read(self, prefix: str = "") -> Snapshot:
        """See `Store.read`."""
        for _ in range(_SNAPSHOT_ATTEMPTS):
            # If etcd is compacted between two pages, the next attempt reads at a newer revision.
            with suppress(Compacted):
                return await self._snapshot(prefix)
        raise StoreUnavailable("etcd is compacted faster than a snapshot can be read")

    async def watch(
        self, prefix: str, after_revision: int, attached: Attached | None = None
    ) -> AsyncGenerator[Revision, None]:
        """See `Store.watch`."""
        assembly = Assembly(self._keys, after_revision)
        loop = asyncio.get_running_loop()
        cut_since: float | None = None
        while not self._connection.closed:
            try:
                async with aclosing(self._stream(prefix, assembly, attached)) as revisions:
                    async for revision in revisions:
                        yield revision
            except _Cut as cut:
                if cut.began or cut_since is None:
                    cut_since = loop.time()
                    logger.info("the metadata watch was cut at revision %d, and resumes: %s", assembly.position, cut)
                elif loop.time() - cut_since > self._timeout_s:
                    raise StoreUnavailable(str(cut)) from cut
                assembly.interrupted()
                await asyncio.sleep(_RESUME_S)
            except StoreUnavailable:
                if self._connection.closed:
                    return
                raise

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """See `Store.transact`. Raises ValueError where the writes exceed etcd's --max-request-bytes."""
        check_transaction(guards, writes)
        request = self._keys.transaction(guards, writes)
        response = await self._connection.call(lambda member: member.kv.Txn, request, idempotent=not writes)
        if not response.succeeded:
            return Rejected(self._keys.failed(guards, response))
        if changed_anything(response):
            return Committed(response.header.revision)
        # Nothing was changed. The header's revision may be another cluster's, which this cluster's watches never reach.
        return Committed(max((guard.mod_revision for guard in guards), default=0))

    async def grant(self, ttl_s: float) -> LeaseId:
        """See `Store.grant`. etcd counts whole seconds. Its shortest lease takes about twice its election time-out."""
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        # If the answer to a grant was lost, its lease ends by itself. So another grant does no harm.
        response = await self._connection.call(lambda member: member.lease.LeaseGrant, request, idempotent=True)
        lease = LeaseId(response.ID)
        self._ttls_s[lease] = response.TTL
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        """See `Store.keep_alive`."""
        # A third of the lease's time: if one member doesn't answer, there is time for another attempt.
        timeout_s = min(self._timeout_s, self._ttls_s.get(lease, self._timeout_s) / 3)
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        response = await self._connection.call(
            lambda member: partial(keep_alive_once, member), request, idempotent=True, timeout_s=timeout_s
        )
        if response.TTL <= 0:
            self._ttls_s.pop(lease, None)
            raise LeaseExpired("the lease has ended")

    async def lease_left(self, lease: LeaseId) -> LeaseLeft:
        """See `Store.lease_left`. etcd rounds to whole seconds, towards zero. Each new leader of etcd starts the time
        of all leases anew."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease)
        response = await self._connection.call(lambda member: member.lease.LeaseTimeToLive, request, idempotent=True)
        if response.TTL == -1 and response.grantedTTL == 0:
            raise LeaseExpired("the lease has ended")
        at_least_s = response.TTL - (response.TTL <= 0)  # below zero if the lease is due to end and etcd is late
        return LeaseLeft(at_least_s, response.TTL + 1, response.header.raft_term)

    def lease_line(self) -> EtcdLeaseLine:
        """See `Store.lease_line`."""
        return EtcdLeaseLine(self._address)

    async def revoke(self, lease: LeaseId) -> None:
        """See `Store.revoke`."""
        self._ttls_s.pop(lease, None)
        request = rpc.LeaseRevokeRequest(ID=lease)
        try:
            # If the answer is lost, the call is repeated. The outcome is unknown only if the repetition fails, too.
            await self._connection.call(lambda member: member.lease.LeaseRevoke, request, idempotent=True)
        except LeaseExpired:
            return
        except StoreUnavailable as error:
            if self._connection.closed:
                raise
            raise UnknownOutcome(str(error)) from error

    async def compact(self, revision: int) -> None:
        """Forgets the history up to `revision`, of all clusters on this etcd."""
        request = rpc.CompactionRequest(revision=revision)
        await self._connection.call(lambda member: member.kv.Compact, request, idempotent=True)

    async def close(self) -> None:
        """See `Store.close`."""
        if not self._connection.closed:
            await self._connection.close()

    async def _snapshot(self, prefix: str) -> Snapshot:
        entries: list[Entry] = []
        revision = 0
        start: bytes | None = None
        while True:
            request = self._keys.range(prefix, start, revision, self._page_entries)
            page = await self._connection.call(lambda member: member.kv.Range, request, idempotent=True)
            revision = revision or page.header.revision
            entries.extend(self._keys.entry(found) for found in page.kvs)
            if not page.more:
                return Snapshot(revision, tuple(entries))
            start = page.kvs[-1].key + b"\0"

    async def _stream(
        self, prefix: str, assembly: Assembly, attached: Attached | None
    ) -> AsyncGenerator[Revision, None]:
        """The revisions that one stream brings. The stream ends with _Cut, StoreUnavailable or Compacted."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        member = await self._connection.member(deadline)
        fresh = member.token is None
        stream = member.watch.Watch(metadata=await self._connection.metadata(member, deadline))
        began = False
        reading: asyncio.Task[Any] | None = None
        try:
            with suppress(grpc.aio.AioRpcError):  # the call of `read` below fails for the same reason
                await stream.write(self._keys.watch(prefix, assembly.position))
            async with asyncio.timeout(self._timeout_s):
                response = await stream.read()
            while response is not grpc.aio.EOF:
                if response.canceled and not response.compact_revision and not fresh:
                    # If etcd has forgotten a watch's token, it answers "permission denied": retry with a new token.
                    member.token = None
                    raise _Cut(f"etcd at {member.endpoint} ended the watch: {response.cancel_reason}", began)
                await self._check(response, member, assembly.position)
                if response.created and attached is not None:
                    await attached()
                began = True
                for revision in assembly.add(response):
                    yield revision
                reading = asyncio.ensure_future(stream.read())
                await self._wait_for(reading, member)
                response = reading.result()
            raise _Cut(f"etcd at {member.endpoint} ended the watch", began)
        except grpc.aio.AioRpcError as error:
            if stale_token(error):
                member.token = None
            else:
                self._connection.explain(error, member)
            self._connection.avoid(member)
            raise _Cut(f"etcd at {member.endpoint}: {error.details()}", began) from error
        except TimeoutError:
            self._connection.avoid(member)
            raise _Cut(f"etcd at {member.endpoint} didn't answer within {self._timeout_s:g} s", began) from None
        except asyncio.CancelledError:
            if self._connection.closed and not cancelling():
                raise StoreUnavailable("the metadata store is closed") from None
            raise
        finally:
            stream.cancel()
            if reading is not None:
                _let_go(reading)

    async def _wait_for(self, reading: asyncio.Task[Any], member: Member) -> None:
        """Returns when `reading` has ended. Raises TimeoutError if the member doesn't answer any more.

        After a silence of `_SILENCE_S`, `_hear_from` sends the member a request. If the watch brings something before
        the answer comes, the request is cancelled: the watch shows as well that the member works.
        """
        while not (await asyncio.wait([reading], timeout=_SILENCE_S))[0]:
            asking = asyncio.ensure_future(self._hear_from(member))
            try:
                await asyncio.wait([reading, asking], return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    asking.result()
            finally:
                _let_go(asking)

    async def _hear_from(self, member: Member) -> None:
        """Sends the member a small request. Raises TimeoutError if no answer comes, not even an error.

        A member whose machine hangs or is paused doesn't answer although it is connected. gRPC's own pings don't notice
        that: after 40 s gRPC still took the channel for ready (measured).
        """
        metadata = (("token", member.token),) if member.token else ()
        request = rpc.RangeRequest(key=self._keys.base, count_only=True, serializable=True)
        try:
            await member.kv.Range(request, timeout=self._timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError from error

    async def _check(self, response: Any, member: Member, position: int) -> None:
        """Raises Compacted or StoreUnavailable if the watch can't continue."""
        if response.compact_revision:
            raise Compacted(f"etcd has compacted the changes before revision {response.compact_revision}")
        if response.canceled:
            raise StoreUnavailable(f"etcd at {member.endpoint} ended the watch: {response.cancel_reason}")
        if response.created and response.header.revision < position:
            # The member may only lag. A linearizable read shows etcd's newest revision.
            request = rpc.RangeRequest(key=self._keys.base, count_only=True)
            latest = await self._connection.call(lambda member: member.kv.Range, request, idempotent=True)
            if latest.header.revision < position:
                raise Compacted(f"etcd is at revision {latest.header.revision}, before {position}: was it restored?")


def _let_go(task: asyncio.Task[Any]) -> None:
    """Cancels a task. Any error of the task is ignored."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


class _Cut(Exception):
    """A watch's stream ended early. `began` says whether the stream had brought an answer before its end."""

    def __init__(self, reason: str, began: bool) -> None:
        super().__init__(reason)
        self.began = began
