"""The commands of `ottla pipelines` refuse files that can't run together, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import run_forked

USAGE = 2
TWO = """\
name: one
source: {topic: a}
sinks: [{file: out.txt}]
checkpoint: ./c
---
name: two
source: {topic: a}
sinks: [{file: ./out.txt, name: lines}]
checkpoint: c/
"""


def refused(environment: dict[str, str], *arguments: str) -> str:
    result = run_forked(("pipelines", *arguments), b"", environment)
    assert (result.code, result.stdout) == (USAGE, "")
    return result.stderr


@pytest.mark.parametrize("command", ["list", "check", "run", "status"])
def test_two_pipelines_with_one_checkpoint_and_one_file(
    environment: dict[str, str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    told = refused(environment, command, str(file))
    assert f"the pipelines one and two have one checkpoint, {Path('c').resolve()}: give each a directory" in told
    assert f"the sinks one.file-1 and two.lines write to one target, {Path('out.txt').resolve()}" in told


def test_a_confirmation_for_a_sink_that_writes_no_transactions(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(TWO.partition("---")[0])
    told = refused(environment, "run", str(file), "--confirm", "file-1=skip 17")
    assert "no sink 'file-1' writes transactions" in told
