"""The headers of a record set's batches as the rows of an int64 array, so that choosing batches is arithmetic. Pure.

`kernel.scan` makes the same array; `table` here is its plain twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.protocol.batches import iterate_headers

(
    H_POSITION,  # of the batch in the record set; its size counts all of it
    H_SIZE,
    H_BASE_OFFSET,
    H_LAST_OFFSET,
    H_MAGIC,
    H_CRC,
    H_ATTRIBUTES,
    H_BASE_TIMESTAMP,
    H_MAX_TIMESTAMP,
    H_PRODUCER_ID,
    H_COUNT,
) = range(11)
HEADER_COLUMNS = 11


def table(record_set: bytes | memoryview) -> Any:
    """A row for each whole batch. Raises KafkaError corrupt_message at a length below a header's."""
    rows = [
        (
            position,
            header.size,
            header.base_offset,
            header.last_offset,
            header.magic,
            header.crc,
            header.attributes,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.count,
        )
        for position, header in iterate_headers(record_set)
    ]
    return np.array(rows, np.int64).reshape(-1, HEADER_COLUMNS)
