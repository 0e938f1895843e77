"""Tables fit terminals of any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.table import Column, blocks, lines

BROKERS = [Column("ID", True), *(Column(name, False) for name in ("STATE", "HOST")), Column("PORT", True)]
ROWS = [["0", "running", "127.0.0.1", "19755"], ["11", "away", "-", "-"]]


def test_a_table_that_fits() -> None:
    assert lines(BROKERS, ROWS, 80, bold=False) == [
        "ID   STATE     HOST         PORT",
        " 0   running   127.0.0.1   19755",
        "11   away      -               -",
    ]
    assert lines(BROKERS, ROWS, None, bold=True)[0] == "\033[1mID   STATE     HOST         PORT\033[0m"


def test_gaps_give_way_before_words_do() -> None:
    assert lines(BROKERS, ROWS, 30, bold=False)[1] == " 0  running  127.0.0.1  19755"
    assert lines(BROKERS, ROWS, 26, bold=False)[1] == " 0 running 127.0.0.1 19755"


def test_where_nothing_fits_a_row_is_a_block() -> None:
    assert lines(BROKERS, ROWS, 25, bold=False) == [
        "ID:    0", "STATE: running", "HOST:  127.0.0.1", "PORT:  19755", "",
        "ID:    11", "STATE: away", "HOST:  -", "PORT:  -",
    ]  # fmt: skip


def test_blocks_fold_their_texts_between_words() -> None:
    columns = [Column("ABOUT", False), Column("WHAT TO DO", False)]
    rows = [["operator a", "helm upgrade ottla-operator charts/ottla-operator --wait"], ["operator b", "-"]]
    assert blocks(columns, rows, 48) == [
        "ABOUT:      operator a",
        "WHAT TO DO: helm upgrade ottla-operator",
        "            charts/ottla-operator --wait",
        "",
        "ABOUT:      operator b",
        "WHAT TO DO: -",
    ]
    assert blocks(columns, rows, None)[1] == f"WHAT TO DO: {rows[0][1]}", "nothing is folded in a pipe"


def test_only_long_texts_fold_and_where_they_can_at_a_separator() -> None:
    columns = [Column("BROKER", True), Column("DIRECTORY", False), Column("STATUS", False)]
    assert lines(columns, [["0", "/var/lib/ottla/broker-0/some-long-directory", "ok"]], 40, bold=False) == [
        "BROKER DIRECTORY                  STATUS",
        "     0 /var/lib/ottla/broker-0/   ok",
        "       some-long-directory",
    ]


cells = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs", "Mn", "Me", "Cf"]), max_size=60)


@given(st.lists(st.tuples(cells, cells, st.integers(0, 10**9).map(str)), min_size=1, max_size=4), st.integers(20, 140))
def test_nothing_is_lost_and_numbers_stay_whole(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [Column("A", False), Column("LONG", False), Column("N", True)]
    shown = lines(columns, rows, width, bold=False)
    for cell in (cell for row in rows for cell in row):
        assert not cell or set(cell) <= set("".join(shown))
    for row in rows:
        assert any(row[2] in line for line in shown)
    if shown[0].split() == ["A", "LONG", "N"]:
        assert all(len(line) <= width for line in shown)
