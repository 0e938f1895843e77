"""A name server for one name whose address changes, as a pod's does: without a pod, the name is unknown."""

from __future__ import annotations

import socket
import struct
import threading

_A = 1
_HEAD_BYTES, _TYPE_AND_CLASS_BYTES = 12, 4
_TTL_S = 5  # as in Kubernetes' DNS


class NameServer:
    """Answers every question for an IPv4 address with `address`, or with NXDOMAIN while `address` is None."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="name server", daemon=True)
        self._thread.start()

    def target(self, name: str, port: str) -> str:
        """The target that makes grpc ask this server for the address of `name`."""
        return f"dns://127.0.0.1:{self._socket.getsockname()[1]}/{name}:{port}"

    def close(self) -> None:
        """Stops the server."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, asker = self._socket.recvfrom(4096)
            if not query:
                return
            self.asked += 1
            self._socket.sendto(self._answer(query), asker)

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\0", _HEAD_BYTES) + 1
        question = query[_HEAD_BYTES : end + _TYPE_AND_CLASS_BYTES]
        (kind,) = struct.unpack_from(">H", query, end)
        address = self.address
        known = address is not None and kind == _A
        flags = 0x8180 if address is not None else 0x8183  # NXDOMAIN
        head = query[:2] + struct.pack(">HHHHH", flags, 1, int(known), 0, 0)
        if address is None or not known:
            return head + question
        record = struct.pack(">HHHIH", 0xC000 | _HEAD_BYTES, _A, 1, _TTL_S, 4) + socket.inet_aton(address)
        return head + question + record
