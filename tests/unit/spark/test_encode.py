"""Rows become records, which the tests read back.

The kernel is compared with a plain implementation in Python, and the partitioner with that of another client.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from ottla.protocol.batches import records, seal_batch
from ottla.spark import encode, encode_python

KEYS = st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=60)


def batches(
    keys: list, values: list, limit: int = 1 << 20, chosen: list | None = None, partitions: int = 5
) -> list[encode.EncodedRecords]:
    return list(
        encode.encode(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), None, chosen, partitions, limit, 0)
    )


@given(st.binary(max_size=40))
def test_murmur2(data: bytes) -> None:
    assert encode_python.murmur2(data) == reference(data) & 0xFFFFFFFF


@settings(deadline=None)
@given(KEYS, st.data())
def test_kernel_equals_twin(keys: list, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | st.binary(max_size=200), min_size=len(keys), max_size=len(keys)))
    by_kernel = batches(keys, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "kernel", None)
        assert batches(keys, values) == by_kernel


@settings(deadline=None)
@given(KEYS, st.integers(1, 300))
def test_batches_hold_every_row_once_and_respect_the_limit(keys: list, limit: int) -> None:
    values = [b"%d" % index for index in range(len(keys))]
    seen = []
    for each in batches(keys, values, limit):
        sealed = seal_batch(
            each.body,
            each.rows,
            attributes=0,
            base_timestamp=1,
            max_timestamp=1,
            last_offset_delta=each.rows - 1,
        )
        found = list(records(sealed))
        assert [record.offset for record in found] == list(range(each.rows))
        assert each.rows == 1 or len(each.body) <= limit
        for record in found:
            seen.append((record.value, record.key))
            if record.key is not None:
                assert each.partition == encode_python.partition_of(record.key, 5)
    assert sorted(seen) == sorted(zip(values, keys, strict=True))


def test_a_chosen_partition_beats_the_key() -> None:
    made = batches([b"a", b"a", None], [b"1", b"2", b"3"], chosen=[4, 0, -1])
    assert {each.partition for each in made} >= {0, 4}


def test_rows_with_headers() -> None:
    entries = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "g", "value": None}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    made = list(encode.encode(None, pa.array([b"a", b"b"], pa.binary()), entries, [0, 0], 1, 1000, 0))
    sealed = seal_batch(made[0].body, 2, attributes=0, base_timestamp=1, max_timestamp=1, last_offset_delta=1)
    assert [list(record.headers) for record in records(sealed)] == [[("h", b"1"), ("g", None)], []]
