"""ACLs in the words of the command line."""

from __future__ import annotations

from ottla.cli.acl_words import bindings_of, in_words, resources_of


def test_rights_to_others_delegation_tokens_are_named() -> None:
    resources = resources_of(None, None, None, False, ["User:bob", "*"], None)
    bindings = bindings_of(
        resources, ["User:app"], [], ["create-tokens"], [], prefixed=False, producer=False, consumer=False
    )
    tokens = bindings_of(
        resources_of(None, None, None, False, None, ["id"]),
        ["User:app"], [], ["describe"], [], prefixed=False, producer=False, consumer=False,
    )  # fmt: skip
    assert [in_words(binding) for binding in (*bindings, *tokens)] == [
        "User:app may create-tokens on user 'User:bob'",
        "User:app may create-tokens on every user",
        "User:app may describe on delegation token 'id'",
    ]
