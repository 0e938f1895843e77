"""Positions in files that grow by lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark.pipelines import growing
from ottla.spark.pipelines.growing import FileRange, FileReplaced, Position, ahead, lines, matching, ranges

ALL = 1 << 62


def ends(position: Position) -> dict[str, int]:
    return {path: mark.end for path, mark in position.items()}


def texts(part: FileRange) -> list[bytes]:
    return [line for _, line in lines(part)]


def test_a_line_counts_once_its_newline_is_written(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one\ntw")
    path = str(file)
    first = ahead({}, [path], ALL)
    assert ends(first) == {path: 4}
    assert list(lines(FileRange(path, 0, 4))) == [(0, b"one")]
    with open(file, "ab") as out:
        out.write(b"o\r\nthree\n")
    second = ahead(first, [path], ALL)
    assert [texts(each) for each in ranges(first, second)] == [[b"two", b"three"]]
    assert ranges(second, ahead(second, [path], ALL)) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"one\n", "it has 4 bytes, and 8 bytes were read"),
        (b"alpha beta\ngamma\n", "it has another beginning than the file that was read"),
        (b"", "it has 0 bytes"),
    ],
)
def test_a_file_that_was_truncated_or_replaced_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one\ntwo\n")
    read = ahead({}, [str(file)], ALL)
    file.write_bytes(content)
    with pytest.raises(FileReplaced, match=f"a was truncated or replaced: {sentence}"):
        ahead(read, [str(file)], ALL)


def test_a_range_that_is_no_lines_any_more_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one\n")
    with pytest.raises(FileReplaced, match="there is no whole line at byte 4"):
        texts(FileRange(str(file), 0, 8))
    with pytest.raises(FileReplaced, match="no line begins at byte 2"):
        texts(FileRange(str(file), 2, 4))


def test_a_file_that_grows_fast_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    busy, calm = tmp_path / "a", tmp_path / "b"
    busy.write_bytes(b"x\n" * 100)
    calm.write_bytes(b"1\n2\n")
    paths = [str(busy), str(calm)]
    first = ahead({}, paths, 8)
    assert ends(first) == {str(busy): 4, str(calm): 4}
    with open(busy, "ab") as out:
        out.write(b"x\n" * 100)
    assert ends(ahead(first, paths, 8, last=first)) == ends(first), "nothing beyond the end of the query"
    target = ahead({}, paths, ALL)
    with open(busy, "ab") as out:
        out.write(b"x\n" * 100)
    with open(calm, "ab") as out:
        out.write(b"3\n")
    position = first
    while (end := ahead(position, paths, 8, last=target)) != position:
        position = end
    assert ends(position) == {str(busy): 400, str(calm): 4}


def test_files_are_found_by_path_directory_and_pattern(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "c.txt", ".hidden", "_temporary"):
        (tmp_path / name).touch()
    found = [str(tmp_path / name) for name in ("a.log", "b.log", "c.txt")]
    assert matching(str(tmp_path)) == found
    assert matching(str(tmp_path / "*.log")) == found[:2]
    assert matching(found[2]) == found[2:]
    assert matching(str(tmp_path / "none")) == []


@settings(deadline=None)
@given(
    content=st.lists(st.binary(max_size=12).map(lambda each: each.replace(b"\n", b"").replace(b"\r", b""))),
    rest=st.binary(max_size=5).map(lambda each: each.replace(b"\n", b"")),
    size_max=st.integers(1, 40),
    block=st.integers(1, 9),
)
def test_batches_of_any_size_have_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], rest: bytes, size_max: int, block: int
) -> None:
    path = str(tmp_path_factory.mktemp("growing") / "f")
    Path(path).write_bytes(b"".join(line + b"\n" for line in content) + rest)
    found: list[bytes] = []
    position: Position = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "BLOCK_BYTES", block)
        while True:
            end = ahead(position, [path], size_max)
            if not (parts := ranges(position, end)):
                break
            assert all(each.end - each.start <= max(size_max, max(map(len, content)) + 1) for each in parts)
            found += [line for each in parts for line in texts(each)]
            position = end
    assert found == content
