"""The walk over the records of a batch: the header against the content, as Kafka's leader checks it. Pure.

One bad batch in a topic stops every consumer behind it for good, so that nothing is appended that a consumer can't
read. A `RecordWalk` is fed the uncompressed records of one batch of format 2, in pieces that may be cut anywhere; it
keeps no more of them than a few numbers, however large a record is.

    walk = walk_of(header, compacted=…, oldest=…, newest=…)
    for piece in pieces:        # of at most SLICE_BYTES where the event loop waits
        walk.feed(piece)        # or feed(data, start, end); raises at the first fault of the batch
    greatest = walk.finish()    # raises where records are missing
    walk.bad_keys, walk.bad_timestamps, walk.bad

Two kinds of things can be wrong, as in Kafka:

- The *batch* is wrong, so that nothing after the fault can be read: KafkaError invalid_record from `feed` or `finish`.
  Each record ends where its length says and its fields do, a length is −1 (null) or no more than what is left of the
  record, a header has a key, numbers have the bits of their fields, timestamps fit 64 bits, and there are exactly as
  many records as the header states, with offset deltas that rise up to the header's last one (in a producer's batch,
  whose last offset delta is the count less one: 0, 1, 2, …).
- *Records* are wrong, and are named so that the producer can be told which (KIP-467): one without a key on a compacted
  topic (INVALID_RECORD), one with a timestamp out of bounds (INVALID_TIMESTAMP; −1 is no timestamp and always within).
  `bad` holds (index, error code) of the first 1,000, `bad_keys` and `bad_timestamps` count all. They don't end the
  walk. Kafka answers INVALID_TIMESTAMP for the batch where any record has one, otherwise INVALID_RECORD.

`finish` returns the greatest timestamp that occurs, −1 or above. Kafka doesn't refuse a header that states another one:
the broker corrects it.

What Kafka refuses is refused. Beyond Kafka, so are batches that some client's consumer couldn't read: offset deltas
with gaps or repetitions, lengths below −1, numbers with more bits than their field has, timestamps that overflow, and,
in compressed batches, bytes after the fields of a record.

Two forms of the class exist: the native one (`_record_walk.c`, some 6 ns a record), where a compiler was at hand when
Ottla was installed, and its twin in Python (`record_walk_twin`, some 1.7 µs a record), which says what both mean.
`NATIVE` tells which is in use.

Source: Kafka's LogValidator, DefaultRecord and DefaultRecordBatch; KIP-467.
"""

from __future__ import annotations

from .batches import BatchHeader
from .record_walk_twin import NAMED_MAX

try:
    from ._record_walk import RecordWalk

    NATIVE = True
except ImportError:
    from .record_walk_twin import RecordWalk  # type: ignore[assignment]

    NATIVE = False

__all__ = ["NAMED_MAX", "NATIVE", "SLICE_BYTES", "WITHOUT_NATIVE", "RecordWalk", "walk_of"]

WITHOUT_NATIVE = (
    "the native walk of records isn't there, because it couldn't be compiled when Ottla was installed: its twin in "
    "Python checks what producers send, and takes about 1.7 µs a record in place of 0.01; install gcc and Python's "
    "headers, and then Ottla again (OTTLA_NATIVE=require makes pip say what is missing)"
)
"""What a broker's log says at the start where the twin serves."""

SLICE_BYTES = (1 << 20) if NATIVE else (1 << 15)
"""What may be fed in one go where the event loop waits: at most some 10 ms, whatever the records are like."""

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def walk_of(header: BatchHeader, *, compacted: bool, oldest: int = _LEAST, newest: int = _GREATEST) -> RecordWalk:
    """A walk over the records of the batch with `header`.

    `compacted`: whether the topic refuses records without a key. `oldest` and `newest`: the bounds of timestamps, in
    ms and inclusive (for a topic of LogAppendTime there are none). Where the batch is of LogAppendTime, each of its
    records has the header's greatest timestamp.
    """
    append_time = header.log_append_time
    return RecordWalk(
        header.count,
        header.last_offset_delta,
        header.max_timestamp if append_time else header.base_timestamp,
        append_time,
        compacted,
        max(oldest, _LEAST),
        min(newest, _GREATEST),
    )
