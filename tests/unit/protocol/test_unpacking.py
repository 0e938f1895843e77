"""Payloads are unpacked piece by piece: the pieces are bounded and add up to the whole, and every other payload is
refused.
"""

from __future__ import annotations

import gzip
import itertools
import random
import sys
import time
import tracemalloc

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.codecs import XERIAL_MAGIC, Codec, compress, compress_pieces
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.packed_heads import BLOCK_BYTES_MIN, claimed_bytes, working_bytes
from ottla.protocol.unpacking import PIECE_BYTES, decompress, pieces
from tests.unit.examples import examples

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKED = [codec for codec in Codec if codec != Codec.none]
every_codec = pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.name)
dice = random.Random(15)
MIXED = b"".join(dice.randbytes(dice.randrange(300)) * dice.randrange(1, 40) for _ in range(2500))


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("piece_bytes", [1000, 1 << 15, PIECE_BYTES])
def test_pieces_add_up_and_none_is_larger_than_asked_for(codec: Codec, piece_bytes: int) -> None:
    assert len(MIXED) > 4 * PIECE_BYTES
    found = list(pieces(codec, compress(codec, MIXED), piece_bytes))
    assert max(map(len, found)) <= piece_bytes
    assert b"".join(found) == MIXED


@every_codec
def test_a_bomb_costs_a_piece(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    total = sum(len(piece) for piece in pieces(codec, bomb))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 64 << 20
    assert peak < 4 * PIECE_BYTES


@every_codec
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_damage_is_refused_or_harmless(codec: Codec, data: st.DataObject) -> None:
    """A changed byte or a cut gives corrupt_message, or other bytes within the bound, but no other exception."""
    payload = bytearray(compress(codec, MIXED[:5000]))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(payload)))
    try:
        found = b"".join(pieces(codec, payload[:end], one_frame=True))
    except KafkaError as error:
        assert error.code == ErrorCode.corrupt_message  # noqa: PT017
    else:
        assert bytes(decompress(codec, payload[:end])) == found
    working_bytes(codec, payload[:end])
    claimed_bytes(codec, payload[:end], 1 << 20)


@every_codec
def test_every_cut_is_noticed(codec: Codec) -> None:
    """A cut payload is refused. Only a cut between two blocks of Snappy is noticed later, by the walk, which counts the
    records.
    """
    payload = compress(codec, MIXED[: 200 << 10])
    for end in itertools.chain(range(16, 200), range(len(payload) - 200, len(payload))):
        try:
            found = sum(len(piece) for piece in pieces(codec, payload[:end]))
        except KafkaError:
            continue
        assert codec == Codec.snappy, f"cut at {end}"
        assert found < 200 << 10


@every_codec
def test_what_follows_a_frame_is_refused(codec: Codec) -> None:
    payload = compress(codec, b"one" * 100)
    for behind in (b"\x00", b"noise" * 9):
        with pytest.raises(KafkaError):
            list(pieces(codec, payload + behind))
    with pytest.raises(KafkaError):
        list(pieces(codec, payload + payload, one_frame=True))


def test_several_frames_are_read_where_they_are_stored_already() -> None:
    twice = b"one" * 200
    assert decompress(Codec.gzip, gzip.compress(twice[:300]) + gzip.compress(twice[300:])) == twice
    for codec in (Codec.lz4, Codec.zstd):
        assert decompress(codec, compress(codec, twice[:300]) + compress(codec, twice[300:])) == twice


@every_codec
def test_compressed_in_pieces_or_at_once_it_is_the_same(codec: Codec) -> None:
    cuts = sorted(random.Random(7).sample(range(len(MIXED)), 20))
    parts = [MIXED[start:end] for start, end in itertools.pairwise([0, *cuts, len(MIXED)])]
    packed = b"".join(compress_pieces(codec, parts))
    assert decompress(codec, packed) == MIXED
    if codec == Codec.lz4:
        assert lz4.frame.decompress(packed) == MIXED


def test_what_is_kept_beside_the_pieces_is_known_beforehand() -> None:
    assert working_bytes(Codec.gzip, compress(Codec.gzip, MIXED)) == 0
    assert working_bytes(Codec.snappy, compress(Codec.snappy, MIXED)) == 32 << 10
    assert working_bytes(Codec.snappy, bytes(cramjam.snappy.compress_raw(MIXED))) == len(MIXED)
    assert working_bytes(Codec.lz4, compress(Codec.lz4, MIXED)) == 256 << 10
    assert working_bytes(Codec.zstd, compress(Codec.zstd, MIXED)) in (2 << 20, len(MIXED))
    assert working_bytes(Codec.zstd, compress(Codec.zstd, b"small")) == 5


@every_codec
@given(st.integers(0, len(MIXED)), st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_nobody_claims_less_than_there_is(codec: Codec, size: int, zeros: bool) -> None:
    content = bytes(size) if zeros else MIXED[:size]
    packed = compress(codec, content)
    claimed = claimed_bytes(codec, packed, 1 << 30)
    assert claimed >= size
    if codec in (Codec.gzip, Codec.snappy):
        assert claimed <= max(size + BLOCK_BYTES_MIN, len(packed))
    else:
        assert claimed <= size + (128 << 10)
    assert claimed_bytes(codec, packed, size // 2) > size // 2 or not size, "sizing ended below the limit"


def test_frames_of_every_shape_claim_what_they_hold() -> None:
    for block_size in (4, 5, 6, 7):
        for checksums in (False, True):
            packed = lz4.frame.compress(
                MIXED, block_size=block_size, block_linked=False, block_checksum=checksums, content_checksum=checksums
            )
            assert len(MIXED) <= claimed_bytes(Codec.lz4, packed, 1 << 30) < len(MIXED) + (4 << 20)
    for content in (b"", b"x", b"y" * 300, bytes(70_000), MIXED):  # content sizes of 1, 2 and 4 bytes
        for parameter in (zstd.CompressionParameter.content_size_flag, zstd.CompressionParameter.checksum_flag):
            for flag in (0, 1):
                packed = zstd.compress(content, options={parameter: flag})
                claimed = claimed_bytes(Codec.zstd, packed, 1 << 30)
                stated = zstd.get_frame_info(packed).decompressed_size
                assert claimed == len(content) if stated is not None else claimed >= len(content)
    raw = bytes(cramjam.snappy.compress_raw(MIXED))
    assert claimed_bytes(Codec.snappy, raw, 1 << 30) == len(MIXED)


def test_a_payload_of_nothing_but_empty_blocks_is_not_looked_through_on_the_loop() -> None:
    empty = XERIAL_MAGIC + bytes(8) + (b"\x00\x00\x00\x01" + b"\x00") * 200_000
    began = time.process_time()
    assert claimed_bytes(Codec.snappy, empty, 1 << 20) > 1 << 20
    assert working_bytes(Codec.snappy, empty) <= 22 * len(empty)
    assert time.process_time() - began < 0.05, "a look at every block would take longer"


TINY_ZSTD_BLOCKS = {"raw": b"\x00\x00\x00", "RLE": b"\x02\x00\x00x", "RLE of a byte": b"\x0a\x00\x00x"}


@pytest.mark.parametrize("block", TINY_ZSTD_BLOCKS.values(), ids=TINY_ZSTD_BLOCKS)
@pytest.mark.parametrize("head", [b"\x00\x00", b"\x20\x05"], ids=["no size", "a stated size"])
def test_tiny_zstd_blocks_claim_too_much_instead_of_being_walked_over(block: bytes, head: bytes) -> None:
    frame = b"\x28\xb5\x2f\xfd" + head + block * 2_000_000 + b"\x01\x00\x00"
    began = time.process_time()
    for _ in range(10):
        assert claimed_bytes(Codec.zstd, frame, 1 << 20) > 1 << 20
    assert time.process_time() - began < 0.1, "a look at every block would take seconds"


def test_batches_of_a_few_kb_of_empty_snappy_blocks_are_not_walked_over_to_size_them() -> None:
    """One request may have thousands of these batches, so the time for each of them counts."""
    empty = XERIAL_MAGIC + bytes(8) + (b"\x00\x00\x00\x01" + b"\x00") * 900
    began = time.process_time()
    for _ in range(1000):
        assert claimed_bytes(Codec.snappy, empty, 800_000) > 800_000
        assert working_bytes(Codec.snappy, empty) == 22 * len(empty)
    assert time.process_time() - began < 0.4, "a look at every block would take 0.5 ms a batch"


EMPTY = {
    "snappy": (Codec.snappy, XERIAL_MAGIC + bytes(8) + (b"\x00\x00\x00\x01" + b"\x00") * 1000, 1000),
    "zstd blocks": (Codec.zstd, b"\x28\xb5\x2f\xfd\x00\x00" + bytes(3 << 18) + b"\x01\x00\x00", 12),
    "lz4 blocks": (Codec.lz4, compress(Codec.lz4, b"")[:-4] + b"\x00\x00\x00\x80" * (3 << 16) + bytes(4), 12),
    "zstd frames": (Codec.zstd, compress(Codec.zstd, b"") * 1000, 1000),
    "lz4 frames": (Codec.lz4, compress(Codec.lz4, b"") * 1000, 1000),
    "gzip members": (Codec.gzip, compress(Codec.gzip, b"") * 1000, 1000),
}


@pytest.mark.parametrize(("codec", "payload", "steps"), EMPTY.values(), ids=EMPTY)
def test_what_holds_nothing_comes_in_pieces_of_nothing(codec: Codec, payload: bytes, steps: int) -> None:
    found = list(pieces(codec, payload))
    assert len(found) >= steps
    assert not any(found)
    assert bytes(decompress(codec, payload)) == b""
    for wanted in PACKED:
        if wanted not in (Codec.gzip, Codec.zstd):
            assert len(list(compress_pieces(wanted, found))) >= steps, wanted
        assert bytes(decompress(wanted, b"".join(compress_pieces(wanted, found)))) == b""


def sent(codec: Codec, payload: bytes) -> bytes:
    """The unpacked bytes of a producer's payload."""
    return b"".join(pieces(codec, payload, one_frame=True))


def test_linked_blocks_are_told_from_independent_ones() -> None:
    small = lz4.frame.BLOCKSIZE_MAX64KB
    linked = lz4.frame.compress(MIXED, block_linked=True, block_size=small)
    with pytest.raises(KafkaError, match="independent"):
        sent(Codec.lz4, linked)
    assert decompress(Codec.lz4, linked) == MIXED
    assert sent(Codec.lz4, lz4.frame.compress(MIXED, block_linked=False, block_size=small)) == MIXED
    assert sent(Codec.lz4, compress(Codec.lz4, MIXED)) == MIXED


def lz4_frame(*blocks: bytes) -> bytes:
    """A frame of independent blocks of up to 64 KiB each."""
    return compress(Codec.lz4, b"")[:7] + b"".join(blocks) + bytes(4)


STORED = b"\x04\x00\x00\x80abcd"
STORED_NOTHING, PACKED_NOTHING = b"\x00\x00\x00\x80", b"\x01\x00\x00\x00\x00"


@pytest.mark.parametrize(
    "blocks",
    [
        (STORED_NOTHING, STORED),
        (STORED, STORED_NOTHING, PACKED_NOTHING, STORED),
        (PACKED_NOTHING, PACKED_NOTHING, PACKED_NOTHING, STORED),
        (*([STORED] * 1_500), STORED_NOTHING, STORED),
    ],
)
def test_what_javas_clients_take_for_a_frames_end_is_no_place_to_go_on_behind(blocks: tuple[bytes, ...]) -> None:
    frame = lz4_frame(*blocks)
    with pytest.raises(KafkaError, match="an empty block"):
        sent(Codec.lz4, frame)
    assert decompress(Codec.lz4, frame) == b"abcd" * blocks.count(STORED), "a frame in the log is still read"


def test_an_lz4_block_of_nothing_is_no_harm_where_java_reads_on_or_nothing_follows() -> None:
    for blocks in (
        (PACKED_NOTHING, STORED),
        (STORED, PACKED_NOTHING, PACKED_NOTHING, STORED),
        (STORED, STORED_NOTHING),
        (STORED, *[PACKED_NOTHING] * 5),
    ):
        assert sent(Codec.lz4, lz4_frame(*blocks)) == b"abcd" * blocks.count(STORED)


def test_a_frame_that_names_a_dictionary_is_refused() -> None:
    """The LZ4 library unpacks such a frame if no block needs the dictionary. Java's clients know no dictionaries."""
    frame = bytes.fromhex("04224d18614007000000e3") + STORED + bytes(4)
    assert decompress(Codec.lz4, frame) == b"abcd"
    with pytest.raises(KafkaError, match="dictionary"):
        sent(Codec.lz4, frame)


def test_a_zstandard_block_that_is_packed_into_nothing_is_refused() -> None:
    """The library that Ottla uses would unpack such a block, but librdkafka's library refuses it."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + b"\x04\x00\x00" + b"\x21\x00\x00abcd"
    assert decompress(Codec.zstd, frame) == b"abcd"
    with pytest.raises(KafkaError, match="no bytes"):
        sent(Codec.zstd, frame)


def test_a_snappy_blocks_length_of_six_bytes_is_refused() -> None:
    """Snappy's own library, which other implementations of clients use, refuses such a length."""
    assert sent(Codec.snappy, b"\x84\x80\x80\x80\x00\x0cabcd") == b"abcd"
    with pytest.raises(KafkaError, match="more than 32 bits"):
        sent(Codec.snappy, b"\x84\x80\x80\x80\x80\x00\x0cabcd")
