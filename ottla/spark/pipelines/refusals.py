"""Turns pydantic's errors about a spec into lines that a person understands: a path in the file, what is wrong there,
and the nearest right word. Pure."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

QUOTE = "'"


class SpecError(ValueError):
    """A spec can't be used. `lines` has a line for each reason."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def refusals(error: ValidationError, model: type[BaseModel], file: str) -> list[str]:
    """A line for each error about a spec; `model` is the spec's model. `file` begins each line, unless it is empty."""
    # pydantic calls a list empty whose items are all wrong.
    real = [each for each in error.errors() if each["type"] != "too_short" or not each["input"]]
    return [_refusal(each, model, file) for each in real]


def _refusal(error: ErrorDetails, model: type[BaseModel], file: str) -> str:
    # pydantic puts the tags of unions between the keys and places of the spec; tags are names of models.
    place = [part for part in error["loc"] if isinstance(part, int) or not part[:1].isupper()]
    where = _path(place) or "the file"
    kind, told = error["type"], error["msg"].removeprefix("Value error, ")
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden":
        word = str(place[-1])
        told = f"unknown key '{word}'" + _nearest(word, _keys(error["loc"], model))
        where = _path(place[:-1]) or "the file"
    elif kind == "missing":
        told = f"the key '{place[-1]}' is missing"
        where = _path(place[:-1]) or "the file"
    elif kind == "kind":
        wanted = told.split("|")
        given = error["input"]
        words = [str(key) for key in given] if isinstance(given, Mapping) else [str(given)]
        hints = (_nearest(word, wanted) for word in words)
        told = f"its kind is told by one of the keys {', '.join(each for each in wanted if each[0] != QUOTE)}"
        told += "".join(f", or it is the word {each}" for each in wanted if each[0] == QUOTE)
        told += next((each for each in hints if each), "")
    elif kind == "literal_error":
        wanted = [each.strip(" '") for each in str(context["expected"]).replace(" or ", ",").split(",")]
        told = f"'{error['input']}' isn't one of {', '.join(wanted)}" + _nearest(str(error["input"]), wanted)
    elif kind == "string_pattern_mismatch":
        told = f"'{error['input']}' doesn't have the form {context['pattern']}"
    elif kind in ("string_too_short", "too_short"):
        told = "it must not be empty"
    elif kind == "model_type":
        told = f"it must be a mapping of keys, and is {_shown(error['input'])}"
    elif kind.endswith("_type"):
        told = f"{told.removeprefix('Input ')}, and is {_shown(error['input'])}"
    return f"{file}: {where}: {told}" if file else f"{where}: {told}"


def _path(place: Iterable[int | str]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f": did you mean '{found[0]}'?" if found else ""


def _keys(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The keys of the object in which an unknown key stands."""
    models, inside = _by_name(model), model
    for part in loc[:-1]:
        field = inside.model_fields.get(str(part))
        kind = models.get(str(part)) or (field.annotation if field is not None else None)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inside = kind
    return [field.alias or name for name, field in inside.model_fields.items()]


def _by_name(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The model and all models inside of it, by the names of their classes."""
    found: dict[str, type[BaseModel]] = {}
    left: list[Any] = [model]
    while left:
        kind = left.pop()
        left += typing.get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in found:
            found[kind.__name__] = kind
            left += [field.annotation for field in kind.model_fields.values()]
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
