"""JAAS configurations: what people paste, the syntax of Java's tokenizer, and messages without secrets."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.security.jaas import (
    FLAGS,
    KERBEROS_MODULE,
    MODULES,
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    InvalidJaas,
    parse_jaas,
)
from tests.unit.examples import examples


@pytest.mark.parametrize(
    ("text", "module", "options"),
    [
        (f'{PLAIN_MODULE} required username="a" password="b";', PLAIN_MODULE, {"username": "a", "password": "b"}),
        (f"{SCRAM_MODULE} REQUIRED username=a password='it\"s';", SCRAM_MODULE, {"username": "a", "password": 'it"s'}),
        (f"  {PLAIN_MODULE}\n  sufficient\n  user_a.b-c=$x_1\n;  ", PLAIN_MODULE, {"user_a.b-c": "$x_1"}),
        (f"{OAUTHBEARER_MODULE} required ;", OAUTHBEARER_MODULE, {}),
        (f'{KERBEROS_MODULE} optional keyTab="/etc/k.keytab";', KERBEROS_MODULE, {"keyTab": "/etc/k.keytab"}),
        (f'{PLAIN_MODULE} requisite password="a\\"b\\\\c\\n\\101\\7x";', PLAIN_MODULE, {"password": 'a"b\\c\nA\x07x'}),
        (f'// first\n{PLAIN_MODULE} /* flag */ required / rest\n username=a;', PLAIN_MODULE, {"username": "a"}),
        (f'{PLAIN_MODULE} required a=b a=c "q k"=d;', PLAIN_MODULE, {"a": "c", "q k": "d"}),
        (f"{PLAIN_MODULE} required user_jürgen=päßchen;", PLAIN_MODULE, {"user_jürgen": "päßchen"}),
        (f'{PLAIN_MODULE} required password="a=b;c//d";', PLAIN_MODULE, {"password": "a=b;c//d"}),
    ],
)  # fmt: skip
def test_accepted(text: str, module: str, options: dict[str, str]) -> None:
    login = parse_jaas(text)
    assert (login.module, login.options) == (module, options)
    assert login.flag in FLAGS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no login module"),
        ("// nothing", "names no login module"),
        ("hunter2 required;", "its beginning isn't one of Kafka's login modules"),
        ("com.example.EvilLoginModule required;", "com.example.EvilLoginModule isn't one of Kafka's login modules"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "isn't one of Kafka's login modules"),
        ('username="hunter2"', "isn't one of Kafka's login modules"),
        (PLAIN_MODULE, "needs a flag"),
        (f'{PLAIN_MODULE} username="hunter2";', "needs a flag"),
        (f'{PLAIN_MODULE} required username="hunter2"', "doesn't end with a semicolon"),
        (f"{PLAIN_MODULE} required password=hunter2!;", "where a key or a semicolon belongs"),
        (f"{PLAIN_MODULE} required password=2hunter2;", "has no value for password"),
        (f"{PLAIN_MODULE} required password=;", "has no value for password"),
        (f"{PLAIN_MODULE} required password;", "has no value for an option"),
        (f'{PLAIN_MODULE} required password="hunter2;', "an opening quote without a closing one"),
        (f'{PLAIN_MODULE} required password="hunter2\n";', "an opening quote without a closing one"),
        (f"{PLAIN_MODULE} required a=b; {PLAIN_MODULE} required password=hunter2;", "more than one login module"),
        (f"{PLAIN_MODULE} required a=b; trailing", "more than one login module"),
        (f"{PLAIN_MODULE} required /* hunter2", "a comment without an end"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidJaas, match=reason) as error:
        parse_jaas(text)
    assert "hunter2" not in str(error.value)


VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=20)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@settings(max_examples=examples(200))
@given(st.sampled_from(MODULES), st.sampled_from(FLAGS), st.dictionaries(st.text("abcXYZ_$", min_size=1), VALUES))
def test_any_options_in_quotes_are_read_back(module: str, flag: str, options: dict[str, str]) -> None:
    text = f"{module} {flag} " + "\n".join(f"{key}={quoted(value)}" for key, value in options.items()) + ";"
    login = parse_jaas(text)
    assert (login.module, login.flag, login.options) == (module, flag, options)


PIECES = st.sampled_from([PLAIN_MODULE, "required", *"ab1=;\"'\\/* \n-._$%é"])


@settings(max_examples=examples(500))
@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidJaas):
        assert parse_jaas(text).module == PLAIN_MODULE


def test_a_login_prints_no_options() -> None:
    assert "hunter2" not in repr(parse_jaas(f'{PLAIN_MODULE} required password="hunter2";'))
