"""`ottla quotas` against a cluster."""

from __future__ import annotations

from tests.cli.conftest import Ottla


def test_limits_are_set_listed_and_removed(ottla: Ottla) -> None:
    both = ("--user", "al ice", "--client-id", "app")
    done = ottla("quotas", "set", *both, "producer_byte_rate=1000000", "request_percentage=12.5")
    assert done.code == 0, done.stderr
    assert ottla("quotas", "set", "--default-user", "consumer_byte_rate=5e6").code == 0
    assert ottla("quotas", "set", "--ip", "127.0.0.1", "connection_creation_rate=100000").code == 0
    listed = ottla("quotas", "list", "--json").json
    assert {"entity": {"user": None}, "limits": {"consumer_byte_rate": 5_000_000.0}} in listed
    [mine] = ottla("quotas", "list", "--user", "al ice", "--json").json
    assert mine["entity"] == {"user": "al ice", "client-id": "app"}
    assert mine["limits"] == {"producer_byte_rate": 1_000_000.0, "request_percentage": 12.5}
    table = ottla("quotas", "list").stdout.splitlines()
    assert table[0].split() == ["USER", "CLIENT-ID", "IP", "LIMIT", "VALUE"]
    assert any(line.split() == ["<default>", "-", "-", "consumer_byte_rate", "5000000"] for line in table)

    assert ottla("quotas", "remove", *both, "request_percentage").code == 0
    assert ottla("quotas", "list", "--user", "al ice", "--json").json[0]["limits"] == {"producer_byte_rate": 1e6}
    assert ottla("quotas", "remove", *both).code == 0
    assert ottla("quotas", "remove", "--default-user").code == 0
    assert ottla("quotas", "remove", "--ip", "127.0.0.1").code == 0
    assert ottla("quotas", "list", "--json").json == []
    assert "no limits" in ottla("quotas", "list").stderr


def test_only_the_check_of_a_limit_sets_nothing(ottla: Ottla) -> None:
    done = ottla("quotas", "set", "--user", "bob", "producer_byte_rate=1", "--validate-only")
    assert "could be set" in done.stdout
    assert ottla("quotas", "list", "--user", "bob", "--json").json == []


def test_mistakes_are_explained(ottla: Ottla) -> None:
    for arguments, code, words in (
        (("set", "producer_byte_rate=1"), 2, "whose limits?"),
        (("set", "--user", "u", "--default-user", "producer_byte_rate=1"), 2, "exclude each other"),
        (("set", "--user", "u", "producer_rate=1"), 2, "Did you mean 'producer_byte_rate'?"),
        (("set", "--user", "u", "producer_byte_rate=much"), 2, "is not a number"),
        (("set", "--user", "u", "producer_byte_rate=0"), 1, "must be greater than 0"),
        (("set", "--user", "u", "producer_byte_rate=1.5"), 1, "cannot be a fractional value"),
        (("set", "--user", "u", "--ip", "127.0.0.1", "producer_byte_rate=1"), 1, "IP"),
        (("set", "--ip", "127.0.0.1", "producer_byte_rate=1"), 1, "producer_byte_rate"),
        (("remove", "--user", "nobody"), 4, "user nobody has no limits"),
    ):
        done = ottla("quotas", *arguments)
        assert (done.code, words in done.stderr) == (code, True), (arguments, done.code, done.stderr)
