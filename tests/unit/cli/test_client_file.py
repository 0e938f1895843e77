"""Files of client properties that commands write."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ottla.cli.client_file import properties_text, scram_login, write_private
from ottla.cli.errors import CommandError
from ottla.security.jaas import parse_jaas
from ottla.settings.properties import parse_properties


@pytest.mark.parametrize("text", ["plain", ' "quoted" \\ and = # ! :', "\\", "ends with \\", "ä ü"])
def test_what_is_written_is_read_again(text: str) -> None:
    assert parse_properties(properties_text({"a": text, "b": "2"})) == {"a": text, "b": "2"}
    login = parse_jaas(parse_properties(properties_text(scram_login("SCRAM-SHA-512", text, text)))["sasl.jaas.config"])
    assert (login.options["username"], login.options["password"]) == (text, text)


def test_values_of_several_lines_are_read_again() -> None:
    assert parse_properties(properties_text({"a": "one\ntwo\tthree\r"})) == {"a": "one\ntwo\tthree\r"}


def test_a_file_is_its_owners_and_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    write_private(path, "a=1\n")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("a=1\n", 0o600)
    with pytest.raises(CommandError, match="exists already"):
        write_private(path, "a=2\n")
    path.chmod(0o644)
    write_private(path, "a=3\n", replace=True)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("a=3\n", 0o600)
