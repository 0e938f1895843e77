"""The entry points of `ottla` and `kubectl ottla`. They import the command line late, so that Ctrl-C during the import
prints no stack trace."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as any later one does."""
    try:
        from ottla.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


def kubectl_plugin() -> None:
    """Run `kubectl ottla`, in the same way."""
    try:
        from ottla.cli.kubectl_plugin import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
