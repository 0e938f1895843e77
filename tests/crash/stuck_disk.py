"""A broker whose log files can be made to answer nothing: `python -m tests.crash.stuck_disk FILE …`, where … is what
`ottla.cli.server` takes. While FILE exists, each write to a file of a log waits: it stops the event loop, as a volume
does that has gone away."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ottla.broker.log.disk import RealFile
from ottla.cli.server import main
from ottla.protocol.received import Buffer


def stick(flag: Path) -> None:
    """Has writes wait from now on, while `flag` exists."""
    pwrite = RealFile.pwrite

    def waiting(self: RealFile, data: Buffer, position: int) -> None:
        while flag.exists():
            time.sleep(0.02)
        pwrite(self, data, position)

    RealFile.pwrite = waiting  # type: ignore[method-assign]


if __name__ == "__main__":
    stick(Path(sys.argv[1]))
    os._exit(main(sys.argv[2:]))
