"""Connections share the threads that inspect batches: the order in which connections get a thread for some milliseconds
(a turn), and that a closed connection keeps no thread."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import cramjam
import pytest

from ottla.broker.admission import AdmissionRules, admit
from ottla.broker.contents import Inspection, loop_cost, memory_bytes
from ottla.broker.inspectors import Inspectors
from ottla.broker.loop_quota import HANDED_OVER_BYTES, THREAD_MICROSECONDS, LoopQuota, bytes_in
from ottla.protocol.codecs import XERIAL_MAGIC, Codec, compress
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.packed_heads import BLOCK_BYTES_MIN
from ottla.protocol.record_walk import SLICE_BYTES
from tests.fuzz.made_batches import seal
from tests.unit.broker.log.workbench import batch_of

TURN_BYTES = bytes_in(THREAD_MICROSECONDS, Codec.lz4)
RULES = AdmissionRules()
THREADS = 2


class Scripted:
    """An inspection that takes `turns` turns, and notes each of them."""

    codec = Codec.lz4

    def __init__(self, name: str, turns: int, history: list[str]) -> None:
        self._name = name
        self._turns = turns
        self._history = history

    def go_on(self, quota_bytes: int) -> Any:
        assert quota_bytes == TURN_BYTES
        self._history.append(self._name)
        self._turns -= 1
        return None if self._turns else self._name


class Threads(Executor):
    """An executor of THREADS threads, whose oldest task ends when the test calls `end_one`."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        assert not more
        assert len(self.held) < THREADS, "more tasks than threads"
        future: Future[Any] = Future()
        self.held.append((future, work, arguments))
        return future

    def end_one(self) -> None:
        future, work, arguments = self.held.pop(0)
        if future.set_running_or_notify_cancel():
            future.set_result(work(*arguments))


def play(scene: Callable[[Inspectors, Threads], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        threads = Threads()
        await scene(Inspectors(threads, THREADS), threads)

    asyncio.run(main())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def see_through(inspectors: Inspectors, threads: Threads, honest: Any) -> None:
    """Ends the threads' tasks one after the other until the inspection of another connection is done."""
    waiting = asyncio.ensure_future(inspectors.look("another connection", honest))
    await settle()
    while not waiting.done():
        threads.end_one()
        await settle()


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_four_bombs_do_not_hold_the_threads() -> None:
    async def scene(inspectors: Inspectors, threads: Threads) -> None:
        history: list[str] = []
        bombs: list[Any] = [Scripted(f"bomb {number}", 1000, history) for number in range(4)]
        tasks = [asyncio.ensure_future(inspectors.look(number, bomb)) for number, bomb in enumerate(bombs)]
        await settle()
        await see_through(inspectors, threads, Scripted("honest", 1, history))
        assert len(history) <= 2 + len(bombs) + 1, "at most one turn of each other connection"
        await cancel(tasks)

    play(scene)


def test_a_connection_of_many_bombs_gets_no_more_turns_than_one_of_one() -> None:
    async def scene(inspectors: Inspectors, threads: Threads) -> None:
        history: list[str] = []
        bombs: list[Any] = [Scripted("bomb", 1000, history) for _ in range(20)]
        tasks = [asyncio.ensure_future(inspectors.look("bomber", bomb)) for bomb in bombs]
        await settle()
        assert len(threads.held) == THREADS, "with no other connection it has all threads"
        await see_through(inspectors, threads, Scripted("honest", 5, history))
        assert history.count("bomb") <= 5 + THREADS
        await cancel(tasks)

    play(scene)


def test_who_goes_away_while_it_waits_or_has_just_got_a_thread_keeps_none() -> None:
    async def scene(inspectors: Inspectors, threads: Threads) -> None:
        history: list[str] = []
        scripted: list[Any] = [Scripted(str(number), 1, history) for number in range(6)]
        tasks = [asyncio.ensure_future(inspectors.look(number, each)) for number, each in enumerate(scripted)]
        await settle()
        tasks[2].cancel()  # it still waits for a thread
        threads.end_one()
        tasks[3].cancel()  # it may have got the first task's thread already
        await settle()
        while threads.held:
            threads.end_one()
            await settle()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each for each in done if isinstance(each, str)] == ["0", "1", "4", "5"]
        last: Any = Scripted("last", 1, history)
        again = [asyncio.ensure_future(inspectors.look("x", last)), asyncio.ensure_future(inspectors.look("y", last))]
        await settle()
        assert len(threads.held) == THREADS, "all threads are free again"
        await cancel(again)

    play(scene)


def test_a_batch_that_fails_gives_its_thread_back() -> None:
    class Fails(Scripted):
        def go_on(self, quota_bytes: int) -> Any:
            raise KafkaError(ErrorCode.invalid_record)

    class AtOnce(Executor):
        def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(work(*arguments))
            except KafkaError as error:
                future.set_exception(error)
            return future

    async def main() -> None:
        inspectors = Inspectors(AtOnce(), 1)
        for _ in range(3):
            failing: Any = Fails("", 1, [])
            with pytest.raises(KafkaError):
                await inspectors.look("x", failing)

    asyncio.run(main())


@pytest.mark.parametrize("codec", [Codec.gzip, Codec.snappy, Codec.lz4, Codec.zstd])
def test_a_valid_batch_that_unpacks_large_is_accepted_turn_by_turn(codec: Codec) -> None:
    value = bytes(8 << 20)
    batch = batch_of([value] * 6, codec=codec)
    rules = AdmissionRules(message_bytes_max=16 << 20)
    inspection = Inspection(*admit(batch, 0, len(batch), rules, 9, 1_000_000), rules, 1_000_000)
    turns = 1
    while inspection.go_on(1 << 20) is None:
        turns += 1
        assert inspection.unpacked_bytes <= turns * (2 << 20) + (48 << 20) * (codec == Codec.snappy)
    assert turns >= 20
    assert inspection.unpacked_bytes >= 48 << 20


@pytest.mark.parametrize("wanted", [None, *(codec for codec in Codec if codec)])
def test_a_turn_ends_among_empty_blocks(wanted: Codec | None) -> None:
    """A Snappy block without data takes as long as a block of some KiB, and counts as one."""
    payload = XERIAL_MAGIC + struct.pack(">ii", 1, 1) + struct.pack(">ib", 1, 0) * 50_000
    batch = bytearray(seal(payload, 1, 1_000_000, codec=Codec.snappy))
    inspection = Inspection(*admit(batch, 0, len(batch), RULES, 9, 1_000_000), RULES, 1_000_000, wanted)
    for turn in range(1, 40):
        assert inspection.go_on(1 << 20) is None
        assert inspection.unpacked_bytes <= turn * (1 << 20) + turn * 2 * BLOCK_BYTES_MIN
    with pytest.raises(KafkaError):
        inspection.go_on(100 << 20)


@pytest.mark.parametrize("codec", [Codec.lz4, Codec.zstd])
def test_a_turn_ends_among_the_heads_of_blocks_of_one_byte(codec: Codec) -> None:
    """The headers of all compressed blocks are read before any block is unpacked. Before the fix, a thread read all
    100,000 headers without a break."""
    if codec == Codec.lz4:
        payload = compress(codec, b"")[:7] + b"\x01\x00\x00\x80x" * 100_000 + bytes(4)
    else:
        payload = b"\x28\xb5\x2f\xfd\x00\x58" + b"\x0a\x00\x00x" * 100_000 + b"\x01\x00\x00"
    batch = bytearray(seal(payload, 1, 1_000_000, codec=codec))
    inspection = Inspection(*admit(batch, 0, len(batch), RULES, 9, 1_000_000), RULES, 1_000_000)
    for turn in range(1, 40):
        assert inspection.go_on(1 << 20) is None
        assert inspection.unpacked_bytes <= turn * (1 << 20) + turn * 2 * BLOCK_BYTES_MIN
    with pytest.raises(KafkaError):
        inspection.go_on(100 << 20)


def test_what_is_too_much_is_known_without_looking_at_the_rest() -> None:
    quota = LoopQuota(lambda renew: None)
    sizes = iter([(Codec.zstd, quota.bytes_left(Codec.zstd) + 100), (Codec.zstd, 1), None])
    assert not quota.fits(sizes)
    assert next(sizes) == (Codec.zstd, 1)
    assert not quota.fits([None])


def test_the_loops_quota_is_renewed_once_a_turn() -> None:
    renewals: list[Callable[[], None]] = []
    quota = LoopQuota(renewals.append)
    whole = quota.bytes_left(Codec.lz4)
    assert quota.fits([(Codec.lz4, whole // 2), (Codec.gzip, quota.bytes_left(Codec.gzip) // 2)])
    assert not quota.fits([(Codec.lz4, whole // 2), (Codec.gzip, quota.bytes_left(Codec.gzip) // 2 + 100)])
    for _ in range(3):
        quota.spend(Codec.lz4, whole // 3)
    assert quota.bytes_left(Codec.lz4) < 10
    quota.spend(Codec.lz4, whole)
    assert quota.bytes_left(Codec.gzip) == 0
    [renew] = renewals
    renew()
    assert quota.bytes_left(Codec.lz4) == whole


def test_what_has_no_codec_takes_nothing_from_what_is_unpacked() -> None:
    """Otherwise, while hundreds of connections sent a small batch without a codec each, every compressed batch would go
    to a thread.
    """
    quota = LoopQuota(lambda renew: None)
    whole = quota.bytes_left(Codec.lz4)
    quota.spend_plain(int(quota.plain_left))
    assert quota.bytes_left(Codec.lz4) == whole
    assert quota.fits([(Codec.lz4, whole // 2), (Codec.none, HANDED_OVER_BYTES)])
    assert not quota.fits([(Codec.lz4, whole // 2), (Codec.none, HANDED_OVER_BYTES + 1)])


def test_the_loops_next_turn_is_not_asked_for_before_an_eighth_of_this_one_is_spent() -> None:
    """The quota is renewed by a callback on the event loop. A callback for each small batch would cost more than the
    batch itself.
    """
    renewals: list[Callable[[], None]] = []
    quota = LoopQuota(renewals.append)
    whole = quota.plain_left
    for _ in range(12):
        quota.spend_plain(int(whole / 100))
    assert not renewals
    quota.spend_plain(int(whole / 100))
    assert quota.plain_left == pytest.approx(whole * 0.87)
    [renew] = renewals
    renew()
    assert quota.plain_left == whole
    quota.spend_plain(int(whole))
    assert len(renewals) == 2


def test_what_stands_behind_a_batch_hides_neither_its_memory_nor_its_time() -> None:
    """The bytes behind a batch are cut off before the batch is inspected. Before the fix, 22 MB for a block of Snappy
    weren't counted, and a long batch with bytes behind it counted as one that is too large to be inspected."""
    block = bytes(cramjam.snappy.compress_raw(bytes(8_000_000)))
    packed = bytearray(batch_of([b""]))[:61] + XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(block)) + block
    packed[8:12] = struct.pack(">i", len(packed) - 12)
    packed[22] |= Codec.snappy
    needed = memory_bytes(memoryview(packed), None, 1 << 20)
    assert needed > 8_000_000
    assert memory_bytes(memoryview(packed + b"x"), None, 1 << 20) == needed
    long = bytearray(batch_of([bytes(2 * SLICE_BYTES)]))
    rules = AdmissionRules(message_bytes_max=len(long))
    for batch in (long, long + b"x"):
        quota = LoopQuota(lambda renew: None)
        assert loop_cost(memoryview(batch), rules, quota, quota.plain_left) is None
