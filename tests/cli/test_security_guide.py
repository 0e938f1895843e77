"""The commands of docs/security.md work when they are pasted, one block after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.wire import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell in an empty folder, in which `ottla` is a command."""
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "OTTLA_CONFIG_FILE": str(tmp_path / "contexts.toml"),
    }
    yield subprocess.Popen(
        ["bash", "-e"],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    subprocess.run([binaries / "ottla", "broker", "stop", "--data", tmp_path / "data"], timeout=60, check=True)


def test_the_blocks_can_be_pasted(shell: subprocess.Popen[str]) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    port = str(free_port())
    output, _ = shell.communicate("".join(blocks).replace("9093", port) + "echo the end\n", timeout=120)
    assert output.endswith("the end\n"), output
    assert "delayed" in output
