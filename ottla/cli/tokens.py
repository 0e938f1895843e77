"""`ottla tokens`: delegation tokens, by which others log in as the user who made the token.

A token is an id and an HMAC. The HMAC is the token's password, so a command never takes it as an argument: it names the
token by its id, and asks the brokers for the HMAC. kafka-python's admin client has no methods for tokens, so a
connection of Ottla's own sends the requests. (Kafka: `kafka-delegation-tokens`.)
"""

from __future__ import annotations

import base64
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.errors import CommandError, NotFound, UsageError, explain_code, nearest
from ottla.cli.help import App
from ottla.cli.offsets import confirm
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.cli.times import duration_ms, moment_text

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

app = App(no_args_is_help=True, help="Delegation tokens, by which others log in as a user.")

CREATE, RENEW, EXPIRE, DESCRIBE = (38, 1, 3), (39, 1, 2), (40, 1, 2), (41, 1, 3)  # key, lowest and newest version
WITH_OWNERS = (38, 3, 3)  # CreateDelegationToken for somebody else (KIP-373)
OWN_KEY = ("ssl.keystore.", "ssl.key.")  # the private key and certificate of the user who makes a token
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_USUAL, _AT_ONCE = -1, -1  # ms: the brokers' own period for a life or a renewal; the end of a token

COLUMNS = {
    "id": "TOKEN",
    "owner": "OWNER",
    "requester": "REQUESTER",
    "renewers": "RENEWERS",
    "expires": "EXPIRES",
    "ends": "ENDS",
}
TokenArgument = Annotated[str, typer.Argument(metavar="TOKEN", help="The token's id.")]


@app.command("list")
@cluster_command
def list_tokens(
    cluster: Cluster,
    output: Output,
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="TYPE:NAME", help="Only tokens of this user; repeatable.")
    ] = None,
    hmac: Annotated[bool, typer.Option("--hmac", help="Show the HMACs, too, which are passwords.")] = False,
) -> None:
    """Show the delegation tokens that you own, renew, or may describe."""
    tokens = _described(cluster, [_principal(each) for each in owner] if owner else None)
    columns = COLUMNS | {"hmac": "HMAC"} if hmac else COLUMNS
    rows = [_row(token, hmac=hmac) for token in sorted(tokens, key=lambda token: token.expiry_timestamp)]
    output.rows(rows, columns, empty="There are no tokens. Make one: ottla tokens create")


@app.command()
@cluster_command
def create(
    cluster: Cluster,
    output: Output,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="TYPE:NAME", help="Whose token; by default your own.")
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", metavar="TYPE:NAME", help="Who may renew it, besides the owner; may be repeated."),
    ] = None,
    life: Annotated[
        str | None, typer.Option("--life", metavar="DURATION", help="Its longest life, such as 12h or 7d.")
    ] = None,
    client_file: Annotated[
        Path | None,
        typer.Option(
            "--client-file",
            metavar="FILE",
            help="Write a file of client properties that logs in by the token, instead of showing its HMAC.",
        ),
    ] = None,
) -> None:
    """Make a delegation token. Whoever has its id and HMAC logs in by SCRAM as its owner."""
    message: dict[str, Any] = {
        "renewers": [_principal(each) for each in renewer or []],
        "max_lifetime": _USUAL if life is None else _duration(life),
    }
    if owner is not None:
        message |= {f"owner_{field}": value for field, value in _principal(owner).items()}
    ask = partial(_created, cluster, CREATE if owner is None else WITH_OWNERS, message)
    if client_file is None:
        row, hmac = ask()
        labels = {"id": "Token", "owner": "Owner", "expires": "Expires", "ends": "Ends at the latest", "hmac": "HMAC"}
        output.record(row | {"hmac": hmac}, labels)
        return
    from ottla.cli.client_file import private_file

    # What may fail comes before the request, because a token whose HMAC is lost still counts as one of its owner's.
    given, own = _own_properties(cluster)
    with private_file(client_file) as write:
        row, hmac = ask()
        write(_client_properties(given, row["id"], hmac))
    if own:
        output.note(f"{client_file} has no {', '.join(own)}: the key is yours, not that of whoever gets the token.")
    output.done(
        f"Token {row['id']} of {row['owner']} expires at {row['expires']}. {client_file} logs in by it.",
        row | {"client_file": str(client_file)},
    )


@app.command()
@cluster_command
def renew(
    cluster: Cluster,
    output: Output,
    token: TokenArgument,
    period: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="From now on; by default the brokers' own period.")
    ] = None,
) -> None:
    """Let a token expire later, at the latest when its longest life ends."""
    hmac = _found(cluster, token).hmac
    answer = cluster.ask(RENEW, {"hmac": hmac, "renew_period": _USUAL if period is None else _duration(period)})
    _check(answer, f"token '{token}'")
    expires = _moment(answer.expiry_timestamp)
    output.done(f"Token {token} expires at {expires}.", {"id": token, "expires": expires})


@app.command()
@cluster_command
def expire(
    cluster: Cluster,
    output: Output,
    token: TokenArgument,
    after: Annotated[
        str | None, typer.Option("--in", metavar="DURATION", help="From now on; by default the token ends at once.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
) -> None:
    """End a token, at once or at another time. Open connections that logged in by it end with their sessions."""
    period = _AT_ONCE if after is None else _duration(after)
    found = _found(cluster, token)
    if after is None:
        confirm(f"End token {token} of {found.principal_type}:{found.principal_name}?", yes, output)
    answer = cluster.ask(EXPIRE, {"hmac": found.hmac, "expiry_time_period": period})
    _check(answer, f"token '{token}'")
    expires = _moment(answer.expiry_timestamp)
    ended = f"Token {token} is ended." if after is None else f"Token {token} expires at {expires}."
    output.done(ended, {"id": token, "expires": expires})


def _described(cluster: Cluster, owners: list[dict[str, str]] | None) -> list[Any]:
    answer = cluster.ask(DESCRIBE, {"owners": owners})
    _check(answer, "the tokens")
    return list(answer.tokens)


def _found(cluster: Cluster, token_id: str) -> Any:
    """The token with this id, of those that the client may see. Raises NotFound."""
    tokens = {token.token_id: token for token in _described(cluster, None)}
    if token_id not in tokens:
        raise NotFound(f"there is no token '{token_id}' that you may see", nearest(token_id, tokens).strip())
    return tokens[token_id]


def _check(answer: Any, subject: str) -> None:
    if answer.error_code:
        raise explain_code(int(answer.error_code), subject)


def _principal(text: str) -> dict[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise UsageError(f"'{text}' has no type", f"Write the type before a colon: User:{text}.")
    return {"principal_type": kind, "principal_name": name}


def _duration(text: str) -> int:
    found = duration_ms(text)
    if not found or text[0] in "+-":
        raise UsageError(f"'{text}' is not a duration", "Write 90s, 15m, 12h or 7d.")
    return found


def _moment(moment: datetime | int) -> str:
    """A time of an answer: in descriptions, kio reads it as a number in ms."""
    return moment_text(moment if isinstance(moment, int) else round(moment.timestamp() * 1000))


def _row(token: Any, *, hmac: bool) -> dict[str, Any]:
    shown = {"hmac": base64.b64encode(token.hmac).decode()} if hmac else {}
    return {
        "id": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "requester": _requester(token),
        "renewers": [f"{each.principal_type}:{each.principal_name}" for each in token.renewers],
        "issued": _moment(token.issue_timestamp),
        "expires": _moment(token.expiry_timestamp),
        "ends": _moment(token.max_timestamp),
        **shown,
    }


def _requester(token: Any) -> str | None:
    """Who made the token; None if the broker's version of the answer doesn't say it."""
    kind = getattr(token, "token_requester_principal_type", "")
    return f"{kind}:{token.token_requester_principal_name}" if kind else None


def _created(cluster: Cluster, api: tuple[int, int, int], message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """(the new token as a row, its HMAC)."""
    answer = cluster.ask(api, message)
    _check(answer, "the token")
    row = {
        "id": answer.token_id,
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "expires": _moment(answer.expiry_timestamp),
        "ends": _moment(answer.max_timestamp),
    }
    return row, base64.b64encode(answer.hmac).decode()


def _own_properties(cluster: Cluster) -> tuple[dict[str, str], list[str]]:
    """(the properties by which this command connects, the names of those of its user's own certificate, which aren't
    among them)."""
    from ottla.settings.properties import parse_properties

    if cluster.command_config is None:
        raise CommandError("without --command-config there is no login, and so no token")
    given = parse_properties(cluster.command_config.read_text(encoding="utf-8"))
    own = sorted(name for name in given if name.startswith(OWN_KEY))
    return {name: value for name, value in given.items() if name not in own}, own


def _client_properties(given: dict[str, str], token_id: str, hmac: str) -> str:
    """The text of a client's file that connects by the given properties, and logs in by the token."""
    from ottla.cli.client_file import properties_text, scram_login

    kept = {name: value for name, value in given.items() if name.startswith(("security.", "ssl."))}
    mechanism = given.get("sasl.mechanism", "")
    return properties_text(
        kept | scram_login(mechanism if mechanism in SCRAM else SCRAM[1], token_id, hmac, by_token=True)
    )
