"""An asyncio event loop on virtual time: same seed, same order of steps, and no waiting.

Time stands still while there are steps to run, and jumps to the next timer when there are none. Each step is a
callback. A step belongs to the simulated process in whose context it was scheduled, and runs only while that process
runs. A dead process's steps are dropped; a paused process's steps are kept until it goes on. So a process can die at
any `await`, and none of its code runs afterwards, not even `finally`.

The loop is deterministic where asyncio isn't. The hashes of tasks and futures follow the order in which they were first
put into a set, not their addresses. The work of threads (`run_in_executor`) runs in the loop's own thread, at a later
virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

STEP_S = 5e-6  # the duration of one turn of the loop, so that a task that only yields sees time pass

Callback = Callable[..., object]


class Stuck(Exception):
    """The simulation has no step left to run, or has made too many steps."""


class Process:
    """One operating system process. Steps that are scheduled within its `context` belong to it."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.dead = False
        self.paused = False
        self.parked: deque[Step] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.fuse = 0  # steps until `burnt` is called; 0: never
        self.burnt: Callable[[], None] = lambda: None
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
_serial = 0


def _next_serial() -> int:
    global _serial
    _serial += 1
    return _serial


class OrderedFuture(asyncio.Future[Any]):
    """A future whose place in a set doesn't depend on its address."""

    def __hash__(self) -> int:
        try:
            return self._serial  # type: ignore[has-type, no-any-return]
        except AttributeError:
            self._serial = _next_serial()
            return self._serial


class OrderedTask(asyncio.Task[Any]):
    """A task whose place in a set doesn't depend on its address."""

    def __hash__(self) -> int:
        try:
            return self._serial  # type: ignore[has-type, no-any-return]
        except AttributeError:
            self._serial = _next_serial()
            return self._serial


class Step:
    """A scheduled callback: the parts of `asyncio.TimerHandle` that asyncio uses, at a third of the cost."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "when_s")

    def __init__(self, when_s: float, callback: Callback, args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class SimulationLoop(asyncio.BaseEventLoop):
    """`random` decides how long threads take; `steps_max` bounds the run."""

    def __init__(self, random: Random, steps_max: int = 5_000_000) -> None:
        global _serial
        _serial = 0
        super().__init__()
        self.steps = 0
        self.executed = 0  # the number of calls that ran "in a thread"
        self._random = random
        self._steps_max = steps_max
        self._now = 0.0
        self._timers: list[tuple[float, int, Step]] = []
        self._timer_count = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> Step:
        step = Step(self._now, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(step)  # type: ignore[attr-defined]
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> Step:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> Step:
        """Schedules a step. Steps run in the order of their times; steps of the same time run in the order of the
        calls."""
        timer = Step(when, callback, args, contextvars.copy_context() if context is None else context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return OrderedFuture(loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = OrderedTask(coroutine, loop=loop, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.append(task)
            if len(process.tasks) > 1000:
                process.tasks = [task for task in process.tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Simulates a thread: the whole work is done in one step, later, unless the process dies before."""
        future = self.create_future()
        self.executed += 1
        self.call_later(self._random.expovariate(2000.0), _execute, future, func, args)
        return future

    def in_world(self, delay_s: float, callback: Callback, *args: Any) -> Step:
        """Schedules a step of the network, a disk, the store or a fault: such a step belongs to no process."""
        return self.call_at(self._now + delay_s, callback, *args, context=_WORLD)

    # ---- the methods that BaseEventLoop needs

    def _run_once(self) -> None:
        ready: deque[Step] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        self._now += STEP_S
        if not ready:
            while timers and timers[0][2].is_cancelled:
                heapq.heappop(timers)
            if not timers:
                if self._stopping:  # type: ignore[attr-defined]
                    return
                raise Stuck("nothing is scheduled any more")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer.is_cancelled:
                ready.append(timer)
        count = len(ready)
        self.steps += count
        if self.steps > self._steps_max:
            raise Stuck(f"{self.steps} steps")
        process_of = PROCESS
        for _ in range(count):
            step = ready.popleft()
            if step.is_cancelled:
                continue
            context = step.context
            process = context.get(process_of)
            if process is not None:
                if process.dead:
                    continue
                if process.paused:
                    process.parked.append(step)
                    continue
                if process.fuse:
                    process.fuse -= 1
                    if not process.fuse:
                        process.burnt()
                        if process.dead:
                            continue
            try:
                context.run(step.callback, *step.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"exception in {step.callback}", "exception": error})

    def resume(self, process: Process) -> None:
        """Lets a paused process go on, with the steps that were kept meanwhile."""
        process.paused = False
        self._ready.extend(process.parked)  # type: ignore[attr-defined]
        process.parked.clear()

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError

    # ---- readers and writers: `network` has the sockets

    sockets: dict[int, Any]

    def add_reader(self, fd: Any, callback: Callback, *args: Any) -> None:
        self.sockets[fd].reader = asyncio.Handle(callback, args, self, None)
        self.sockets[fd].check_readable()

    def remove_reader(self, fd: Any) -> bool:
        sock = self.sockets.get(fd)
        if sock is None or sock.reader is None:
            return False
        sock.reader = None
        return True

    def add_writer(self, fd: Any, callback: Callback, *args: Any) -> None:
        self.sockets[fd].writer = asyncio.Handle(callback, args, self, None)
        self.sockets[fd].check_writable()

    def remove_writer(self, fd: Any) -> bool:
        sock = self.sockets.get(fd)
        if sock is None or sock.writer is None:
            return False
        sock.writer = None
        return True


_WORLD = contextvars.Context()


def _execute(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = func(*args)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def run(random: Random, main: Callable[[SimulationLoop], Coroutine[Any, Any, Any]], steps_max: int = 5_000_000) -> Any:
    """Runs `main(loop)` to its end on a fresh loop."""
    loop = SimulationLoop(random, steps_max)
    loop.sockets = {}
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()
