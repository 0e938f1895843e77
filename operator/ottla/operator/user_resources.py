"""The User resources in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.operator.resources import Resources
from ottla.operator.spec.user import UserResource, parse_user


class UserResources(Resources[UserResource]):
    """All User resources of the watched namespaces. Nothing has to be remembered of a User that is gone, because the
    record of principals (`plan/recorded_users.py`) says what it left in Kafka."""

    kind = "User"

    def parsed(self, body: Mapping[str, Any]) -> UserResource:
        """Reads a User."""
        return parse_user(body)
