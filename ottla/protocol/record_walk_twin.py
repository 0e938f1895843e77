"""The walk over a batch's records, in Python. Pure.

This module is the specification of the walk, and the form in use on machines without a compiler. `_record_walk.c` is
the native form. `ottla.protocol.record_walk` says which form is in use, and describes both. Tests check that both forms
give the same verdict on any bytes, cut in any way. A rule is changed here first.

The walk is a state machine over single numbers. A record is a row of numbers (zigzag varints), some of which are
followed by as many bytes of content, which are passed over:

    length i32 | attributes i8 | timestamp delta i64 | offset delta i32 | key length i32, key |
    value length i32, value | number of headers i32 | for each: key length i32, key, value length i32, value

If a piece ends inside a number, the bits that have been read are kept. If a piece ends inside content, the number of
bytes to pass over is kept. Nothing else is kept of a piece.
"""

from __future__ import annotations

from .errors import ErrorCode
from .received import Buffer
from .record_faults import Fault, refusal

NAMED_MAX = 1000
"""The greatest number of bad records of one batch that are named. Further bad records are only counted."""

_NO_TIMESTAMP = -1
_INVALID_RECORD = int(ErrorCode.invalid_record)
_INVALID_TIMESTAMP = int(ErrorCode.invalid_timestamp)

# The number that is read next.
_LENGTH, _ATTRIBUTES, _TIMESTAMP, _OFFSET, _KEY, _VALUE, _HEADERS, _HEADER_KEY, _HEADER_VALUE = range(9)


class RecordWalk:
    """Walks over the uncompressed records of one batch, which arrive in pieces. See `ottla.protocol.record_walk`."""

    def __init__(
        self,
        count: int,
        last_offset_delta: int,
        base_timestamp: int,
        log_append_time: bool,
        compacted: bool,
        oldest: int,
        newest: int,
        /,
    ) -> None:
        self.max_timestamp = _NO_TIMESTAMP
        self.bad_keys = 0
        self.bad_timestamps = 0
        self.bad: list[tuple[int, int]] = []
        self._count = count
        self._base_timestamp = base_timestamp
        self._log_append_time = log_append_time
        self._compacted = compacted
        self._oldest = oldest
        self._newest = newest
        self._index = 0  # the index of the record that is being read
        self._offset = -1  # the last record's offset delta
        self._spare = last_offset_delta - (count - 1)  # offsets of the batch that no record has
        self._field = _LENGTH
        self._raw = 0  # the bits, so far, of the number that is being read
        self._shift = 0  # the count of these bits
        self._skip = 0  # bytes of content to pass over
        self._left = 0  # bytes of the record that haven't been read or passed over
        self._headers = 0  # headers of the record that haven't been read
        self._time = 0  # the record's timestamp
        self._fault: Fault | None = None

    def feed(self, data: Buffer, start: int = 0, end: int | None = None, /) -> None:
        """Walks over the next bytes of the batch's records, which are data[start:end].

        Raises KafkaError at the batch's first fault, and in every later call: invalid_timestamp for a timestamp of more
        than 64 bits, invalid_record for any other fault.
        """
        if end is None:
            end = len(data)
        if not 0 <= start <= end <= len(data):
            raise ValueError(f"bytes {start} to {end} aren't within a piece of {len(data)} bytes")
        if self._fault is not None:
            raise refusal(self._fault, self._index, self._count)
        fault = self._read(data, start, end)
        if fault is not None:
            self._fault = fault
            raise refusal(fault, self._index, self._count)

    def finish(self) -> int:
        """Ends the walk, after all bytes have been fed. Returns the greatest timestamp, at least −1 (no timestamp).

        Raises KafkaError: invalid_record if records are missing, or the error of an earlier fault again.
        """
        if self._fault is None and (self._skip or self._index != self._count):
            self._fault = Fault.ends_early
            if self._skip and self._field == _LENGTH:  # the bytes end inside a record's last content, after all numbers
                self._index -= 1
        if self._fault is not None:
            raise refusal(self._fault, self._index, self._count)
        return self.max_timestamp

    def _read(self, data: Buffer, position: int, end: int) -> Fault | None:
        skip, raw, shift, field, left = self._skip, self._raw, self._shift, self._field, self._left
        while position < end:
            if skip:
                if skip >= end - position:
                    skip -= end - position
                    break
                position += skip
                skip = 0
            byte = data[position]
            position += 1
            if field == _LENGTH:
                if self._index >= self._count:
                    return Fault.more_bytes
            elif left:
                left -= 1
            else:
                return Fault.record_short
            if field == _ATTRIBUTES:  # the one number that isn't a varint; it has no use, and Kafka doesn't check it
                field = _TIMESTAMP
                continue
            if byte < 0x80 and not shift:
                number = byte >> 1 ^ -(byte & 1)
            else:
                bits = 64 if field == _TIMESTAMP else 32
                if shift + 7 > bits and byte >> (bits - shift):  # more bits, or more bytes, than the field may have
                    return Fault.number
                raw |= (byte & 0x7F) << shift
                if byte & 0x80:
                    shift += 7
                    continue
                number = raw >> 1 ^ -(raw & 1)
                raw = shift = 0
            if field == _LENGTH:
                if number < 0:
                    return Fault.record_short
                left = number
                field = _ATTRIBUTES
                continue
            if field == _TIMESTAMP:
                self._time = self._base_timestamp + (0 if self._log_append_time else number)
                if not -(2**63) <= self._time < 2**63:
                    return Fault.timestamp
                field = _OFFSET
                continue
            if field == _OFFSET:
                if not self._offset < number <= self._index + self._spare:
                    return Fault.offset
                self._offset = number
                field = _KEY
                continue
            if field == _HEADERS:
                if number < 0 or 2 * number > left:  # a header takes at least two lengths, of one byte each
                    return Fault.header_count
                self._headers = number
            else:
                if number < -1:
                    return Fault.length
                if number > left:
                    return Fault.record_short
                if number > 0:
                    skip = number
                    left -= number
                if field == _KEY:
                    self._look(number >= 0)
                    field = _VALUE
                    continue
                if field == _VALUE:
                    field = _HEADERS
                    continue
                if field == _HEADER_KEY:
                    if number < 0:
                        return Fault.header_key
                    field = _HEADER_VALUE
                    continue
                self._headers -= 1
            if self._headers:
                field = _HEADER_KEY
                continue
            if left:
                return Fault.record_long
            self._index += 1
            field = _LENGTH
        self._skip, self._raw, self._shift, self._field, self._left = skip, raw, shift, field, left
        return None

    def _look(self, has_key: bool) -> None:
        """Judges the record by its key and its timestamp, as Kafka does: by the key first."""
        time = self._time
        if time > self.max_timestamp:
            self.max_timestamp = time
        if self._compacted and not has_key:
            self.bad_keys += 1
            code = _INVALID_RECORD
        elif not self._oldest <= time <= self._newest and time != _NO_TIMESTAMP:
            self.bad_timestamps += 1
            code = _INVALID_TIMESTAMP
        else:
            return
        if len(self.bad) < NAMED_MAX:
            self.bad.append((self._index, code))
