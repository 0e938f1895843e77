"""Failures, each as one line that says what was wrong, and what to do about it.

Owns the exit codes that scripts rely on and the table from Kafka's error codes to sentences. Pure. Error codes are
plain numbers (Kafka's `Errors` enum), so this module doesn't import the Kafka client.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, NoReturn


class ExitCode(IntEnum):
    """The process's exit codes, for scripts. docs/cli.md documents them; a number never changes its meaning."""

    ok = 0
    failed = 1
    usage = 2
    unreachable = 3
    not_found = 4
    timed_out = 5
    interrupted = 130
    pipe_closed = 141
    terminated = 143


class CommandError(Exception):
    """The command can't continue. `message` says why. `remedy` says what to do about it, and may be empty."""

    def __init__(
        self, message: str, remedy: str = "", exit_code: ExitCode = ExitCode.failed, kafka_code: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code
        self.kafka_code = kafka_code

    def line(self) -> str:
        """The error as a person reads it, on one line."""
        return sentences(self.message, self.remedy)


class Failures(CommandError):
    """Several errors as one exception. Each error is printed on a line of its own. The exit code is that of the first
    error."""

    def __init__(self, errors: list[CommandError]) -> None:
        super().__init__("; ".join(error.line() for error in errors), "", errors[0].exit_code)
        self.errors = errors


def raise_all(failures: list[CommandError]) -> None:
    """Raises the failures as one exception; returns if there are none."""
    if failures:
        raise failures[0] if len(failures) == 1 else Failures(failures)


class PipeClosed(Exception):
    """The reader of the command's output has closed the pipe. The command ends without a message."""


def end_by_signal(signum: int, frame: object) -> NoReturn:
    """A handler of SIGTERM that ends the command as an exception does, so that its `finally` clauses are run."""
    raise SystemExit(ExitCode.terminated)


def sentences(*parts: str) -> str:
    """The non-empty texts, joined to one line. If there are several texts, each ends with a full stop."""
    flat = [text for text in (" ".join(part.split()) for part in parts) if text]
    ended = [text if text.endswith((".", "?", "!")) else text + "." for text in flat]
    return flat[0] if len(flat) == 1 else " ".join(ended)


class UsageError(CommandError):
    """The command line is invalid."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy, ExitCode.usage)


class NotFound(CommandError):
    """The named thing doesn't exist."""

    def __init__(self, message: str, remedy: str = "", kafka_code: int = 0) -> None:
        super().__init__(message, remedy, ExitCode.not_found, kafka_code)


def unreadable(path: object, error: OSError, remedy: str = "") -> CommandError:
    """The error for a file or directory that can't be read; a missing one is NotFound, as a missing topic is."""
    if isinstance(error, FileNotFoundError):
        return NotFound(f"there is no {path}", remedy)
    return CommandError(f"can't read {path}: {(error.strerror or str(error)).lower()}", remedy)


class _Sentence(NamedTuple):
    """A message and a remedy; `{0}` stands for the resource that the request was about."""

    message: str
    remedy: str = ""
    exit_code: ExitCode = ExitCode.failed


_SENTENCES: dict[int, _Sentence] = {
    -1: _Sentence("the broker failed unexpectedly while working on {0}", "The broker's log says why."),
    1: _Sentence(
        "the offset is outside of the offsets of {0}",
        "`ottla offsets TOPIC` shows the first and the end offset.",
        ExitCode.not_found,
    ),
    2: _Sentence("a record batch of {0} is corrupt", "`ottla log verify FILE` shows where."),
    3: _Sentence("{0} doesn't exist", "`ottla topics list` shows all topics.", ExitCode.not_found),
    5: _Sentence("{0} has no leader at the moment", "Try again, or see `ottla topics describe`."),
    6: _Sentence("the leader of {0} has just changed", "Try again."),
    7: _Sentence("{0}: the request timed out in the broker; it may still be carried out", "", ExitCode.timed_out),
    8: _Sentence("the broker that is needed for {0} isn't available", "`ottla brokers list` shows which brokers run."),
    10: _Sentence(
        "a record is larger than {0} accepts", "Raise max.message.bytes of the topic, or send smaller records."
    ),
    14: _Sentence("the coordinator of {0} is still loading", "Try again in a moment."),
    15: _Sentence("the coordinator of {0} isn't available", "Try again in a moment."),
    16: _Sentence("the coordinator of {0} has just moved", "Try again."),
    17: _Sentence("{0} is not a name that a topic can have, or it is internal"),
    18: _Sentence("the record batch is larger than segment.bytes of {0}", "Send smaller batches."),
    19: _Sentence(
        "{0} has fewer in-sync replicas than min.insync.replicas asks for",
        "`ottla topics describe` shows the replicas.",
    ),
    20: _Sentence(
        "{0} fell below min.insync.replicas after the write; the records may be lost",
        "`ottla topics describe` shows the replicas.",
    ),
    24: _Sentence("{0} is not a name that a group can have"),
    25: _Sentence("{0}: the group doesn't know the member that sent the request", "Stop the group's consumers first."),
    27: _Sentence("{0} is rebalancing", "Try again in a moment."),
    29: _Sentence("not allowed to work on {0}", "Ask for the right, or use another principal."),
    30: _Sentence("not allowed to use {0}", "Ask for the right, or use another principal."),
    31: _Sentence("not allowed to make this request to the cluster", "Ask for the right, or use another principal."),
    32: _Sentence(
        "the timestamp is outside what {0} accepts",
        "See message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
    ),
    35: _Sentence("the broker is too old or too new for this request about {0}"),
    36: _Sentence("{0} exists already", "`ottla topics create --if-not-exists` accepts an existing topic."),
    37: _Sentence(
        "the number of partitions of {0} is invalid",
        "A topic has at least 1 partition, and their number can only grow.",
    ),
    38: _Sentence(
        "the replication factor of {0} is invalid",
        "A replication factor is at least 1 and at most the number of brokers.",
    ),
    39: _Sentence("the replica assignment of {0} is invalid"),
    40: _Sentence("the configuration of {0} is invalid", "`ottla configs describe … --all` shows names and values."),
    41: _Sentence("the controller has just moved", "Try again."),
    42: _Sentence("the broker refuses the request about {0} as invalid"),
    44: _Sentence("a policy of the cluster forbids the request about {0}"),
    47: _Sentence("{0}: the producer's epoch is old", "Another producer may have taken over its transactional id."),
    48: _Sentence("{0} is in a state that doesn't allow this", "`ottla transactions describe` shows the state."),
    49: _Sentence("the producer id isn't that of {0}", "`ottla transactions describe` shows the producer id."),
    50: _Sentence("the time-out is longer than transaction.max.timeout.ms of the brokers", "Ask for a shorter one."),
    51: _Sentence("the last transaction of {0} is still being ended", "Try again in a moment."),
    52: _Sentence("a newer coordinator has written to {0}", "`ottla transactions producers` shows the present state."),
    53: _Sentence("not allowed to use {0}", "Ask for the right, or use another principal."),
    54: _Sentence(
        "{0}: the brokers have no authorizer, so every client may do everything",
        "Set authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer, and super.users, in the "
        "settings of all brokers.",
    ),
    56: _Sentence("the log directory of {0} has failed", "`ottla log-dirs` shows the failed directory."),
    57: _Sentence("the broker has no such log directory for {0}"),
    60: _Sentence("the partitions of {0} are being reassigned", "Try again when the reassignment is done."),
    61: _Sentence(
        "the brokers have no delegation tokens", "Set delegation.token.secret.key in the settings of all brokers."
    ),
    62: _Sentence("{0} doesn't exist", "`ottla tokens list` shows all of them.", ExitCode.not_found),
    63: _Sentence("{0}: only the token's owner and its renewers may do this"),
    64: _Sentence(
        "{0}: tokens are for users that are logged in, and not by a token themselves",
        "Use a listener with a login, and a login with a password, in the file of --command-config.",
    ),
    65: _Sentence(
        "not allowed to make tokens of this user",
        "Ask for the right: ottla acls create --allow … --user … --operation create-tokens.",
    ),
    66: _Sentence("{0} has expired", "Make another one: ottla tokens create."),
    67: _Sentence("{0}: renewers are users", "Write them as User:NAME."),
    68: _Sentence("{0} still has active members", "Stop the group's consumers first, then try again."),
    69: _Sentence("{0} doesn't exist", "`ottla groups list` shows all groups.", ExitCode.not_found),
    73: _Sentence(
        "deleting topics is switched off in the cluster", "Set delete.topic.enable=true in the settings of all brokers."
    ),
    78: _Sentence("the new leader of {0} doesn't know the high watermark yet", "Try again in a moment."),
    84: _Sentence("no replica of {0} can be elected as leader"),
    86: _Sentence("{0}: members of the group still read the topic", "Stop the consumers first, then try again."),
    87: _Sentence("{0} refused a record", "A compacted topic needs a key in every record."),
    89: _Sentence("the broker is over its quota", "Try again later."),
    90: _Sentence(
        "another producer has taken over {0}", "Producers that run at the same time need different transactional ids."
    ),
    100: _Sentence("the topic id of {0} isn't known", "The topic may have been deleted and created again."),
    105: _Sentence("{0} doesn't exist", "`ottla transactions list` shows all of them.", ExitCode.not_found),
    120: _Sentence("{0}: the transaction can only be aborted"),
}


def explain_code(code: int, subject: str, server_message: str | None = None, *, code_name: str = "") -> CommandError:
    """The CommandError for a Kafka error code about `subject` ("topic 'flights'"). A message that the broker sent
    replaces the message of this module's table, unless the code says that something doesn't exist or exists already."""
    sentence = _SENTENCES.get(code)
    if sentence is None:
        named = code_name or f"error {code}"
        return CommandError(f"{subject}: {server_message or f'the broker answered {named}'}", kafka_code=code)
    if server_message and not server_message.isupper() and code not in (3, 36, 69):
        text = server_message.rstrip(".")
        name = subject.split("'")[1:2]
        mentioned = bool(name) and re.search(rf"(?<![\w.-]){re.escape(name[0])}(?![\w-])", text) is not None
        message = text if mentioned else f"{subject}: {text}"
        return CommandError(message, sentence.remedy, sentence.exit_code, code)
    return CommandError(sentence.message.format(subject), sentence.remedy, sentence.exit_code, code)


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` if a known name is close to `name`, else an empty text."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""
