"""Calls to an etcd cluster: endpoints, TLS, authentication, time-outs, and what an error means for a write.

etcd's messages and stubs are those of aetcd. aetcd's client isn't used: it supports only one endpoint and no TLS, and
its watch neither resumes nor shows where a revision ends.

There is one channel per endpoint; the endpoint that worked last is used until it fails. A channel reconnects by itself,
with a backoff of at most a second, and is pinged so that a lost machine is noticed within ten seconds. But a channel
resolves its endpoint's name at most twice a minute, and only every other minute once the name was unknown for a while.
A restarted member may have a new address, as a pod does. The old channel would find that address only after the leases
in etcd have ended. A new channel resolves the name immediately. So a channel that isn't ready for some seconds is
replaced.

The metadata of each call has `hasleader`. So a member that is cut off from the other members refuses the call
immediately, instead of answering with outdated data or keeping a watch waiting.

The outcome of a write that was sent is unknown unless etcd confirms or refuses it. A broken connection and etcd's own
time-outs ("request timed out", "leader changed") may follow after the write was proposed to etcd's members.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Errors reach the caller as exceptions. By default grpc would also write its own lines into the broker's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from aetcd import rpc

from .store import AccessRefused, Compacted, LeaseExpired, StoreUnavailable, UnknownOutcome

logger = logging.getLogger(__name__)

_CONNECT_POLL_S = 0.02
_RETRY_S = 0.05
_ATTEMPT_S_MIN = 1.0
REPLACED_S = 2.0  # an unready channel is replaced after this: more than connecting takes, far below any session
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd's servers refuse more than one ping in five seconds.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
# etcd gives these answers before it proposes a write to its members, or instead of applying the write.
_REFUSED = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "etcdserver: mvcc: database space exceeded",
    "etcdserver: corrupt cluster",
)
_NOT_SENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_NOT_LET_IN = (  # an authentication's errors that neither the network nor a passing condition of etcd causes
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
_STALE_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_TOO_LARGE = ("etcdserver: request is too large", "etcdserver: too many operations")

Method = Callable[..., Awaitable[Any]]
Failure = Any  # grpc.aio.AioRpcError, or what a blocking call raises: both have code() and details()


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """etcd's endpoints and the credentials for them.

    The files are read at start, except for the password file, which is read at each authentication.
    """

    endpoints: tuple[str, ...]  # host:port
    user: str = ""
    password_file: Path | None = None
    tls: bool = False
    ca_file: Path | None = None  # None: the system's certificate authorities
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    def password(self) -> str:
        """The user's password, read from its file now; empty if there is no file. Raises OSError."""
        return self.password_file.read_text().rstrip("\r\n") if self.password_file else ""


class Member:
    """One endpoint: its channel, its stubs, and the token by which this client is logged in there."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        self.token: str | None = None
        self._credentials = credentials
        self._open()

    def _open(self) -> None:
        if self._credentials is None:
            self.channel = grpc.aio.insecure_channel(self.endpoint, options=OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(self.endpoint, self._credentials, options=OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self._ready_at = time.monotonic()

    @property
    def connected(self) -> bool:
        """Whether the channel can take calls now. If it can't, it begins to connect."""
        if self.channel.get_state(try_to_connect=True) == grpc.ChannelConnectivity.READY:
            self._ready_at = time.monotonic()
            return True
        if time.monotonic() - self._ready_at > REPLACED_S:
            self._open()  # the old channel is closed when its last call has ended
        return False


class EtcdConnection:
    """Connections to the members of one etcd cluster, for one event loop."""

    def __init__(self, address: EtcdAddress, timeout_s: float) -> None:
        """Connects at the first call. Raises OSError for a file that can't be read."""
        self.closed = False
        self.timeout_s = timeout_s
        self._address = address
        credentials = credentials_of(address) if address.tls else None
        self._members = [Member(endpoint, credentials) for endpoint in address.endpoints]
        # The first endpoint is chosen at random, so that not all processes use the same one.
        self._current = random.randrange(len(self._members))

    async def call(
        self, method: Callable[[Member], Method], request: Any, *, idempotent: bool, timeout_s: float | None = None
    ) -> Any:
        """The answer to `request`. Idempotent calls are repeated, also at other endpoints, until the time-out.

        Raises StoreUnavailable, UnknownOutcome (never for idempotent calls), LeaseExpired, Compacted, ValueError.
        """
        timeout_s = timeout_s or self.timeout_s
        deadline = _now() + timeout_s
        attempt_s = max(timeout_s / len(self._members), _ATTEMPT_S_MIN) if idempotent else timeout_s
        refreshed = False
        while True:
            member = await self.member(deadline)
            try:
                metadata = await self.metadata(member, deadline)
                left_s = min(attempt_s, max(deadline - _now(), _CONNECT_POLL_S))
                return await self._unless_closed(method(member)(request, timeout=left_s, metadata=metadata))
            except grpc.aio.AioRpcError as error:
                if stale_token(error) and not refreshed:
                    member.token, refreshed = None, True
                    continue
                self.explain(error, member)
                self.avoid(member)
                if not idempotent and not _refused(error):
                    raise UnknownOutcome(f"etcd at {member.endpoint}: {error.details()}") from error
                if _now() + _RETRY_S >= deadline:
                    raise StoreUnavailable(f"etcd at {member.endpoint}: {error.details()}") from error
            await asyncio.sleep(_RETRY_S)

    async def member(self, deadline: float) -> Member:
        """A connected endpoint, if possible the one that worked last. Raises StoreUnavailable."""
        while True:
            if self.closed:
                raise StoreUnavailable("the metadata store is closed")
            for offset in range(len(self._members)):
                index = (self._current + offset) % len(self._members)
                if self._members[index].connected:
                    self._current = index
                    return self._members[index]
            if _now() >= deadline:
                raise StoreUnavailable(f"etcd at {self._address} can't be reached: {await self._trouble()}")
            await asyncio.sleep(_CONNECT_POLL_S)

    def avoid(self, member: Member) -> None:
        """If `member` is the preferred endpoint, prefers the next endpoint from now on."""
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)

    async def metadata(self, member: Member, deadline: float) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of each call to `member`. Raises AccessRefused for a refused login, StoreUnavailable."""
        wanted = (("hasleader", "true"),)
        if not self._address.user:
            return wanted
        if member.token is None:
            request = rpc.AuthenticateRequest(name=self._address.user, password=self._address.password())
            try:
                answer = member.auth.Authenticate(request, timeout=max(deadline - _now(), _CONNECT_POLL_S))
                member.token = (await self._unless_closed(answer)).token
            except grpc.aio.AioRpcError as error:
                # The caller's request hasn't been sent yet, so its outcome is never unknown here.
                reason = f"etcd at {member.endpoint} refuses the login of user {self._address.user}: {error.details()}"
                raise (AccessRefused if error.code() in _NOT_LET_IN else StoreUnavailable)(reason) from error
        assert member.token is not None
        return (*wanted, ("token", member.token))

    def explain(self, error: grpc.aio.AioRpcError, member: Member) -> None:
        """Raises the store's exception for the error, unless another member or a later attempt may succeed."""
        explain(error, member.endpoint, self._address.user)

    async def close(self) -> None:
        """Ends all calls."""
        self.closed = True
        for member in self._members:
            await member.channel.close()

    async def _trouble(self) -> str:
        """The reason why the preferred endpoint isn't connected: the error of a call that is made only to get one."""
        try:
            await self._unless_closed(
                self._members[self._current].auth.AuthStatus(rpc.AuthStatusRequest(), timeout=0.1)
            )
        except grpc.aio.AioRpcError as error:
            return error.details() or str(error.code())
        return "it answers again now"

    async def _unless_closed(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except asyncio.CancelledError:
            if self.closed and not cancelling():
                raise StoreUnavailable("the metadata store is closed") from None
            raise


async def keep_alive_once(member: Member, request: Any, *, timeout: float, metadata: Any) -> Any:  # noqa: ASYNC109
    """Sends one keep-alive of a lease and returns etcd's answer: a unary call over the stream that etcd offers for it.

    The arguments are those of a stub's method for unary calls.
    """
    call = member.lease.LeaseKeepAlive(timeout=timeout, metadata=metadata)
    try:
        with suppress(grpc.aio.AioRpcError):  # the call of `read` below fails for the same reason
            await call.write(request)
        answer = await call.read()
    finally:
        call.cancel()
    if answer is grpc.aio.EOF:
        raise StoreUnavailable(f"etcd at {member.endpoint} ended a keep-alive without an answer")
    return answer


def explain(error: Failure, endpoint: str, user: str) -> None:
    """Raises the store's exception for the error of a call, unless another member or a later attempt may succeed."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        raise LeaseExpired("the lease has ended") from error
    if code == grpc.StatusCode.OUT_OF_RANGE:
        raise Compacted(details) from error
    if details.startswith(_TOO_LARGE):
        raise ValueError(details) from error
    stale = stale_token(error)
    if code == grpc.StatusCode.PERMISSION_DENIED or stale or "user name is empty" in details:
        kind = StoreUnavailable if stale else AccessRefused
        raise kind(
            f"etcd at {endpoint} refuses {f'user {user}' if user else 'a request without a user'}: {details}"
        ) from error


def stale_token(error: Failure) -> bool:
    """Whether etcd refused the token, so that the call may succeed after a new authentication."""
    return (error.details() or "").startswith(_STALE_TOKEN)


def cancelling() -> bool:
    """Whether the present task was itself cancelled, rather than the call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _refused(error: grpc.aio.AioRpcError) -> bool:
    details = error.details() or ""
    return details.startswith(_REFUSED + _NOT_SENT)


def credentials_of(address: EtcdAddress) -> grpc.ChannelCredentials:
    """The certificates and keys that an address names. Raises OSError for a file that can't be read."""

    def content(file: Path | None) -> bytes | None:
        return file.read_bytes() if file is not None else None

    return grpc.ssl_channel_credentials(
        content(address.ca_file), content(address.key_file), content(address.certificate_file)
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
