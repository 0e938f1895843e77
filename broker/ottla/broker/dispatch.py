"""Turns a request's frame into its answer: reads the header, checks the version and the client's right on the cluster,
calls the API's handler, and counts the request.

Hot APIs answer from the socket's callback. The handlers of the other APIs get the decoded request; each call runs in a
task of its own, except calls of handlers that await at most one future. A handler turns every error that it knows into
an answer. Any exception that it raises is a bug: dispatch closes that connection, and no other client notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from kio.schema.index import api_key_map

from ottla.broker.api import api_versions
from ottla.broker.api.declaration import Response
from ottla.broker.api.registry import Handler, Ports, Route
from ottla.broker.authorizer import has_one_of
from ottla.broker.counters import ApiCounters
from ottla.broker.ports import WithServer
from ottla.broker.request import Request
from ottla.broker.throttling import Charge, Throttling, metered
from ottla.net.connection import POSTPONED, Connection
from ottla.net.pending import Pending
from ottla.protocol.errors import ProtocolError
from ottla.protocol.flexible import is_flexible
from ottla.protocol.frames import (
    API_VERSIONS,
    read_request_header,
    response_frame,
    skip_tagged_fields,
)
from ottla.protocol.messages import read_request, write_response
from ottla.protocol.received import Memory

if TYPE_CHECKING:
    from ottla.net.server import Reply

logger = logging.getLogger(__name__)

PRODUCE = 0


class Parts(Ports, WithServer, Protocol):
    """The parts of the broker that dispatch needs: those of all handlers, and the server, which has the memory for
    answers."""


class Dispatcher:
    """Serves frames by the routes of the registry, and charges them to the clients' quotas.

    If an API needs a right on the cluster, and not on resources that a request names, dispatch asks the broker's
    authorizer, and answers the request itself where the client lacks the right (`Api.refuse`). The other handlers ask
    about each resource that the request names."""

    def __init__(self, broker: Parts, routes: Mapping[int, Route], throttling: Throttling) -> None:
        self._broker = broker
        self._routes = routes
        self._throttling = throttling
        self._quotas = throttling.quotas
        self.counters = {key: ApiCounters() for key in routes}
        self._changing = frozenset(key for key, route in routes.items() if route.api.changes_metadata)
        self._hot = {
            (key, version): (route.serve, self.counters[key], is_flexible(key, version))
            for key, route in routes.items()
            if route.serve is not None
            for version in range((route.api.served or route.api.versions)[0], route.api.versions[1] + 1)
        }

    def dispatch(
        self, connection: Connection, frame: Memory, start: int, end: int, charge: Charge | None = None
    ) -> Reply:
        """Serves the request frame[start:end]. Raises ProtocolError where the connection must be closed.

        `charge` is this method's own: a request that is charged to a quota is dispatched again with it.
        """
        began = perf_counter_ns()
        key, version, correlation_id, client_id, position = read_request_header(frame, start, end)
        if self._quotas.enforced and charge is None and self._throttling.charges(connection, client_id):
            return self._charged(connection, key, client_id, frame, start, end)
        request = Request(key, version, correlation_id, client_id, connection)
        if charge is not None:
            request.charge = charge
        hot = self._hot.get((key, version))
        if hot is not None:
            serve, counters, flexible = hot
            counters.requests += 1
            counters.request_bytes += end - start
            if flexible:
                untagged = position < end and frame[position] == 0
                position = position + 1 if untagged else skip_tagged_fields(frame, position, end)
            reply = serve(self._broker, request, frame, position, end)
            if reply is POSTPONED:  # the same request is dispatched again later
                counters.requests -= 1
                counters.request_bytes -= end - start
            elif isinstance(reply, Pending):
                reply.answering = partial(_count_later, counters, began, perf_counter_ns())
            else:
                counters.answered((perf_counter_ns() - began) // 1000)
            return reply
        route = self._routes.get(key)
        if route is None or not route.api.serves(version):
            return self._unsupported(request, route)
        counters = self.counters[key]
        counters.requests += 1
        counters.request_bytes += end - start
        if is_flexible(key, version):
            position = skip_tagged_fields(frame, position, end)
        body = read_request(key, version, bytes(memoryview(frame)[position:end]))
        refuse = route.api.refuse
        if refuse is not None and not has_one_of(self._broker.authorizer, request, route.api.rights):
            if charge is not None:
                charge.exempt = False  # only requests of brokers are free
            refusal = _throttled(request, refuse(version, body))
            self._send(request, began, refusal, write_response(key, version, refusal))
            return request.pending
        if route.handle is not None:
            self._broker.spawn(metered(charge, self._handle(route.handle, request, body, began)))
            return request.pending
        assert route.taskless is not None  # requests of hot APIs, in the versions that are served, are answered above
        try:
            answer = route.taskless(self._broker, request, body)
        except Exception:  # a bug that one client met must not disturb the others
            self._cut_off(request)
            return None
        if answer.done():
            self._answer(request, began, answer)
        else:
            answer.add_done_callback(partial(self._answer, request, began))
        return request.pending

    def _charged(
        self, connection: Connection, key: int, client_id: str | None, frame: Memory, start: int, end: int
    ) -> Reply:
        """Dispatches a request that is charged, and measures the time."""
        charge = self._throttling.charge(connection, key, client_id, end - start)
        with charge.meter:
            reply = self.dispatch(connection, frame, start, end, charge)
            if key == PRODUCE and reply is not POSTPONED and not connection.closed:
                charge.produced()
        return reply

    def name_of(self, key: int) -> str:
        """Kafka's name of a served API, as Kafka's metrics and tools write it, such as ListOffsets."""
        return "".join(word.capitalize() for word in self._routes[key].api.name.split("_"))

    def _unsupported(self, request: Request, route: Route | None) -> Reply:
        if request.api_key == API_VERSIONS:
            return [response_frame(API_VERSIONS, 0, request.correlation_id, api_versions.unsupported())]
        name = api_key_map.get(request.api_key, "an unknown API")
        if route is None:
            raise ProtocolError(f"API {request.api_key} ({name}) isn't served here")
        lowest, highest = route.api.served or route.api.versions
        raise ProtocolError(f"version {request.api_version} of {name} isn't served: {lowest} to {highest} are")

    async def _handle(self, handle: Handler, request: Request, body: object, began: int) -> None:
        try:
            response = await handle(self._broker, request, body)
            if request.api_key in self._changing:
                await self._broker.applied_revisions.everywhere()
            response = _throttled(request, response)
            answer = write_response(request.api_key, request.api_version, response)
        except Exception:  # also a bug: without an answer, the connection is closed
            self._cut_off(request)
            return
        self._send(request, began, response, answer)

    def _answer(self, request: Request, began: int, answer: asyncio.Future[Response]) -> None:
        try:
            response = _throttled(request, answer.result())
            body = write_response(request.api_key, request.api_version, response)
        except (Exception, asyncio.CancelledError):  # also a bug; no other code reports a cancelled future
            self._cut_off(request)
            return
        self._send(request, began, response, body)

    def _send(self, request: Request, began: int, response: Response, body: bytes) -> None:
        key = request.api_key
        counters = self.counters[key]
        for error in _errors(response):
            counters.failed(error)
        self._broker.server.memory.answered(key, len(body))
        request.pending.answer([response_frame(key, request.api_version, request.correlation_id, body)])
        counters.answered((perf_counter_ns() - began) // 1000)

    def _cut_off(self, request: Request) -> None:
        """Closes the connection of a request that failed, because the client would wait for an answer for ever."""
        name = self.name_of(request.api_key)
        logger.exception("%s version %d from %s failed", name, request.api_version, request.client_host)
        request.connection.close("the request failed inside the broker")


def _throttled(request: Request, response: Response) -> Response:
    """The response with the time for which the client is throttled, if it is. An API without a field for the time
    leaves it out."""
    if request.charge is None or not (time_ms := request.charge.answered()):
        return response
    return {**response, "throttle_time": time_ms}


def _count_later(counters: ApiCounters, began_ns: int, waits_since_ns: int) -> None:
    now = perf_counter_ns()
    counters.answered_later((now - began_ns) // 1000, (now - waits_since_ns) // 1000)


def _errors(message: Mapping[str, Any]) -> Iterator[int]:
    """The error codes of a response and of its elements, other than 0."""
    for name, value in message.items():
        if name == "error_code":
            if value:
                yield value
        elif isinstance(value, list):
            for element in value:
                if isinstance(element, dict):
                    yield from _errors(element)
