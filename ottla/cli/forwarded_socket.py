"""kafka-python's connections through the forwards of `ottla.cli.forwards`.

kafka-python passes each address, also each advertised address, to the socket class that is registered for the scheme of
the setting `proxy_url`. This module's class connects to the forward's port instead of the address. The class
never blocks: kafka-python calls it on its event loop, which also serves other brokers' connections and the heartbeats.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from kafka.errors import KafkaConnectionError, KafkaTimeoutError
from kafka.net.inet import KafkaNetSocket

from ottla.cli.forwards import Forwards, target_of
from ottla.cli.route import NoWay

_POLL_S = 0.02
_SCHEME = "kubectl"


def proxy_url(forwards: Forwards) -> str:
    """The value of `proxy_url` by which all clients of this process connect through these forwards."""

    class ForwardedSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
        SCHEMES = (_SCHEME,)

        def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> list[Any]:
            """Leaves a name in the DNS of Kubernetes unresolved: `connect` gets the name itself."""
            if target_of(host, port) is None:
                return list(super().dns_lookup(host, port, raise_error))
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

        async def connect(
            self, net: Any, addrinfo: Any, socket_options: Any = (), timeout_at: float | None = None
        ) -> socket.socket:
            """A socket that is connected to the broker through the forward's port."""
            *family, (host, port, *_rest) = addrinfo
            target = target_of(host, port)
            if target is not None:
                try:
                    forward = forwards.begin(target)
                    while (address := forward.address()) is None:
                        if timeout_at is not None and time.monotonic() > timeout_at:
                            raise KafkaTimeoutError("kubectl port-forward doesn't listen")
                        await net.sleep(_POLL_S)
                except NoWay as error:
                    raise KafkaConnectionError(str(error)) from error
                addrinfo = (*family, address)
            connected: socket.socket = await super().connect(net, addrinfo, socket_options, timeout_at=timeout_at)
            return connected

    return f"{_SCHEME}://port-forward"
