"""The order of batches that can't be appended at once because their recompression runs in a thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.partition import Partition


class Turn:
    """A batch's place among those of its partition that can't be appended at once.

    Places are taken when requests arrive and kept whatever runs first, so that no batch overtakes another.
    """

    __slots__ = ("_before", "_ended", "_partition")

    def __init__(self, partition: Partition, before: asyncio.Future[None] | None) -> None:
        self._partition = partition
        self._before = before
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the next one may go on."""
        return self._ended

    async def comes(self) -> None:
        """Waits for those before."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def end(self) -> None:
        """The batch is appended, refused or given up: the next one's turn comes, though not before this one's would
        have. May be called again."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.end())
        elif not self._ended.done():
            self._ended.set_result(None)
            self._partition.turn_ended(self)
