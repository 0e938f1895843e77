"""The quick checks of a batch's inside agree with reading it record by record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol import inspection
from ottla.protocol.batches import Record, build_batch, read_header, records
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.inspection import Timestamps, validate_alike, validate_records


def batch_of(times: list[int], sizes: list[int], codec: int = 0, key: bytes | None = b"key") -> bytes:
    items = [Record(index, time, key, bytes(size)) for index, (time, size) in enumerate(zip(times, sizes, strict=True))]
    return build_batch(items, codec=codec)


columns = st.integers(1, 200).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1000, 1000 + 2**17), min_size=count, max_size=count)
        | st.lists(st.integers(1000, 1030), min_size=count, max_size=count),
        st.lists(st.integers(0, 20000), min_size=count, max_size=count)
        | st.integers(0, 9000).map(lambda n: [n] * count),
    )
)


@given(columns=columns, codec=st.sampled_from([Codec.none, Codec.zstd]))
@settings(max_examples=60)
def test_sound_batches_pass(columns: tuple[list[int], list[int]], codec: int) -> None:
    batch = batch_of(*columns, codec=codec)
    found = validate_records(batch, read_header(batch), compacted=True)
    assert found == Timestamps(min(columns[0]), max(columns[0]))
    assert validate_alike(batch, read_header(batch), compacted=True) in (None, found)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 500, 8000])
def test_records_of_one_size_take_the_quick_way(count: int) -> None:
    batch = batch_of([5] * count, [100] * count)
    assert validate_alike(batch, read_header(batch), compacted=True) == Timestamps(5, 5)


@given(columns=columns, data=st.data())
@settings(max_examples=150)
def test_damage_that_a_reader_notices_in_the_chain_is_refused(
    columns: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    """Any byte changed: where the check passes, the reader sees the same count, offsets, keys and times, or an error
    inside a record (which only the reader looks for)."""
    batch = bytearray(batch_of([time % 50 for time in columns[0]], [size % 70 for size in columns[1]]))
    position = data.draw(st.integers(57, len(batch) - 1))
    batch[position] ^= data.draw(st.integers(1, 255))
    header = read_header(batch)
    try:
        found = validate_records(batch, header, compacted=True)
    except KafkaError as error:
        assert error.code == ErrorCode.invalid_record  # noqa: PT017
        return
    try:
        seen = list(records(batch))
    except KafkaError:
        return
    assert [record.offset for record in seen] == list(range(header.count))
    assert all(record.key is not None for record in seen)
    assert found == Timestamps(min(record.timestamp for record in seen), max(record.timestamp for record in seen))


@pytest.mark.parametrize("sizes", [[10] * 100, list(range(100))])
def test_a_null_key_is_refused_only_on_compacted_topics(sizes: list[int]) -> None:
    batch = batch_of([1] * 100, sizes, key=None)
    validate_records(batch, read_header(batch), compacted=False)
    with pytest.raises(KafkaError) as caught:
        validate_records(batch, read_header(batch), compacted=True)
    assert caught.value.code == ErrorCode.invalid_record


@pytest.mark.parametrize("sizes", [[10] * 100, list(range(100))])
@pytest.mark.parametrize("count", [0, -1, 99, 101, 2**31 - 1])
def test_a_wrong_count_is_refused(sizes: list[int], count: int) -> None:
    batch = bytearray(batch_of([1] * 100, sizes))
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    with pytest.raises(KafkaError):
        validate_records(batch, read_header(batch), compacted=False)


def test_a_bomb_is_refused() -> None:
    batch = batch_of([1] * 100, [100_000] * 100, codec=Codec.zstd)
    with pytest.raises(KafkaError) as caught:
        validate_records(batch, read_header(batch), compacted=False, max_bytes=1 << 20)
    assert caught.value.code == ErrorCode.record_list_too_large


def test_the_quick_way_is_what_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: a quick way that trusts the offsets lets a wrong one through, so the tests above do test it."""
    batch = bytearray(batch_of([1] * 10, [10] * 10))
    batch[61 + 3] = 6  # the first record's offset delta
    with pytest.raises(KafkaError):
        validate_records(batch, read_header(batch), compacted=False)
    monkeypatch.setattr(inspection, "_offset_columns", lambda: ())
    assert validate_alike(batch, read_header(batch), compacted=False) is not None
