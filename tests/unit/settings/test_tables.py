"""The tables of settings are consistent, and the pages of docs/ that are made from them are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.documentation import PAGES
from ottla.settings.catalogue import BROKER, CLIENT_METRICS, GROUP, TOPIC, nearest_name, retired_instead
from ottla.settings.setting import Setting, format_value
from ottla.settings.sources import environment_name

ROOT = Path(__file__).parents[3]
ALL = [setting for table in (BROKER, TOPIC, GROUP, CLIENT_METRICS) for setting in table.values()]


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_defaults_are_valid_and_printed_as_given(setting: Setting) -> None:
    if setting.default is not None:
        assert format_value(setting.parse(setting.default)) == setting.default


def test_synonyms_are_known() -> None:
    for setting in ALL:
        assert all(synonym in BROKER for synonym in setting.synonyms), setting.name


def test_every_variable_means_one_setting() -> None:
    assert len({environment_name(name) for name in BROKER}) == len(BROKER)


def test_a_retired_name_is_no_living_one() -> None:
    assert not [name for name in BROKER if retired_instead(name) is not None]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("log.segment.byte", "log.segment.bytes"),
        ("log.segments.bytes", "log.segment.bytes"),
        ("advertized.listeners", "advertised.listeners"),
        ("log.retention.hour", "log.retention.hours"),
        ("something.else.entirely", None),
    ],
)
def test_nearest_name(name: str, nearest: str | None) -> None:
    assert nearest_name(name, BROKER) == nearest


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == PAGES[page](), "run: python -m ottla.broker.documentation"


# Numbers and their texts by Java's Double.toString.
DOUBLES = [
    (0.0, "0.0"),
    (-0.0, "-0.0"),
    (0.5, "0.5"),
    (1.0, "1.0"),
    (100.0, "100.0"),
    (0.001, "0.001"),
    (0.0001, "1.0E-4"),
    (0.00012345, "1.2345E-4"),
    (1e7, "1.0E7"),
    (9999999.5, "9999999.5"),
    (123456789.0, "1.23456789E8"),
    (-1.5e300, "-1.5E300"),
    (1.7976931348623157e308, "1.7976931348623157E308"),
    (float("inf"), "Infinity"),
    (float("nan"), "NaN"),
]


@pytest.mark.parametrize(("value", "text"), DOUBLES)
def test_doubles_are_printed_as_java_does(value: float, text: str) -> None:
    assert format_value(value) == text


@given(st.floats(allow_nan=False))
def test_a_printed_double_is_the_same_double(value: float) -> None:
    printed = format_value(value)
    assert printed is not None
    assert float(printed) == value
