"""The authorized operations in responses to clients, as bit sets over the codes of Kafka's AclOperation (KIP-430).

Pure. Without an authoriser every client may do every operation. If a request doesn't ask for the operations, the
response has the lowest int32 instead of a bit set.
"""

from __future__ import annotations

from ottla.protocol.rights import ResourceType, supported_operations

NOT_ASKED = -(2**31)


def _all_of(resource_type: ResourceType) -> int:
    return sum(1 << operation for operation in supported_operations(resource_type))


ON_TOPIC = _all_of(ResourceType.TOPIC)
ON_GROUP = _all_of(ResourceType.GROUP)
ON_CLUSTER = _all_of(ResourceType.CLUSTER)
