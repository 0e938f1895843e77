"""The README and CONTRIBUTING are true: the tour runs as written; the make targets, links and files in them exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.peers.tools import ROOT

README = (ROOT / "README.md").read_text()


def test_tour(bootstrap: str, tmp_path: Path) -> None:
    tour = README.split("## A tour")[1].split("\n## ")[0]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", tour, re.S) for line in block.splitlines()]
    commands = [line for line in lines if not line.startswith(("ottla broker", "ottla adopt"))]
    assert len(commands) > 8
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OTTLA_BOOTSTRAP": bootstrap, "XDG_CONFIG_HOME": str(tmp_path)}
    printed = ""
    for command in ["ottla topics delete orders --yes || true", *commands]:
        done = subprocess.run(
            command, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        printed += done.stdout
    assert re.search(r"0\s+0\s+alice\s+tea", printed)
    assert '"end_offset"' in printed


def test_make_targets_are_there() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"\bmake ([a-z0-9]+)", README))
    assert named
    assert named <= targets


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_recipes_name_what_is_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z0-9-]+)", page)) <= targets
    folders = [ROOT, ROOT / "broker/ottla/broker", ROOT / "operator/ottla/operator"]
    named = re.findall(r"`((?:[a-z_-]+/)+[\w.-]*)(?:::(\w+))?`", page)
    assert len(named) > 50
    for name, test in named:
        if "NAME" in name:
            continue
        found = [folder / name for folder in folders if (folder / name).exists()]
        assert found, name
        assert not test or f"def {test}" in found[0].read_text(), f"{name}::{test}"
