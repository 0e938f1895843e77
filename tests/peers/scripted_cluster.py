"""A cluster whose answers a test sets: it serves Metadata, ListOffsets and Fetch, or answers with any error code.

Every broker has its own view of the topics, so that a broker may lag behind the others.
"""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.net.names import EARLIEST, LATEST
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.flexible import is_flexible
from ottla.protocol.frames import read_request_header, response_frame, skip_tagged_fields
from ottla.protocol.messages import read_request, write_response

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 1, 2, 3, 18
_VERSIONS = {FETCH: (4, 13), LIST_OFFSETS: (1, 7), METADATA: (1, 12), API_VERSIONS: (0, 3)}
_size = struct.Struct(">i")
Fault = Callable[[int, int, str], ErrorCode]
"""(broker id, API key, topic) → the error code with which the broker answers for the topic; `none`: the broker's real
answer."""


@dataclass
class Topic:
    """A topic. `counts` are the end offsets of its partitions, `starts` their first offsets (default 0)."""

    counts: Sequence[int]
    starts: Sequence[int] = ()
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)

    def start(self, index: int) -> int:
        return self.starts[index] if self.starts else 0


class ScriptedCluster:
    """Brokers on the loopback interface; the broker `leader` leads all partitions. Use it as a context manager.

    Brokers in `silent` read requests and don't answer them.
    """

    def __init__(self, brokers: int = 2, **topics: Topic) -> None:
        self.views: list[dict[str, Topic]] = [dict(topics) for _ in range(brokers)]
        self.fault: Fault = lambda broker, api_key, topic: ErrorCode.none
        self.leader = 0
        self.silent: set[int] = set()
        self.asked: list[tuple[int, int]] = []  # (broker, API) of each request
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(brokers)]
        for number, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(number, listener), daemon=True).start()

    def __enter__(self) -> ScriptedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners)

    def everywhere(self, **topics: Topic | None) -> None:
        """Sets these topics in every broker's view; None removes a topic."""
        for view in self.views:
            for name, topic in topics.items():
                if topic is None:
                    view.pop(name, None)
                else:
                    view[name] = topic

    def times(self, count: int, code: ErrorCode, *api_keys: int, brokers: Sequence[int] = ()) -> None:
        """Gives the next `count` answers to these APIs the error `code`. The answers are those of `brokers`, or of all
        brokers by default."""
        left = [count]

        def fault(broker: int, api_key: int, topic: str) -> ErrorCode:
            if not left[0] or api_key not in api_keys or (brokers and broker not in brokers):
                return ErrorCode.none
            left[0] -= 1
            return code

        self.fault = fault

    def _accept(self, number: int, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(number, connection), daemon=True).start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(_size.unpack(head)[0])
                key, version, correlation_id, _, position = read_request_header(frame)
                if is_flexible(key, version):
                    position = skip_tagged_fields(frame, position)
                request = read_request(key, version, frame, position)
                self.asked.append((number, key))
                if number in self.silent:
                    continue
                answer = _ANSWERS[key](self, number, version, request)
                body = write_response(key, version, answer)
                connection.sendall(response_frame(key, version, correlation_id, body))

    def _versions(self, number: int, version: int, request: Any) -> dict[str, Any]:
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in _VERSIONS.items()]
        return {"api_keys": keys}

    def _metadata(self, number: int, version: int, request: Any) -> dict[str, Any]:
        view = self.views[number]
        names = list(view) if request.topics is None else [each.name for each in request.topics]
        brokers = [
            {"node_id": node, "host": "127.0.0.1", "port": listener.getsockname()[1], "rack": None}
            for node, listener in enumerate(self._listeners)
        ]
        topics = []
        for name in names:
            code = self.fault(number, METADATA, name)
            if code == ErrorCode.none and name not in view:
                code = ErrorCode.unknown_topic_or_partition
            described = view[name] if code == ErrorCode.none else Topic(())
            partitions = [
                {"partition_index": index, "leader_id": self.leader, "replica_nodes": [0], "isr_nodes": [0]}
                for index in range(len(described.counts))
            ]
            topics.append({"error_code": code, "name": name, "topic_id": described.topic_id, "partitions": partitions})
        return {"brokers": brokers, "controller_id": 0, "topics": topics}

    def _list_offsets(self, number: int, version: int, request: Any) -> dict[str, Any]:
        topics = []
        for asked in request.topics:
            answers = []
            for each in asked.partitions:
                code = self.fault(number, LIST_OFFSETS, asked.name)
                topic = self.views[number].get(asked.name)
                if code == ErrorCode.none and topic is None:
                    code = ErrorCode.unknown_topic_or_partition
                offset = -1
                if code == ErrorCode.none and topic is not None:
                    ends = {EARLIEST: topic.start(each.partition_index), LATEST: topic.counts[each.partition_index]}
                    offset = ends[int(each.timestamp)]
                answers.append({"partition_index": each.partition_index, "error_code": code, "offset": offset})
            topics.append({"name": asked.name, "partitions": answers})
        return {"topics": topics}

    def _fetch(self, number: int, version: int, request: Any) -> dict[str, Any]:
        (asked,) = request.topics
        view = self.views[number]
        if version >= 13:
            name = next((name for name, topic in view.items() if topic.topic_id == asked.topic_id), "")
            which, missing = {"topic_id": asked.topic_id}, ErrorCode.unknown_topic_id
        else:
            name, which, missing = asked.topic, {"topic": asked.topic}, ErrorCode.unknown_topic_or_partition
        (partition,) = asked.partitions
        index, offset = partition.partition, partition.fetch_offset
        code = self.fault(number, FETCH, name)
        if code == ErrorCode.none and name not in view:
            code = missing
        records = b""
        if code == ErrorCode.none:
            topic = view[name]
            if not topic.start(index) <= offset <= topic.counts[index]:
                code = ErrorCode.offset_out_of_range
            elif offset < topic.counts[index]:
                rows = [Record(at, 1000 + at, None, b"%d" % at, ()) for at in range(offset, topic.counts[index])]
                records = build_batch(rows, base_offset=offset)
        answer = {"partition_index": index, "error_code": code, "high_watermark": 0, "records": records}
        return {"error_code": ErrorCode.none, "session_id": 0, "responses": [{**which, "partitions": [answer]}]}


_ANSWERS: dict[int, Callable[[ScriptedCluster, int, int, Any], dict[str, Any]]] = {
    API_VERSIONS: ScriptedCluster._versions,
    METADATA: ScriptedCluster._metadata,
    LIST_OFFSETS: ScriptedCluster._list_offsets,
    FETCH: ScriptedCluster._fetch,
}
