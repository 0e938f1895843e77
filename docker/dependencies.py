"""Prints what Ottla depends on with the named extras, one requirement a line: `dependencies.py broker operator`."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())["project"]
extras = [requirement for extra in sys.argv[1:] for requirement in project["optional-dependencies"][extra]]
print(*project["dependencies"], *extras, sep="\n")
