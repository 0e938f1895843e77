"""A port is a typing.Protocol of `ottla.broker.ports`: the part of a broker that handlers or pages use. A broker has
every member of each port, and no handler asks for a port that it doesn't use.

mypy checks the first rule, too; the test here checks a real broker.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from unittest.mock import Mock

import pytest

from ottla.broker import dispatch, monitoring, ports
from ottla.broker.api import registry
from ottla.broker.api.registry import ROUTES, Route
from ottla.broker.node import Broker
from ottla.settings.config import BrokerConfig

APIS = pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.api.name)


def handler_of(route: Route) -> Callable[..., Any]:
    """The function that serves the API, whichever of the three kinds it is."""
    found = route.handle or route.taskless or route.serve
    assert found is not None
    return found


def port_of(route: Route) -> type:
    """The type of the handler's parameter `broker`: `object` if the handler asks the broker for nothing."""
    handler: Any = handler_of(route)
    found: type = (vars(builtins) | handler.__globals__)[handler.__annotations__["broker"]]
    return found


def members(port: type) -> set[str]:
    """The names of a protocol's members, with those of its base classes."""
    return {
        name
        for base in port.__mro__
        if issubclass(base, Protocol)
        for name in (*vars(base), *inspect.get_annotations(base))
        if not name.startswith("_")
    }


def lacking(broker: object, port: type) -> list[str]:
    """The members of a port that the broker doesn't have."""
    return sorted(name for name in members(port) if not hasattr(broker, name))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """A broker that wasn't started."""

    async def made() -> Broker:
        folder = tmp_path_factory.mktemp("logs")
        return Broker(BrokerConfig.from_sources(f"node.id=0\nlog.dirs={folder}"), Mock())

    return asyncio.run(made())


@APIS
def test_the_broker_has_what_each_handler_asks_for(broker: Broker, route: Route) -> None:
    assert port_of(route) is object or members(port_of(route))
    assert lacking(broker, port_of(route)) == []


@pytest.mark.parametrize("port", [dispatch.Parts, monitoring.Source])
def test_the_broker_has_what_dispatch_and_the_pages_ask_for(broker: Broker, port: type) -> None:
    assert len(members(port)) > 15
    assert lacking(broker, port) == []


def test_what_a_broker_lacks_is_seen(broker: Broker) -> None:
    class Parts(ports.WithGroups, ports.WithImage, Protocol):
        tiers: int

        def abort(self) -> None: ...

    assert lacking(broker, Parts) == ["abort", "tiers"]


def names_used(module: ModuleType) -> set[str]:
    """The names of all attributes in a module's code, whatever the objects are."""
    return {node.attr for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)}


@APIS
def test_a_handler_has_no_port_that_it_does_not_use(route: Route) -> None:
    """A port counts as used if one of its members is used in the handler's own module, or in a module from which the
    handler's module has a function that takes the broker.
    """
    home = sys.modules[handler_of(route).__module__]
    called = (value for value in vars(home).values() if "broker" in getattr(value, "__annotations__", {}))
    used = {name for module in {home, *map(inspect.getmodule, called)} if module for name in names_used(module)}
    idle = [
        base.__name__
        for base in port_of(route).__mro__
        if base.__module__ == ports.__name__ and not members(base) & used
    ]
    assert idle == []


def test_all_handlers_together_ask_for_all_ports() -> None:
    assert members(registry.Ports) == {name for route in ROUTES.values() for name in members(port_of(route))}


def test_each_port_has_a_user() -> None:
    folder = Path(ports.__file__).parent
    nodes = [
        node
        for path in folder.rglob("*.py")
        if path.name not in ("ports.py", "registry.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    declared = {
        name for name, port in vars(ports).items() if inspect.isclass(port) and port.__module__ == ports.__name__
    }
    assert declared <= used
    assert len(declared) > 20
