"""Keeps a lease in etcd alive from a thread, over connections of the thread's own.

gRPC's asyncio calls make no progress while their event loop is blocked; gRPC's blocking calls do. So this is a second,
smaller client with only one call, the keep-alive, which may be repeated without harm. Endpoints, TLS, authentication
and the meaning of errors are as in `etcd_connection`.
"""

from __future__ import annotations

import time
from typing import Any

import grpc
from aetcd import rpc

from .etcd_connection import OPTIONS, REPLACED_S, EtcdAddress, credentials_of, explain, stale_token
from .store import LeaseExpired, LeaseId, StoreUnavailable

_RETRY_S = 0.05
_ATTEMPT_S_MIN = 1.0


class EtcdLeaseLine:
    """A `LeaseLine` to the members of one etcd cluster. Only one thread may use it."""

    def __init__(self, address: EtcdAddress) -> None:
        """Connects at the first call. Raises OSError for a TLS file that can't be read."""
        self._address = address
        credentials = credentials_of(address) if address.tls else None
        self._members = [_Member(endpoint, credentials) for endpoint in address.endpoints]
        self._current = 0

    def keep_alive(self, lease: LeaseId, timeout_s: float) -> None:
        """See `LeaseLine.keep_alive`. Tries the members in turn until the time-out."""
        deadline = time.monotonic() + timeout_s
        attempt_s = max(timeout_s / len(self._members), _ATTEMPT_S_MIN)
        while True:
            member = self._members[self._current]
            try:
                left_s = max(min(attempt_s, deadline - time.monotonic()), _RETRY_S)
                if member.keep_alive(lease, left_s, self._metadata(member, left_s)) <= 0:
                    raise LeaseExpired("the lease has ended")
                return
            except grpc.RpcError as error:
                failure: Any = error
                if stale_token(failure) and member.token is not None:
                    member.token = None  # the next attempt gets a new token
                else:
                    explain(failure, member.endpoint, self._address.user)
                    member.replace_if_away()
                    self._current = (self._current + 1) % len(self._members)
                if time.monotonic() + _RETRY_S >= deadline:
                    raise StoreUnavailable(f"etcd at {member.endpoint}: {failure.details()}") from error
            time.sleep(_RETRY_S)

    def close(self) -> None:
        """See `LeaseLine.close`."""
        for member in self._members:
            member.channel.close()

    def _metadata(self, member: _Member, timeout_s: float) -> tuple[tuple[str, str], ...]:
        wanted = (("hasleader", "true"),)
        if not self._address.user:
            return wanted
        if member.token is None:
            request = rpc.AuthenticateRequest(name=self._address.user, password=self._address.password())
            member.token = str(member.auth.Authenticate(request, timeout=timeout_s).token)
        return (*wanted, ("token", member.token))


class _Member:
    """One endpoint of etcd, its channel, and the token by which this client is logged in there."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        self.token: str | None = None
        self._credentials = credentials
        self._open()

    def _open(self) -> None:
        if self._credentials is None:
            self.channel = grpc.insecure_channel(self.endpoint, options=OPTIONS)
        else:
            self.channel = grpc.secure_channel(self.endpoint, self._credentials, options=OPTIONS)
        self.lease = rpc.LeaseStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self._answered_at = time.monotonic()

    def replace_if_away(self) -> None:
        """Opens a new channel if this one has brought no answer for `REPLACED_S` seconds (see `etcd_connection`)."""
        if time.monotonic() - self._answered_at > REPLACED_S:
            self.channel.close()
            self._open()

    def keep_alive(self, lease: LeaseId, timeout_s: float, metadata: tuple[tuple[str, str], ...]) -> int:
        """Renews the lease. Returns the seconds that it has left now, 0 if it has ended. Raises grpc.RpcError."""
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        call = self.lease.LeaseKeepAlive(iter((request,)), timeout=timeout_s, metadata=metadata)
        try:
            answer = next(call, None)
        finally:
            call.cancel()
        if answer is None:
            raise StoreUnavailable(f"etcd at {self.endpoint} ended a keep-alive without an answer")
        self._answered_at = time.monotonic()
        return int(answer.TTL)
