"""ApiVersions (key 18), versions 0–4: the APIs that this broker serves.

If an ApiVersions request has an unknown version, its body isn't read. The answer, in version 0, is UNSUPPORTED_VERSION
with the versions of ApiVersions itself (KIP-511); `unsupported` makes it. The features are those of
`ottla.metadata.features`. Where a feature of Kafka's, such as `group.version`, isn't among them, clients fall back to
the older protocols. The epoch of the finalised features is the revision of the metadata, as in Kafka: of two answers
that differ, the one with the greater epoch is the later one, also after a feature was switched off.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.ports import WithAdvertisedApis, WithImage
from ottla.broker.request import Request
from ottla.metadata.features import FEATURES, OFF
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import write_response

API = Api(key=18, versions=(0, 4), needs=NoRightNeeded("clients send ApiVersions before they authenticate"))
FIRST_VERSION_WITH_LEVEL_0 = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Parts(WithAdvertisedApis, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers all served APIs with their ranges of versions, or INVALID_REQUEST if the client's software name or
    version is malformed."""
    if request.api_version >= 3 and not (
        _SOFTWARE.fullmatch(body.client_software_name) and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        return {"error_code": ErrorCode.invalid_request}
    return {
        "error_code": ErrorCode.none,
        "api_keys": [
            {"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[1]}
            for api in broker.advertised_apis
        ],
        **_features(broker, request.api_version),
    }


def _features(broker: Parts, version: int) -> dict[str, Any]:
    image = broker.image
    return {
        # Clients up to 3.8 fail at a lowest version of 0 (KAFKA-17011), and are recognised by the request's version.
        "supported_features": [
            {"name": name, "min_version": feature.levels.lowest, "max_version": feature.levels.highest}
            for name, feature in FEATURES.items()
            if feature.levels.lowest > OFF or version >= FIRST_VERSION_WITH_LEVEL_0
        ],
        "finalized_features_epoch": image.revision,
        "finalized_features": [
            {"name": name, "max_version_level": feature.level, "min_version_level": feature.level}
            for name, feature in image.features.items()
        ],
    }


def unsupported() -> bytes:
    """The body, in version 0, of the answer to a request of a version that isn't served."""
    lowest, highest = API.versions
    own = {"api_key": API.key, "min_version": lowest, "max_version": highest}
    return write_response(API.key, 0, {"error_code": ErrorCode.unsupported_version, "api_keys": [own]})
