"""Request and response headers. Pure.

A frame is a big-endian int32 size and that many bytes. Request header: api key int16, api version int16, correlation
id int32, client id (nullable, always with an int16 length), and tagged fields when the API's version is flexible
(header v2). Response header: correlation id, and tagged fields when flexible, except for ApiVersions, whose response
header is always v0 (KIP-511).
"""

from __future__ import annotations

import struct

from .errors import ProtocolError
from .flexible import is_flexible
from .received import Buffer
from .varints import read_unsigned_varint

API_VERSIONS = 18
_fixed = struct.Struct(">hhih")
_correlation = struct.Struct(">i")


def read_request_header(
    frame: Buffer, start: int = 0, stop: int | None = None
) -> tuple[int, int, int, str | None, int]:
    """(API key, API version, correlation id, client id, offset after the client id) of the header at `start`.

    After the client id follow the tagged fields, in a flexible version, and then the body. The caller has to skip the
    tagged fields, because only the caller knows whether that version of the API is served.

    Raises ProtocolError if the frame ends inside the header or the client id is not UTF-8.
    """
    try:
        api_key, api_version, correlation_id, length = _fixed.unpack_from(frame, start)
        client_id, end = None, start + 10
        if length >= 0:
            end += length
            if end > (len(frame) if stop is None else stop):
                raise ProtocolError("the frame ends inside the client id")
            client_id = str(frame[end - length : end], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed request header: {error}") from error
    return api_key, api_version, correlation_id, client_id, end


def skip_tagged_fields(data: Buffer, position: int, end: int | None = None) -> int:
    """The position after a block of tagged fields. Raises ProtocolError if the block ends after `end`.

    `end` is the end of the data by default.
    """
    stop = len(data) if end is None else end
    count, position = read_unsigned_varint(data, position)
    for _ in range(count):
        _, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        position += size
        if position > stop:
            break
    if position > stop:
        raise ProtocolError("the frame ends inside a tagged field")
    return position


def response_frame(api_key: int, api_version: int, correlation_id: int, body: bytes | bytearray) -> bytes:
    """A whole frame: size, response header, `body`."""
    header = response_header(api_key, api_version, correlation_id)
    return _correlation.pack(len(header) + len(body)) + header + body


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The response header alone, for answers that are written in parts."""
    if api_key != API_VERSIONS and is_flexible(api_key, api_version):
        return _correlation.pack(correlation_id) + b"\x00"
    return _correlation.pack(correlation_id)


def request_frame(api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: bytes) -> bytes:
    """A whole frame: size, request header, `body`."""
    encoded = None if client_id is None else client_id.encode()
    header = _fixed.pack(api_key, api_version, correlation_id, -1 if encoded is None else len(encoded)) + (
        encoded or b""
    )
    if is_flexible(api_key, api_version):
        header += b"\x00"
    return _correlation.pack(len(header) + len(body)) + header + body


def response_body(api_key: int, api_version: int, frame: Buffer) -> tuple[int, int]:
    """(correlation id, offset of the body) of a response frame without its size."""
    (correlation_id,) = _correlation.unpack_from(frame)
    if api_key != API_VERSIONS and is_flexible(api_key, api_version):
        return correlation_id, skip_tagged_fields(frame, 4)
    return correlation_id, 4
