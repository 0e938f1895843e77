"""DescribeCluster (key 60), versions 0–2: the cluster's id, and the brokers with their addresses on the client's
listener.

Every broker serves administrators' requests, and the answer names the answering broker as controller. A request for the
addresses of controllers (endpoint type 2) is refused. A request of version 2 may ask for brokers that aren't serving
yet (KIP-1073); they are marked as fenced.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker import authorized_operations
from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.ports import WithAuthorizer, WithId, WithImage
from ottla.broker.request import Request
from ottla.broker.topic_descriptions import alive, controller_for_clients
from ottla.protocol.errors import ErrorCode

API = Api(key=60, versions=(0, 2), needs=NoRightNeeded("every client may learn which brokers there are"))
BROKERS, CONTROLLERS = 1, 2


class Parts(WithAuthorizer, WithId, WithImage, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    if body.endpoint_type != BROKERS:
        return _wrong_endpoint(body.endpoint_type)
    image = broker.image
    brokers = [
        {
            "broker_id": known.id,
            "host": endpoint.host,
            "port": endpoint.port,
            "rack": known.rack,
            "is_fenced": not alive(known),
        }
        for known in sorted(image.brokers.values(), key=lambda known: known.id)
        if (alive(known) or body.include_fenced_brokers)
        and (endpoint := known.endpoints.get(request.listener)) is not None
    ]
    asked = body.include_cluster_authorized_operations
    return {
        "endpoint_type": BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": controller_for_clients(image, broker.id),
        "brokers": brokers,
        "cluster_authorized_operations": authorized_operations.on_cluster(broker.authorizer, request)
        if asked
        else authorized_operations.NOT_ASKED,
    }


def _wrong_endpoint(endpoint_type: int) -> dict[str, Any]:
    if endpoint_type == CONTROLLERS:
        code = ErrorCode.mismatched_endpoint_type
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    else:
        code, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": [],
        "cluster_authorized_operations": authorized_operations.NOT_ASKED,
    }
