"""A log with transactions, compared with a list of its batches and markers, whatever happens to it: what is open, the
first unstable offset, and what a reader of committed records is told and sees."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.broker.log.compaction_child import Job, compact
from ottla.broker.log.compactor import _ending_later
from ottla.broker.log.config import MAX_LONG, LogConfig
from ottla.broker.log.log import Log
from ottla.broker.log.segment import Sizes
from ottla.protocol.batches import Record, build_batch, iterate_headers, records
from ottla.protocol.markers import Marker, marker_batch, read_marker
from ottla.storage.indexes import AbortedTransaction
from tests.unit.broker.log.workbench import Workbench, append
from tests.unit.examples import examples

CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact"}),
    file_delete_delay_ms=0,
    producer_id_expiration_ms=MAX_LONG,
    delete_retention_ms=10,
)
NOBODY = -1
producers = st.integers(1, 4)


class Event(NamedTuple):
    """One batch of one record: data in a transaction, other data, or a marker."""

    kind: str  # "data", "plain", "commit" or "abort"
    producer: int
    epoch: int
    coordinator_epoch: int


class Transaction(NamedTuple):
    """A transaction with data in the model."""

    producer: int
    first: int
    marker: int | None
    committed: bool
    stable: int  # as the transaction index says it


def transactions(log: list[Event]) -> list[Transaction]:
    """The transactions with data, in the order of their markers; open ones last."""
    found = []
    still_open: dict[int, int] = {}
    for offset, event in enumerate(log):
        if event.kind == "data":
            still_open.setdefault(event.producer, offset)
        elif event.kind != "plain" and event.producer in still_open:
            first = still_open.pop(event.producer)
            stable = min(still_open.values(), default=offset + 1)
            found.append(Transaction(event.producer, first, offset, event.kind == "commit", stable))
    return found + [Transaction(producer, first, None, False, -1) for producer, first in still_open.items()]


def told(log: list[Event], offset: int, end: int) -> list[AbortedTransaction]:
    """The aborted transactions for a reader of the records from `offset` up to `end`: Kafka's rule."""
    found = []
    for each in transactions(log):
        if each.marker is None or each.committed:
            continue
        if each.marker >= offset and each.first < end:
            found.append(AbortedTransaction(each.producer, each.first, each.marker, each.stable))
        if each.stable >= end:
            break
    return found


def committed_offsets(log: list[Event], end: int) -> set[int]:
    """The offsets of the records that a reader of committed records sees below `end`."""
    hidden = [each for each in transactions(log) if not each.committed]
    return {
        offset
        for offset, event in enumerate(log[:end])
        if event.kind == "plain"
        or (
            event.kind == "data"
            and not any(
                each.producer == event.producer
                and each.first <= offset
                and (each.marker is None or offset < each.marker)
                for each in hidden
            )
        )
    }


def seen(log: Log, offset: int, end: int) -> Iterator[int]:
    """The offsets of the records that a client sees, as Kafka's clients filter what they have fetched."""
    waiting = sorted(log.aborted_between(offset, end), key=lambda each: each.first_offset)
    aborting: set[int] = set()
    data = log.read_bytes(offset, 1 << 20, end)
    for position, header in iterate_headers(data):
        if header.base_offset >= end:
            return
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        batch = data[position : position + header.size]
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield from (record.offset for record in records(batch) if record.offset >= offset)


class TransactionalLog(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.bench = Workbench(Path(self.directory.name) / "t-0", config=CONFIG)
        self.log = self.bench.log()
        self.model: list[Event] = []
        self.high_watermark = self.forgotten = self.compacted_to = 0
        self.sequences: dict[tuple[int, int], int] = {}

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()

    # ---- the model

    def epoch_of(self, producer: int) -> int:
        return max((event.epoch for event in self.model if event.producer == producer), default=0)

    def is_open(self, producer: int) -> bool:
        return any(each.producer == producer and each.marker is None for each in transactions(self.model))

    def first_unstable(self, forgotten: int = 0) -> int:
        """The model's first unstable offset, without transactions whose markers are below `forgotten`."""
        return min(
            (
                each.first
                for each in transactions(self.model)
                if each.marker is None or each.marker >= max(self.high_watermark, forgotten)
            ),
            default=1 << 62,
        )

    # ---- what happens

    def _append(self, event: Event, batch: bytearray) -> None:
        assert append(self.log, batch) == len(self.model)
        self.model.append(event)

    @rule(producer=producers, key=st.sampled_from([b"a", b"b"]))
    def data(self, producer: int, key: bytes) -> None:
        self._data("data", producer, key)

    @rule(producer=st.just(NOBODY) | producers, key=st.sampled_from([b"a", b"b"]))
    def plain(self, producer: int, key: bytes) -> None:
        if producer == NOBODY or not self.is_open(producer):
            self._data("plain", producer, key)

    def _data(self, kind: str, producer: int, key: bytes) -> None:
        epoch = -1 if producer == NOBODY else self.epoch_of(producer)
        sequence = -1
        if producer != NOBODY:
            sequence = self.sequences.get((producer, epoch), 0)
            self.sequences[producer, epoch] = sequence + 1
        record = Record(0, 1000 + len(self.model), key, b"value")
        batch = build_batch(
            [record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=kind == "data"
        )
        self._append(Event(kind, producer, epoch, -1), bytearray(batch))

    @rule(producer=producers, committed=st.booleans(), bumped=st.booleans(), repeated=st.booleans())
    def marker(self, producer: int, committed: bool, bumped: bool, repeated: bool) -> None:
        if not repeated and not self.is_open(producer):
            return
        epoch = self.epoch_of(producer) + bumped
        made = Marker(committed, len(self.model), 1000 + len(self.model))
        kind = "commit" if committed else "abort"
        self._append(Event(kind, producer, epoch, len(self.model)), marker_batch(producer, epoch, made))

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        self.high_watermark += int((len(self.model) - self.high_watermark) * share)

    @rule(asked=st.booleans(), share=st.floats(0, 1))
    def truncate(self, asked: bool, share: float) -> None:
        """Truncates the log above the high watermark or, if `asked`, maybe below it, as after an unclean election."""
        least = self.compacted_to if asked else self.high_watermark
        end = int(least + (len(self.model) - least) * share)
        self.log.truncate_to(end)
        del self.model[end:]
        self.high_watermark = min(self.high_watermark, end)
        self.forgotten = min(self.forgotten, end)

    @rule(clean=st.booleans(), flushed=st.booleans(), known=st.booleans())
    def restart(self, clean: bool, flushed: bool, known: bool) -> None:
        if flushed:
            self.log.flush()
        recovery_point = self.log.recovery_point
        if clean:
            self.log.close()
        opened = self.bench.open(
            clean=clean,
            recovery_point=recovery_point,
            compacted_to=self.compacted_to,
            high_watermark=self.high_watermark if known else 0,
        )
        assert opened.damage is None
        self.log = opened.log
        self.forgotten = len(self.model)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(later=st.booleans())
    def compaction(self, later: bool) -> None:
        self.bench.now_ms += 1000 * later
        log = self.log
        unstable = log.producers.first_unstable_offset(self.high_watermark)
        stable = self.high_watermark if unstable is None else min(self.high_watermark, unstable)
        ends = [segment.base_offset for segment in log.segments[1:]]
        among = [(segment, end) for segment, end in zip(log.segments, ends, strict=False) if end <= stable]
        if not among:
            return
        job = Job(
            directory=log.directory,
            segments=[[segment.base_offset, end, segment.size, segment.offsets.size_bytes] for segment, end in among],
            first_dirty=self.compacted_to,
            end_offset=among[-1][1],
            now_ms=self.bench.now_ms,
            delete_retention_ms=10,
            segment_bytes=CONFIG.segment_bytes,
            segment_index_bytes=CONFIG.segment_index_bytes,
            index_interval_bytes=CONFIG.index_interval_bytes,
            aborted=_ending_later(log, among[-1][1]),
            producers=[[key, entry.last_offset, entry.epoch] for key, entry in log.producers.items()],
            keys_max=1000,
            bytes_per_second=float("inf"),
        )
        before = set(self.visible())
        result = compact(job, self.bench.disk, lambda count: None)
        for segment in result.segments:
            log.swap_in(segment.old_bases, Sizes(*segment.sizes))
        log.compacted_to = self.compacted_to = max(self.compacted_to, result.end_offset)
        self.bench.sweep()
        assert set(self.visible()) <= before
        assert {key: max(at) for key, at in self._by_key(before).items()} == {
            key: max(at) for key, at in self._by_key(set(self.visible())).items()
        }

    def _by_key(self, offsets: set[int]) -> dict[bytes | None, list[int]]:
        """Those of the visible `offsets` that the log still has, by the record's key."""
        found: dict[bytes | None, list[int]] = {}
        for segment in self.log.segments:
            for _, _, batch in segment.batches():
                for record in records(batch):
                    if record.offset in offsets:
                        found.setdefault(record.key, []).append(record.offset)
        return found

    def visible(self) -> Iterator[int]:
        offset = self.log.segments[0].base_offset
        for segment, end in zip(
            self.log.segments, [*self.log.segments.bases[1:], self.log.log_end_offset], strict=True
        ):
            stop = min(end, self.stable)
            if max(offset, segment.base_offset) < stop:
                yield from seen(self.log, segment.base_offset, stop)

    @property
    def stable(self) -> int:
        found = self.log.producers.first_unstable_offset(self.high_watermark)
        return self.high_watermark if found is None else min(self.high_watermark, found)

    # ---- what holds

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        assert log.log_end_offset == len(model)
        found = transactions(model)
        still_open = sorted((each.first, each.producer) for each in found if each.marker is None)
        assert log.producers.transactions.open_transactions() == still_open
        first = log.producers.first_unstable_offset(self.high_watermark)
        unstable = 1 << 62 if first is None else first
        assert self.first_unstable() <= unstable <= self.first_unstable(self.forgotten)
        self.producers_agree({producer: first for first, producer in still_open})
        visible = set(self.visible())
        assert visible <= committed_offsets(model, self.stable)
        if not self.compacted_to:
            assert visible == committed_offsets(model, self.stable)
            for offset in range(0, len(model), 3):
                for end in range(offset + 1, self.stable + 1, 4):
                    assert log.aborted_between(offset, end) == told(model, offset, end)
        for segment in log.segments:
            path = Path(segment.path.replace(".log", ".txnindex"))
            assert path.exists() == bool(segment.aborted is not None and segment.aborted.stored_bytes)

    def producers_agree(self, starts: dict[int, int]) -> None:
        known = dict(self.log.producers.items())
        for producer in range(1, 5):
            events = [event for event in self.model if event.producer == producer]
            entry = known.get(producer)
            if not events:
                assert entry is None
                continue
            if entry is None:
                assert self.compacted_to, "only compaction removes all batches of a producer"
                continue
            assert entry.transaction_start == starts.get(producer, -1)
            epochs = [event.coordinator_epoch for event in events if event.coordinator_epoch >= 0]
            if not self.compacted_to:
                assert entry.epoch == events[-1].epoch
                assert entry.coordinator_epoch == (epochs[-1] if epochs else -1)


TestTransactionalLog = TransactionalLog.TestCase
TestTransactionalLog.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
