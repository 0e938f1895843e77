"""Values of settings by name, read with the type that the caller expects. Pure."""

from collections.abc import Mapping

from ottla.settings.secret import Secret
from ottla.settings.setting import Value


class TypedValues:
    """Values of settings by name. A lookup with the wrong type is a bug in the caller."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get_int(self, name: str) -> int:
        """Value of a setting that is a whole number."""
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def get_float(self, name: str) -> float:
        """Value of a setting that is a number."""
        value = self._values[name]
        assert isinstance(value, float | int), name
        return value

    def get_bool(self, name: str) -> bool:
        """Value of a setting that is true or false."""
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def get_str(self, name: str) -> str:
        """Value of a setting that is text; empty if the setting has no value."""
        value = self._values[name]
        assert value is None or isinstance(value, str), name
        return value or ""

    def get_secret(self, name: str) -> str:
        """Text of a setting that must never be shown; empty if the setting has no value."""
        value = self._values[name]
        assert value is None or isinstance(value, Secret), name
        return "" if value is None else value.value

    def get_list(self, name: str) -> tuple[str, ...]:
        """Value of a setting that is a list; empty if the setting has no value."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()
