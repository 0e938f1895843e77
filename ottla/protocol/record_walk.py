"""The walk over the records of a batch, which checks the header against the content, as Kafka's leader does. Pure.

A single bad batch in a topic would stop, for good, every consumer that reaches it. So no batch is appended that a
consumer can't read. A `RecordWalk` is fed the uncompressed records of one batch of format 2, in pieces that may be cut
anywhere. The walk keeps only a few numbers from one piece to the next, however large a record is.

    walk = walk_of(header, compacted=…, oldest=…, newest=…)
    for piece in pieces:        # of at most SLICE_BYTES if the event loop waits for the walk
        walk.feed(piece)        # or feed(data, start, end); raises at the first fault of the batch
    greatest = walk.finish()    # raises if records are missing
    walk.bad_keys, walk.bad_timestamps, walk.bad

As in Kafka, there are two kinds of faults:

- The *batch* is faulty, so that nothing after the fault can be read. `feed` or `finish` raises KafkaError
  invalid_record (invalid_timestamp for a timestamp of more than 64 bits). A batch must keep these rules: each record
  ends where its length says and where its fields end; a length is −1 (null) or at most the rest of the record; a header
  has a key; numbers have no more bits than their fields; timestamps fit into 64 bits; there are exactly as many records
  as the header states; their offset deltas rise up to the header's last one (in a producer's batch, whose last offset
  delta is the count less one, they are 0, 1, 2, …).
- Single *records* are faulty, and are named in the answer to the producer (KIP-467). Such a record has no key
  on a compacted topic (INVALID_RECORD), or has a timestamp out of bounds (INVALID_TIMESTAMP; −1 means no timestamp and
  is always allowed). `bad` holds (index, error code) of the first 1,000, `bad_keys` and `bad_timestamps` count all of
  them. These faults don't end the walk. Kafka answers INVALID_TIMESTAMP for the batch if any record has that fault,
  otherwise INVALID_RECORD.

`finish` returns the greatest timestamp that occurs, at least −1. If the header states another one, Kafka doesn't refuse
the batch; the broker corrects the header.

The walk refuses every batch that Kafka refuses. It also refuses batches that Kafka accepts and some client's consumer
couldn't read: offset deltas with gaps or repetitions, lengths below −1, numbers with more bits than their field has,
timestamps that overflow, and, in compressed batches, bytes after the fields of a record.

There are two forms of the class. The native one (`_record_walk.c`, some 6 ns a record) is in use if a compiler was
there when Ottla was installed. Its twin in Python (`record_walk_twin`, some 1.7 µs a record) is the specification of
both. `NATIVE` says which form is in use.

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
"""The sentence that a broker logs at its start if the walk in Python is used."""

SLICE_BYTES = (1 << 20) if NATIVE else (1 << 15)
"""The most bytes to feed in one call on the event loop: the walk over them takes at most some 10 ms, whatever
the records are like."""

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def walk_of(header: BatchHeader, *, compacted: bool, oldest: int = _LEAST, newest: int = _GREATEST) -> RecordWalk:
    """A walk over the records of the batch with `header`.

    `compacted` says whether the topic refuses records without a key. `oldest` and `newest` are the bounds of
    timestamps, in ms and inclusive (a topic of LogAppendTime has no bounds). If the batch itself is of LogAppendTime,
    each of its records has the header's greatest timestamp.
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
