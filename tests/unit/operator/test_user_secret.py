"""The Secret of a User: what it holds for clients, whose it is, which password it keeps, and when it is written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.operator.certificates import encoded
from ottla.operator.objects import Ref, is_owned_by_former
from ottla.operator.plan.client_files import Access, client_files, properties
from ottla.operator.plan.user_secret import (
    in_force_mark,
    is_somebody_elses,
    password_problem,
    password_to_keep,
    secret_patch,
    user_secret,
    wants_renewal,
)
from ottla.operator.spec.user import Login, UserResource
from ottla.security.jaas import parse_jaas
from ottla.settings.properties import parse_properties

USER = UserResource(Ref("shop", "a"), "u-1", "2026-01-01T00:00:00Z", 1, Ref("shop", "main"), "a", Login.SCRAM)
PASSWORDS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30)


def there(user: UserResource = USER, data: dict[str, bytes] | None = None, mark: str = "") -> dict[str, Any]:
    """The Secret of a User as Kubernetes gives it."""
    made = user_secret(user, encoded(data or {"password": b"old"}), mark)
    made["metadata"] |= {"uid": "s-1", "resourceVersion": "5"}
    return made


@given(PASSWORDS)
def test_clients_read_the_password_that_was_written(password: str) -> None:
    access = Access("b:1", "SASL_SSL", "a", "trust\n", password)
    read = parse_properties(client_files(access)["client.properties"])
    assert parse_jaas(read["sasl.jaas.config"]).options == {"username": "a", "password": password}
    lines = dict(line.split("=", 1) for line in client_files(access)["librdkafka.conf"].splitlines())
    assert lines["sasl.password"] == password


@given(st.dictionaries(st.sampled_from(("bootstrap", "trust", "certificate", "key")), st.text(max_size=40)))
def test_properties_hold_every_text_as_it_is(texts: dict[str, str]) -> None:
    access = replace(Access("b:1", "SSL", "CN=a", "t", "", "c", "k"), **texts)
    assert parse_properties(client_files(access)["client.properties"]) == properties(access)
    spark = json.loads(client_files(access)["spark-options.json"])
    assert spark == {f"kafka.{name}": value for name, value in properties(access).items()}


def test_a_certificate_needs_no_login_and_a_listener_without_tls_no_trust() -> None:
    by_certificate = client_files(Access("b:1", "SSL", "CN=a", "trust", "", "certificate", "key"))
    assert "sasl" not in "".join(by_certificate.values())
    assert "ssl.certificate.location=/etc/ottla/user/user.crt" in by_certificate["librdkafka.conf"]
    in_the_clear = client_files(Access("b:1", "SASL_PLAINTEXT", "a", password="p"))
    assert "ssl." not in "".join(in_the_clear.values())


def test_no_secret_is_shown_by_chance() -> None:
    assert "hidden" not in repr(Access("b:1", "SSL", "CN=a", "trust", "hidden", "c", "hidden"))


@pytest.mark.parametrize("password", ["", " x", "x\n", "a\tb", "\x7f"])
def test_passwords_with_which_no_client_could_log_in_are_refused(password: str) -> None:
    assert password_problem(password)
    assert password_to_keep({"password": password.encode()}, given=None, renew=False, random="new") == "new"


def test_the_password_is_kept_unless_somebody_wants_another() -> None:
    found = {"password": b"old"}
    assert password_to_keep(found, given=None, renew=False, random="new") == "old"
    assert password_to_keep(found, given=None, renew=True, random="new") == "new"
    assert password_to_keep(found, given="theirs", renew=True, random="new") == "theirs"
    assert password_to_keep({}, given=None, renew=False, random="new") == "new"


def test_a_renewal_is_wanted_once_for_each_value() -> None:
    renewed = replace(USER, renew="1")
    assert not wants_renewal(None, renewed)
    assert not wants_renewal(there(), USER)
    assert wants_renewal(there(), renewed)
    assert not wants_renewal(there(renewed), renewed)
    assert wants_renewal(there(renewed), replace(USER, renew="2"))
    assert not wants_renewal(there(renewed), USER)


def test_a_mark_fits_only_what_was_sent() -> None:
    marks = {
        in_force_mark(*each)
        for each in (
            ("p", "a", "c-1", ""),
            ("q", "a", "c-1", ""),
            ("p", "b", "c-1", ""),
            ("p", "a", "c-2", ""),
            ("p", "a", "c-1", "1"),
        )
    }
    assert len(marks) == 5
    assert not any("p" in mark or "q" in mark for mark in marks), "a digest in hexadecimal digits"


def test_whose_a_secret_is() -> None:
    ours = there()
    assert not is_somebody_elses(ours, USER)
    assert not is_owned_by_former(ours, "User", USER.ref.name, USER.uid)
    successor = replace(USER, uid="u-2")
    assert not is_somebody_elses(ours, successor)
    assert is_owned_by_former(ours, "User", successor.ref.name, successor.uid)
    orphaned = there()
    del orphaned["metadata"]["ownerReferences"]
    assert not is_somebody_elses(orphaned, successor)
    assert not is_owned_by_former(orphaned, "User", successor.ref.name, successor.uid)
    assert is_somebody_elses({"metadata": {"name": "a"}}, USER)
    theirs = there(replace(USER, ref=Ref("shop", "b")))
    assert is_somebody_elses(theirs, USER)


def test_an_equal_secret_is_not_written_and_others_labels_stay() -> None:
    found = there(mark="m")
    found["metadata"]["labels"]["theirs"] = "yes"
    found["metadata"]["annotations"]["theirs"] = "yes"
    assert secret_patch(found, there(mark="m")) is None


def test_a_patch_takes_old_parts_away_and_holds_only_for_what_was_read() -> None:
    found = there(replace(USER, renew="1"), {"password": b"old", "user.crt": b"c"}, "m")
    patch = secret_patch(found, there(USER, {"password": b"new"}))
    assert patch is not None
    assert patch["data"] == {**encoded({"password": b"new"}), "user.crt": None}
    assert patch["metadata"]["annotations"] == {"ottla.dev/renewed-for": None, "ottla.dev/password-in-force": None}
    assert (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]) == ("s-1", "5")
