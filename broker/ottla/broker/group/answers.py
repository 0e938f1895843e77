"""The bodies of successful answers to JoinGroup and SyncGroup. Pure.

The answers describe a generation to one of its members. Answers with an error are made where the error is found
(`Effects.answer_join`, `Effects.answer_sync`).

Source: Kafka's JoinGroupResponse.json and SyncGroupResponse.json.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.errors import ErrorCode

from .roster import Member, Roster


def joined(
    roster: Roster, generation: int, protocol: str | None, member: Member, *, with_members: bool
) -> dict[str, Any]:
    """The answer to a member's JoinGroup. Only the leader's answer needs the members' metadata (`with_members`): the
    leader computes the assignment from it."""
    return {
        "error_code": ErrorCode.none,
        "generation_id": generation,
        "protocol_type": roster.protocol_type,
        "protocol_name": protocol,
        "leader": roster.leader,
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": [
            {
                "member_id": other.member_id,
                "group_instance_id": other.instance_id,
                "metadata": other.metadata(protocol),
            }
            for other in (roster if with_members else ())
        ],
    }


def synced(roster: Roster, protocol: str | None, member: Member) -> dict[str, Any]:
    """The answer to a member's SyncGroup: its assignment."""
    return {
        "error_code": ErrorCode.none,
        "protocol_type": roster.protocol_type,
        "protocol_name": protocol,
        "assignment": member.assignment,
    }
