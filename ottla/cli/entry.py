"""The entry points of `ottla` and `kubectl ottla`. They import the command line late, so that Ctrl-C during the import
prints no stack trace."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs `ottla`. Ctrl-C during the import of the command line ends the program as Ctrl-C afterwards does."""
    try:
        from ottla.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


def kubectl_plugin() -> None:
    """Runs `kubectl ottla`. Ctrl-C during the import of the command line ends the program as Ctrl-C afterwards does."""
    try:
        from ottla.cli.kubectl_plugin import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
