"""The headers of a record set's batches as the rows of an int64 array, so that numpy can select batches. Pure.

The H_ constants number the array's columns. `kernel.scan` makes the same array with compiled code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.protocol.batches import iterate_headers

(
    H_POSITION,  # the position of the batch's first byte in the record set
    H_SIZE,  # the size of the whole batch in bytes, with its header
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
    """An array with a row for each whole batch of `record_set`.

    Raises KafkaError corrupt_message if a batch states a length below that of its own header.
    """
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
