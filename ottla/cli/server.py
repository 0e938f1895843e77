"""The process of a broker, a controller or both: `python -m ottla.cli.server [--config FILE] [--set NAME=VALUE]…`.

The setting `process.roles` says which of them the process is. The packages of brokers and controllers don't import each
other, so this module joins them. To save memory in the broker, it imports neither the command line's libraries nor
anything else that a broker doesn't need. With `--until-stdin-ends` the process stops, as on SIGTERM, when its standard
input ends. Standard input is then a pipe whose other end is open only in the process that started this one, so that a
broker never outlives its `ottla dev`.

The exit code is 0 if a signal stopped the process, 1 if the process couldn't start or failed, 2 if the settings are
wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import uvloop

from ottla.broker.allocator import keep_freed_memory
from ottla.broker.descriptors import raise_limit
from ottla.broker.log_format import configure_logging
from ottla.broker.node import Broker
from ottla.cli.stores import on_etcd, open_store
from ottla.controller.decide import UNCLEAN_ELECTION
from ottla.controller.quick_death import QuickDeath
from ottla.controller.runner import BALANCE, BALANCE_INTERVAL_S, Controller
from ottla.metadata import keys
from ottla.metadata.eligibility import MIN_ISR
from ottla.metadata.model.value import UnsupportedFormat
from ottla.metadata.patience import GivenUp, Patience
from ottla.metadata.registration import NodeIdTaken
from ottla.metadata.store import ForeignStore, LeaseExpired, Store, StoreRestored, StoreUnavailable, UnknownOutcome
from ottla.protocol import record_walk
from ottla.security.listener_logins import check_logins
from ottla.security.tls_settings import InvalidTls
from ottla.settings.config import BrokerConfig, InvalidConfiguration

logger = logging.getLogger(__name__)

# The number of new objects after which the garbage collector runs. With the default of 700, each election of ten
# thousand partitions made it scan all their objects several times. Hardly any object here is part of a cycle.
_COLLECTED_AT = 5_000
# The collections of younger objects between two of older ones: with the default of 10, the second generation has a
# hundred thousand objects when it is scanned, which holds the event loop for 10 ms when thousands of clients connect.
# All objects are scanned as rarely as with the defaults.
_YOUNGER, _OLDER = 1, 120


def main(arguments: list[str] | None = None) -> int:
    """Runs the broker, the controller or both until a signal comes. Returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="ottla broker", description="Serves a log directory to Kafka's clients.")
    parser.add_argument("--config", metavar="FILE", help="a server.properties file with Kafka's property names")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting, over the file's")
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="stop when the process at the other end of standard input ends"
    )
    options = parser.parse_args(arguments)
    try:
        config = _configuration(options.config, options.set)
    except InvalidConfiguration as error:
        print("\n".join(f"ottla broker: {problem}" for problem in error.problems), file=sys.stderr)
        return 2
    except OSError as error:
        print(f"ottla broker: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    configure_logging(config.get_str("ottla.log.format"), config.get_str("ottla.log.level"))
    for warning in config.warnings:
        logger.warning("%s", warning)
    raise_limit()
    keep_freed_memory()
    try:
        return uvloop.run(_run(config, until_stdin_ends=options.until_stdin_ends))
    except InvalidTls as error:
        print(f"ottla broker: {error}", file=sys.stderr)
        return 2
    except (ForeignStore, LeaseExpired, NodeIdTaken, StoreUnavailable, UnknownOutcome, UnsupportedFormat) as error:
        print(f"ottla broker: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"ottla broker: {error.filename or 'starting'}: {error.strerror or error}", file=sys.stderr)
        return 1


def _configuration(file: str | None, settings: list[str]) -> BrokerConfig:
    overrides = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise InvalidConfiguration([f"--set {setting}: NAME=VALUE is wanted"])
        overrides[name.strip()] = value
    text = Path(file).read_text(encoding="utf-8") if file else ""
    config = BrokerConfig.from_sources(text, overrides, os.environ)
    check_logins(config)
    return config


async def _run(config: BrokerConfig, *, until_stdin_ends: bool) -> int:
    """Serves until a signal comes, standard input ends or the process fails. Returns the exit code. If the metadata
    store is restored from a backup meanwhile, the broker or controller starts anew within the process."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    if until_stdin_ends:
        loop.add_reader(0, _stdin_read, loop, stopping)
    if on_etcd(config):
        logger.info("waiting until the metadata store %s answers", config.get_str("ottla.metadata.store"))
    run = _serve if "broker" in config.roles else _control
    patience = Patience(config.get_int("initial.broker.registration.timeout.ms") / 1000, stopping)
    if run is _serve and not record_walk.NATIVE:
        logger.warning("%s", record_walk.WITHOUT_NATIVE)
    while True:
        try:
            return await run(config, await _answering(config, patience), stopping, patience)
        except GivenUp:
            return 0
        except StoreRestored as reason:
            if stopping.is_set():
                return 0
            logger.warning("%s: this process joins the restored cluster anew", reason)


async def _answering(config: BrokerConfig, patience: Patience) -> Store:
    """The store, once it answers. If it doesn't answer, it is closed. Raises StoreUnavailable, GivenUp."""
    store = await open_store(config)
    try:
        await patience.answer(partial(store.read, keys.cluster.key))
    except BaseException:
        await store.close()
        raise
    return store


async def _serve(config: BrokerConfig, store: Store, stopping: asyncio.Event, patience: Patience) -> int:
    """Runs the broker until a signal comes or it fails. Returns the exit code. Raises ForeignStore, NodeIdTaken."""
    broker = Broker(config, store)
    try:
        await broker.open(patience)
        await broker.register(patience)
        if "controller" in config.roles:
            stand_for_controller(broker, config)
        await broker.serve()
        # The objects that exist now live as long as the process, so the collector needn't scan them again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECTED_AT, _YOUNGER, _OLDER)
        print(f"ottla broker {broker.id} ready bootstrap={broker.membership.bootstrap} pid={os.getpid()}", flush=True)
        await _first((stopping, broker.tasks.failed))
        if broker.store.refusal is not None:
            raise broker.store.refusal
        if broker.replaced is not None:
            raise broker.replaced
        return 1 if broker.tasks.failed.is_set() else 0
    finally:
        await broker.stop()
        await store.close()


def _stdin_read(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Called when standard input is readable: stops the process if standard input has ended; other input is ignored."""
    if not os.read(0, 4096):
        loop.remove_reader(0)
        logger.warning("standard input has ended: the process that started this one is gone, so this one stops")
        stopping.set()


async def _control(config: BrokerConfig, store: Store, stopping: asyncio.Event, patience: Patience) -> int:
    """Runs a controller without a broker until a signal comes or it fails. Returns the exit code. Raises
    ForeignStore."""
    from ottla.cli.controlling import ControllerProcess

    process = ControllerProcess(config, store, _defaults(config))
    try:
        await process.start(patience)
        print(f"ottla controller {config.node_id} ready pid={os.getpid()}", flush=True)
        await _first((stopping, process.failed))
        if process.store.refusal is not None:
            raise process.store.refusal
        return 1 if process.failed.is_set() else 0
    finally:
        await process.stop()
        await store.close()


def stand_for_controller(broker: Broker, config: BrokerConfig) -> None:
    """Makes a registered broker's process a candidate for controller, too."""
    store, broker.controller_name = broker.store, f"broker-{broker.id}"
    controller = Controller(
        store, broker.follower, broker.controller_name, _defaults(config), broker.membership.session_seconds, broker.id
    )
    broker.spawn(controller.run(), "controller", vital=True)
    if config.get_bool("ottla.quick.death.enable"):
        watch = QuickDeath(store, broker.follower, broker.id, config.listeners.inter_broker, broker.connect)
        broker.spawn(watch.run(), "watch of the brokers' sockets")


def _defaults(config: BrokerConfig) -> dict[str, str]:
    """The values of the settings that the controller's decisions depend on, as texts."""
    return {
        UNCLEAN_ELECTION: str(config.get_bool("unclean.leader.election.enable")).lower(),
        MIN_ISR: str(config.get_int("min.insync.replicas")),
        BALANCE: str(config.get_bool("auto.leader.rebalance.enable")).lower(),
        BALANCE_INTERVAL_S: str(config.get_int("leader.imbalance.check.interval.seconds")),
    }


async def _first(events: Sequence[asyncio.Event]) -> None:
    """Waits until one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


if __name__ == "__main__":
    sys.exit(main())
