"""Every codec unpacks its own payloads and those of other implementations, and stops unpacking at a bound."""

from __future__ import annotations

import contextlib
import gzip

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.codecs import Codec, compress
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.unpacking import decompress

compressing = pytest.mark.parametrize("codec", [codec for codec in Codec if codec])


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=500), repeats=st.integers(1, 300))
def test_round_trip(codec: Codec, data: bytes, repeats: int) -> None:
    assert bytes(decompress(codec, compress(codec, data * repeats))) == data * repeats


@compressing
def test_decompression_stops_at_its_bound(codec: Codec) -> None:
    bomb = compress(codec, bytes(8 << 20))
    with pytest.raises(KafkaError) as caught:
        decompress(codec, bomb, 1 << 20)
    assert caught.value.code == ErrorCode.record_list_too_large
    assert len(decompress(codec, bomb, 8 << 20)) == 8 << 20


@compressing
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_read_or_refused(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(KafkaError):
        decompress(codec, data, 1 << 16)


@compressing
def test_cut_data_is_refused(codec: Codec) -> None:
    data = compress(codec, bytes(range(256)) * 50)
    with pytest.raises(KafkaError):
        decompress(codec, data[:-10])


def test_reads_several_gzip_members_and_raw_snappy() -> None:
    assert decompress(Codec.gzip, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    assert decompress(Codec.snappy, bytes(cramjam.snappy.compress_raw(b"raw"))) == b"raw"


def test_lz4_blocks_are_independent_as_kafka_demands() -> None:
    assert compress(Codec.lz4, b"x" * 1000)[4] & 0x20


@pytest.mark.parametrize("level", [1, 9, 12])
def test_lz4_levels(level: int) -> None:
    data = bytes(range(256)) * 1000
    assert decompress(Codec.lz4, compress(Codec.lz4, data, level)) == data
