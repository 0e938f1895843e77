"""What a person may confirm after a refusal of a topic's transactions, in the words of pipelines. Pure.

`ottla.spark.decisions` refuses with the name of an option of Spark's writer. A pipeline has no such options: the
command takes the confirmation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

CONFIRM = "ottla.exactlyOnce.confirm"
_WORDS = (
    (r"the option ottla\.exactlyOnce\.confirm = '([^']*)'", r"the option --confirm '{query}=\1'"),
    (r"set it to '([^']*)'", r"set it to '{query}=\1'"),
    (r"\('rewrite'\)", r"(rewrite)"),
    (r"\('skip'\)", r"(skip)"),
    (r"under this query name", r"under this sink's name"),
    (r"another queryName", r"another `name` of the sink"),
    (r"startingOffsets of its own", r"a `start` of its own"),
    (r"raise kafka\.transaction\.timeout\.ms", r"raise transaction.timeout.ms under `kafka`"),
)


class Unconfirmed(Exception):
    """A topic's transactions refuse to go on; the message says what may be confirmed."""


def in_words_of_pipelines(message: str, query: str) -> str:
    """The message of a refusal with the words of a pipeline. `query` is the query's name, `<pipeline>.<sink>`."""
    for pattern, words in _WORDS:
        message = re.sub(pattern, words.replace("{query}", query), message)
    return message


def confirmations(given: Iterable[str], queries: Collection[str]) -> dict[str, str]:
    """The confirmed texts by the queries' names. Each given one is `<sink>=<text>` or `<pipeline>.<sink>=<text>`;
    `queries` has the names of those that write transactions. Raises ValueError."""
    found: dict[str, str] = {}
    for each in given:
        sink, equals, text = (part.strip() for part in each.partition("="))
        meant = [name for name in queries if sink in (name, name.partition(".")[2])]
        if not equals or not text:
            raise ValueError(f"--confirm '{each}' doesn't have the form <pipeline>.<sink>=<text>")
        if not meant:
            known = ", ".join(sorted(queries)) or "none"
            raise ValueError(f"--confirm: no sink '{sink}' writes transactions; those that do are: {known}")
        if len(meant) > 1:
            raise ValueError(f"--confirm: '{sink}' is a sink of several pipelines: say one of {', '.join(meant)}")
        found[meant[0]] = text
    return found
