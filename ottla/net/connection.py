"""One client's connection: it receives requests, and sends their answers in the order of the requests.

Bytes are received into a buffer that all connections share, and whole frames are served from there, without a copy.
Only an incomplete frame moves to memory of the connection's own, which is granted by a budget (`ottla.net.memory`). An
answer is sent by the callback that received the request: there is neither a task nor a queue in between. Requests that
have been received, and wait for answers before them, go on while a turn of the event loop has time for them; then they
wait in a queue, behind those of other connections (`ottla.net.turns`).

The `Pipeline` says which request may start, and which answer is next. While a request can't start, or the peer doesn't
receive its answers, nothing more is read. So a connection's memory has a bound: the requests (and their bytes) that may
be unanswered, one more frame, a few small answers, and the answers to one request.

A muted connection (`mute`) isn't read, either: its client is throttled. Bytes that have arrived already wait in memory
of the connection's own; no memory is taken for the rest of their frame.

There is one exception, because of TCP. When a socket's receive queue is full, Linux announces a window of zero and
drops packets beyond it, and with them the peer's acknowledgements of bytes that Linux has sent. So while nothing is
read, a peer that receives its answers may seem not to receive them. Therefore, if a connection has been full in both
directions for a moment, it reads the bytes that have arrived, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ottla.net.channel import Channel
from ottla.net.memory import SMALL_BYTES, Work
from ottla.net.metering import Meter, MeteredChannel
from ottla.net.outgoing import Outgoing
from ottla.net.pending import Pending
from ottla.net.pipeline import SIZE_BYTES, Pipeline, api_key_of, frame_bytes, frame_end
from ottla.protocol.errors import ProtocolError
from ottla.protocol.received import Memory

if TYPE_CHECKING:
    from ottla.net.server import Dispatch, Listener, Reply

logger = logging.getLogger(__name__)

LAZY_MEMORY_BYTES = 1024 * 1024
# After this time, a connection that is full in both directions reads the bytes that have arrived. Linux's first
# retransmission comes at about the same time.
FULL_SECONDS = 0.2
HELD_WHILE_FULL_BYTES_MAX = 1024 * 1024
QUEUED_PARTS_MAX = 32  # when this number of parts is queued, they are sent, and other connections are served first


class Postponed:
    """A handler's result in place of a reply: memory is short, so the request will be dispatched again later."""


POSTPONED = Postponed()


class Login(Protocol):
    """A login that a connection has to pass before its requests are served, and the rules for frames until then."""

    @property
    def frame_bytes_min(self) -> int:
        """The smallest frame that is accepted now."""

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that is accepted now."""

    @property
    def deadline(self) -> float:
        """The time of the event loop at which a connection that hasn't logged in is closed."""

    def dispatch(self, connection: Connection, frame: Memory, start: int, end: int) -> Reply:
        """Serves a frame in place of the server's `dispatch`. Calls `Connection.admit` at the end of the login."""


class Connection:
    """A connection of a client that is being served. `Listener` creates it; everything happens on the event loop.

    While `login` isn't None, only the login gets the connection's frames, one at a time. `principal` changes at the end
    of the login, so it is read anew for each request.
    """

    __slots__ = (
        "_blocked",
        "_channel",
        "_have",
        "_holding",
        "_inbox",
        "_looking",
        "_loop",
        "_meter",
        "_out",
        "_pipeline",
        "_queued",
        "_reading",
        "_server",
        "_unmuting",
        "_working",
        "by_token",
        "client_host",
        "client_software",
        "closed",
        "dispatch",
        "id",
        "idle_sweeps",
        "listener",
        "login",
        "principal",
    )

    def __init__(self, listener: Listener, channel: Channel, connection_id: int, client_host: str) -> None:
        self.id = connection_id
        self.listener = listener
        self._server = listener.server
        self.client_host = client_host
        self.client_software = ""
        self.principal = "User:ANONYMOUS"
        self.closed = False
        self.dispatch = listener.server.dispatch
        self.login: Login | None = None
        self.by_token = False  # whether the client has logged in by a delegation token
        self.idle_sweeps = 0
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._inbox: Memory | None = None
        self._have = 0
        self._out = Outgoing(channel, listener.server.disk_threads, self._go_on, self._unreadable)
        self._queued = self._out.parts
        self._holding = False  # whether the budget counts memory for this connection's answers
        self._pipeline = Pipeline(listener.server.limits, listener.server.pipelined)
        self._reading = True
        self._blocked = False  # a whole request waits in the inbox for the ones before it
        self._looking = False  # whether `_still_full` is due, which checks whether both directions stayed full
        self._working = False  # whether memory for work is granted, or is waited for
        self._meter: Meter | None = None
        self._unmuting: asyncio.TimerHandle | None = None  # due when the time is over for which the client is throttled
        channel.on_readable(self._readable)

    def hold_until(self, login: Login) -> None:
        """From now on `login` gets the frames, until it calls `admit`."""
        self.login = login
        self.dispatch = login.dispatch

    def admit(self, principal: str, dispatch: Dispatch | None = None, *, by_token: bool = False) -> None:
        """Ends the login: from now on the connection is that of `principal`, and `dispatch` (by default the server's)
        gets the frames. `by_token`: the login was by a delegation token."""
        self.by_token = by_token
        self.login = None
        self.principal = principal
        self.dispatch = self._server.dispatch if dispatch is None else dispatch

    # ---- in

    def _readable(self) -> None:
        self.idle_sweeps = 0
        inbox = self._inbox
        try:
            if inbox is None:
                shared = self._server.receive_buffer
                received = self._channel.receive_into(shared)
                if received:
                    self._take(shared, received)
                    return
            else:
                received = self._channel.receive_into(memoryview(inbox)[self._have :])
                if received:
                    self._have += received
                    if self._have == len(inbox):
                        if self._blocked:
                            self._pause()
                        else:
                            self._take_inbox()
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive failed: {error.strerror}")
            return
        self.close()

    def _take_inbox(self) -> None:
        inbox, have = self._inbox, self._have
        assert inbox is not None
        self._inbox = None
        self._have = 0
        self._take(inbox, have)
        # `_take` has moved the remaining bytes to other memory; the memory of the served frame is freed.

    def _take(self, buffer: Memory, end: int) -> None:
        """Serves the whole frames in buffer[:end] and keeps the rest."""
        self._blocked = False
        position = 0
        server = self._server
        memory = server.memory
        size_max = server.limits.frame_bytes_max
        others_turn = False
        pipeline = self._pipeline
        while True:
            try:
                if (login := self.login) is None:
                    next_position = frame_end(buffer, position, end, size_max)
                else:
                    next_position = frame_end(buffer, position, end, login.frame_bytes_max, login.frame_bytes_min)
            except ProtocolError as error:
                self.close(str(error))
                return
            if not next_position:
                break
            if len(self._queued) >= QUEUED_PARTS_MAX and not self._out.stopped:
                self._blocked = others_turn = True
                break
            start = position + SIZE_BYTES
            if (pipeline or self._queued or pipeline.muted or memory.large_answers) and not self._may_start(
                buffer, start
            ):
                if self.closed:
                    return
                self._blocked = True
                if self.login is None:
                    pipeline.hurry(api_key_of(buffer, start))
                break
            begun = self._serve(buffer, start, next_position)
            if self.closed:
                return
            if not begun:
                self._blocked = True
                break
            position = next_position
        if pipeline.muted and position < end:
            self._blocked = True
        if self._queued and not self._out.stopped:
            self._send()
            if self.closed:
                return
            server.busy_poll.answered()
            if self._blocked and not self._queued and (others_turn or not pipeline) and not pipeline.muted:
                # The next request was blocked only by the answers that were just sent.
                if not self._cut_served(buffer, position, end):
                    self._keep(buffer, position, end)
                server.resumes.wait(self._resume)
                return
        if self._blocked and not position and buffer is not server.receive_buffer:
            # The waiting frames stay in the memory that received them, and that the budget counts already.
            self._inbox, self._have = buffer, end
            self._pause()
            return
        if memory.used_bytes:
            memory.release(self, self._loop.time())
        if self._blocked and self._cut_served(buffer, position, end):
            return
        if position < end:
            self._keep(buffer, position, end)
        elif not self._reading:
            self._unpause()

    def _cut_served(self, buffer: Memory, position: int, end: int) -> bool:
        """Drops the served frames from the start of a long inbox, and keeps the rest in place. Returns False, and does
        nothing, if the rest is short or the served frames can't be dropped without a copy.

        After a connection was full in both directions, many small requests may wait in its inbox, each for the one
        before it. Without this method, the rest would be copied once for each of these requests.
        """
        if end - position <= len(self._server.receive_buffer) or not _cut(buffer, position):
            return False
        self._inbox, self._have = buffer, end - position
        self._server.memory.hold_frames(self, self._have, self._loop.time())
        self._pause()
        return True

    def _may_start(self, buffer: Memory, start: int) -> bool:
        memory = self._server.memory
        if self.login is not None:  # a message of a login needn't have an API key, and waits for the one before it
            return not (self._out.stopped or self.closed or self._pipeline)
        api_key = api_key_of(buffer, start)
        if self._out.stopped or self.closed or not self._pipeline.may_start(api_key):
            return False
        if api_key not in memory.large_answers:
            return True
        if self._queued:
            self._send()
            if self._out.stopped or self.closed:
                return False
        self._holding = True
        return memory.reserve_answer(self, api_key, self._loop.time(), self._granted)

    def _granted(self) -> None:
        self._server.resumes.wait(self._resume)

    def _serve(self, buffer: Memory, start: int, end: int) -> bool:
        """Dispatches a request. Returns False if the request has to wait for memory, or the connection was closed."""
        try:
            reply = self.dispatch(self, buffer, start, end)
        except ProtocolError as error:
            self.close(f"malformed request: {error}")
            return False
        except Exception:  # a bug that one client's request triggers mustn't harm the other clients
            logger.exception("request failed; connection %d from %s is closed", self.id, self.client_host)
            self.close()
            return False
        if isinstance(reply, Postponed):
            return False
        if self._working:  # memory for work was granted, but the request didn't need it after all
            self._working = False
            self._server.memory.forget_work(self, self._loop.time())
        if reply is None or self.closed:
            return True
        if isinstance(reply, Pending):
            if reply.parts is None or self._pipeline:
                self._pipeline.waits(reply, end - start)
            else:
                self._queued.extend(reply.parts)
        elif self._pipeline:
            done = Pending(self, api_key_of(buffer, start))
            done.parts = reply
            self._pipeline.waits(done, end - start)
        else:
            self._queued.extend(reply)
        return True

    def owns(self, frame: Memory) -> bool:
        """Whether the frame that is being served is in memory of this connection's own.

        Such memory is never used for another frame, so a view of it keeps its content.
        """
        return frame is not self._server.receive_buffer

    def begin_work(self, size_bytes: int, *, postponable: bool = True) -> Work | None:
        """Memory of `size_bytes` for background work on the request that is being served.

        If no memory is free, it returns None, and the request's reply must be POSTPONED. A request that isn't
        `postponable` gets the memory in any case.
        """
        memory, now = self._server.memory, self._loop.time()
        if postponable and not memory.reserve_work(self, size_bytes, now, self._granted):
            self._working = True
            return None
        self._working = False
        return memory.begin_work(self, size_bytes, now)

    def _keep(self, buffer: Memory, position: int, end: int) -> None:
        """Moves buffer[position:end], whose frames can't be served now, to memory of this connection's own."""
        have = end - position
        wanted = have if self._pipeline.muted else max(frame_bytes(buffer, position, end), have)
        memory = self._server.memory
        if wanted > max(have, SMALL_BYTES) and not memory.acquire(self, wanted, self._loop.time()):
            memory.wait(self, wanted, partial(self._memory_granted, wanted))
            capacity = have
        else:
            capacity = wanted
            if have > len(self._server.receive_buffer):
                memory.hold_frames(self, wanted, self._loop.time())
        inbox = _allocate(capacity)
        inbox[:have] = memoryview(buffer)[position:end]
        self._inbox = inbox
        self._have = have
        if have == capacity:
            self._pause()
        else:
            self._unpause()

    def _memory_granted(self, capacity: int) -> None:
        assert self._inbox is not None
        inbox = _allocate(capacity)
        inbox[: self._have] = self._inbox
        self._inbox = inbox
        self._unpause()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._channel.not_readable()
            self._look_if_full()

    def _look_if_full(self) -> None:
        """Schedules `_still_full` if both directions are full now."""
        if self._out.full and not self._reading and not self._looking:
            self._looking = True
            self._loop.call_later(FULL_SECONDS, self._still_full)

    def _still_full(self) -> None:
        """Reads the bytes that have arrived, if both directions are still full. The module's docstring says why."""
        self._looking = False
        held, inbox, shared, memory = self._have, self._inbox, self._server.receive_buffer, self._server.memory
        if self.closed or self._reading or not self._out.full or not self._blocked or inbox is None:
            return
        if held < HELD_WHILE_FULL_BYTES_MAX and memory.has_room(held + len(shared)):
            try:
                received = self._channel.receive_into(shared)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self.close(f"receive failed: {error.strerror}")
                return
            else:
                if not received:
                    return  # the peer sends no more, but may still take answers; `_readable` will see the end again
                self._inbox = bytearray(memoryview(inbox)[:held]) + memoryview(shared)[:received]
                self._have += received
                memory.hold_frames(self, self._have, self._loop.time())
        self._look_if_full()

    def _unpause(self) -> None:
        if not self._reading and not self.closed and not self._pipeline.muted:
            self._reading = True
            self._channel.on_readable(self._readable)

    # ---- throttling

    def mute(self, seconds: float) -> None:
        """Serves no further request for this time, because the client is throttled, and reads nothing from it. Answers
        are sent."""
        if self.closed:
            return
        self._pipeline.mute(self._loop.time() + seconds)
        self._pause()
        if self._unmuting is None:
            self._unmuting = self._loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        left = self._pipeline.unmute(self._loop.time())
        if left:  # the connection was muted again meanwhile
            self._unmuting = self._loop.call_later(left, self._unmute)
            return
        self._unmuting = None
        if self._inbox is None or self._have < len(self._inbox):
            self._unpause()
        if self._blocked:
            self._server.resumes.go_on(self._resume)

    def metered(self) -> Meter:
        """The stopwatch of the time that the event loop spends on this connection. From the first call on, the time in
        which bytes are moved is measured."""
        if self._meter is None:
            self._meter = Meter()
            self._channel = MeteredChannel(self._channel, self._meter)
            self._out.use(self._channel)
        return self._meter

    # ---- out

    def answered(self) -> None:
        """Called when the answer to a waiting request is ready. Sends the answers that are next in order."""
        if not self._pipeline.move_answers(self._queued):
            return
        if self._queued and not self._out.stopped:
            self._send()
        if self._blocked:
            self._server.resumes.go_on(self._resume)

    def may_go_on(self) -> None:
        """Called when a request that couldn't start may be able to start now."""
        self._server.resumes.wait(self._resume)

    def _resume(self) -> None:
        """Serves the requests in the inbox that waited for an answer before them."""
        if self._blocked and not self.closed and not self._out.stopped and self._inbox is not None:
            self._take_inbox()

    def _send(self) -> None:
        """Sends as many of the queued parts as can be sent now. `_go_on` is called when the others can be sent."""
        out = self._out
        was_stopped, was_full = out.stopped, out.full
        try:
            out.send()
        except OSError as error:
            self.close(f"send failed: {error.strerror}")
            return
        if out.stopped:
            if not was_stopped or (was_full and not out.full):
                self._hold_answers()
                self._look_if_full()
        elif self._holding and not self._pipeline:
            self._holding = False
            self._server.memory.answer_sent(self, self._loop.time())

    def _hold_answers(self) -> None:
        """Counts, in the budget, the memory of answers that can't be sent now, if it exceeds `SMALL_BYTES`.

        Ranges of files take no memory, so a connection that waits for a disk takes no room from other connections'
        answers.
        """
        held = self._out.held_bytes
        if held > SMALL_BYTES:
            self._holding = True
            self._server.memory.hold_answer(self, held, self._loop.time())
        elif self._holding and not self._pipeline:
            self._holding = False
            self._server.memory.answer_sent(self, self._loop.time())

    def _go_on(self) -> None:
        """Called when more bytes can be sent, or a piece of a file was read ahead. Continues to send and to serve."""
        self.idle_sweeps = 0
        self._send()
        if self._blocked and not self._out.stopped:
            self._server.resumes.go_on(self._resume)

    def _unreadable(self, error: BaseException) -> None:
        self.close(f"a file range of an answer can't be read from disk: {error}")

    def close(self, reason: str = "") -> None:
        """Closes the channel, and forgets the requests that wait for their answers."""
        if self.closed:
            return
        self.closed = True
        if reason:
            logger.info("connection %d from %s is closed: %s", self.id, self.client_host, reason)
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._out.close()
        self._channel.close()
        self._inbox = None
        self._server.memory.release(self, self._loop.time())
        self._server.memory.answer_sent(self, self._loop.time())
        self._server.memory.forget_work(self, self._loop.time())
        self._pipeline.forget()
        self.listener.connection_closed(self)

    @property
    def unanswered(self) -> int:
        """The number of requests that wait for their answer, or for the answers before theirs."""
        return len(self._pipeline)

    @property
    def waits_for_broker(self) -> bool:
        """Whether the connection waits for the broker and not for its peer.

        If so, the peer has received all answers that were ready. Either the connection is muted, or the peer has sent a
        whole request. Then the answer waits for a disk, or the request waits behind requests of the pipelined APIs,
        whose answers wait for brokers alone. (A JoinGroup also waits for other clients. If a peer sends requests behind
        its JoinGroup, the peer itself makes them wait.)
        """
        if self._out.stopped:
            return not self._out.full and (self._blocked or self._inbox is None)
        return self._pipeline.muted or (self._blocked and self._pipeline.waits_for_pipelined())

    @property
    def idle(self) -> bool:
        """Whether no request or answer is under way, or the peer doesn't receive its answers."""
        return self._out.full or (not self._pipeline and not self._queued)


def _allocate(size: int) -> Memory:
    """Memory for a frame. The pages for a large frame are taken from the system only when its bytes arrive, and are
    given back when the frame is dropped."""
    return bytearray(size) if size <= LAZY_MEMORY_BYTES else mmap.mmap(-1, size)


def _cut(buffer: Memory, position: int) -> bool:
    """Drops buffer[:position] without a copy. Returns False if the buffer can't be cut or a view of it exists."""
    if not isinstance(buffer, bytearray):
        return False
    try:
        del buffer[:position]
    except BufferError:
        return False
    return True
