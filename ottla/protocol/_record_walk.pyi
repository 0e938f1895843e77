from .received import Buffer

class RecordWalk:
    max_timestamp: int
    bad_keys: int
    bad_timestamps: int
    bad: list[tuple[int, int]]

    def __new__(
        cls,
        count: int,
        last_offset_delta: int,
        base_timestamp: int,
        log_append_time: bool,
        compacted: bool,
        oldest: int,
        newest: int,
        /,
    ) -> RecordWalk: ...
    def feed(self, data: Buffer, start: int = 0, end: int = ..., /) -> None: ...
    def finish(self) -> int: ...
