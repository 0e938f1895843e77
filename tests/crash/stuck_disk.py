"""A broker whose log files can be made to hang: `python -m tests.crash.stuck_disk FILE …`, where … are the arguments of
`ottla.cli.server`. While FILE exists, each write to a log's file waits and blocks the event loop, as on a volume that
doesn't answer any more. While FILE.reads exists, the logs of topics whose names begin with `cold` count as not in the
page cache, and each read of them waits, also a read by `sendfile`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.broker.log.disk import RealFile
from ottla.cli.server import main
from ottla.protocol.received import Buffer


def stick(flag: Path) -> None:
    """Lets writes wait from now on, while `flag` exists."""
    pwrite = RealFile.pwrite

    def waiting(self: RealFile, data: Buffer, position: int) -> None:
        wait_while(flag)
        pwrite(self, data, position)

    RealFile.pwrite = waiting  # type: ignore[method-assign]


def stick_reads(flag: Path) -> None:
    """Lets reads of cold topics wait from now on, while `flag` exists."""
    sendfile = os.sendfile

    def is_stuck(descriptor: int) -> bool:
        return flag.exists() and "/cold" in os.readlink(f"/proc/self/fd/{descriptor}")

    def waiting(read: Callable[..., Any]) -> Callable[..., Any]:
        def wait(self: RealFile, size: int, position: int) -> Any:
            if is_stuck(self.fileno()):
                wait_while(flag)
            return read(self, size, position)

        return wait

    def refusing(read: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(self: RealFile, size: int, position: int) -> Any:
            if is_stuck(self.fileno()):
                raise BlockingIOError
            return read(self, size, position)

        return refuse

    def waiting_sendfile(out: int, file: int, offset: int, count: int) -> int:
        if is_stuck(file):
            wait_while(flag)
        return sendfile(out, file, offset, count)

    cached = RealFile.cached
    os.sendfile = waiting_sendfile  # type: ignore[assignment]
    RealFile.pread = waiting(RealFile.pread)  # type: ignore[method-assign]
    RealFile.read_ahead = waiting(RealFile.read_ahead)  # type: ignore[method-assign]
    RealFile.pread_cached = refusing(RealFile.pread_cached)  # type: ignore[method-assign]
    RealFile.cached = lambda self, size, position: (  # type: ignore[method-assign]
        0 if is_stuck(self.fileno()) else cached(self, size, position)
    )


def wait_while(flag: Path) -> None:
    """Waits while `flag` exists."""
    while flag.exists():
        time.sleep(0.02)


if __name__ == "__main__":
    stick(Path(sys.argv[1]))
    stick_reads(Path(f"{sys.argv[1]}.reads"))
    os._exit(main(sys.argv[2:]))
