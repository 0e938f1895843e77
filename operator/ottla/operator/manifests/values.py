"""Reads a chart's values.yaml, and makes from it the table in the chart's README and its values.schema.json. Pure.

Each key has a default and a comment above it. A key without a comment is an error, so that the table and the schema are
complete. A comment line `@schema {…}` adds to the schema that follows from the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Schema = dict[str, Any]

_MARK = "@schema "
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One key of values.yaml. `path`: the keys above this key and the key itself, with dots; `extra`: what the
    `@schema` lines above the key add to the key's schema."""

    path: str
    default: Any
    description: str
    extra: Schema
    children: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The last key of the path, such as `cpu` of `resources.requests.cpu`."""
        return self.path.rpartition(".")[2]


def read_values(text: str) -> tuple[Value, ...]:
    """The top keys, in the file's order. Raises ValueError if a key without keys below it has no comment."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return tuple(_children(root, text.splitlines(), ""))


def _children(node: yaml.MappingNode, lines: list[str], above: str) -> Iterator[Value]:
    for key, content in node.value:
        path = f"{above}{key.value}"
        description, extra = _comment(lines, key.start_mark.line)
        children: tuple[Value, ...] = ()
        if isinstance(content, yaml.MappingNode):
            children = tuple(_children(content, lines, f"{path}."))
        if not description and not children:
            raise ValueError(f"line {key.start_mark.line + 1}: {path} has no comment above it")
        default = yaml.safe_load(yaml.serialize(content, Dumper=yaml.SafeDumper))
        yield Value(path, default, description, extra, children)


def _comment(lines: list[str], key_line: int) -> tuple[str, Schema]:
    """The text of the comment lines directly above a key, and what their `@schema` lines add to the key's schema."""
    first = key_line
    while first and lines[first - 1].strip().startswith("#"):
        first -= 1
    texts = [line.strip().removeprefix("#").strip() for line in lines[first:key_line]]
    extra: Schema = {}
    for text in texts:
        if text.startswith(_MARK):
            extra |= json.loads(text.removeprefix(_MARK))
    return " ".join(text for text in texts if not text.startswith(_MARK)), extra


def values_table(values: tuple[Value, ...]) -> str:
    """The table for the chart's README, in Markdown: every key that has no keys below it."""
    rows = ["| key | default | what it is |", "|---|---|---|"]
    rows += [
        f"| `{value.path}` | `{_shown(value.default)}` | {_cell(value.description)} |" for value in _leaves(values)
    ]
    return "\n".join(rows)


def _leaves(values: tuple[Value, ...]) -> Iterator[Value]:
    for value in values:
        if value.children:
            yield from _leaves(value.children)
        else:
            yield value


def _shown(default: Any) -> str:
    return json.dumps(default, ensure_ascii=False).replace("|", r"\|")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def values_schema(values: tuple[Value, ...], *, replaced: dict[str, Schema] | None = None) -> Schema:
    """The JSON schema of a chart's values, which allows no other keys than the file has.

    `replaced` has whole schemas for top keys. An object that is empty in the file may have any keys, and a list any
    items, unless their comments say otherwise.
    """
    properties = {value.name: (replaced or {}).get(value.name) or _schema(value) for value in values}
    # Helm itself adds the key to the values of a chart that another one depends on.
    properties["global"] = {"type": "object", "description": "Values that charts share."}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _schema(value: Value) -> Schema:
    schema: Schema = {"description": value.description} if value.description else {}
    if value.default is not None:
        schema["type"] = _TYPES[type(value.default)]
    if value.children:
        schema["additionalProperties"] = False
        schema["properties"] = {child.name: _schema(child) for child in value.children}
    return schema | value.extra
