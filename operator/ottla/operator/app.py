"""The operator's process: watches put the keys of changed resources into queues, whose workers reconcile these
resources. Only one of several processes of the operator does this at a time.

Of kopf only the watches are used. Handlers of events only say which resource to reconcile, so an event that comes late,
twice or not at all does no harm. All Topics of a Cluster are reconciled together, so an event about a Topic puts its
Cluster's key into the queue of Topics. The same holds for Users.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import kopf

from ottla.operator.access import Access
from ottla.operator.brokers import BrokerPages
from ottla.operator.cluster import ClusterReconciler
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.kube import Kube
from ottla.operator.lease import Lease, LeaseLost
from ottla.operator.log_level import FollowedLogLevel
from ottla.operator.objects import GROUP, OPERATOR, VERSION, Object, Ref, ref_of
from ottla.operator.page import Page, Watched
from ottla.operator.plan.names import INSTANCE, MANAGED_BY
from ottla.operator.queue import Queue, Retry
from ottla.operator.resources import Resources
from ottla.operator.spec.cluster import Defaults
from ottla.operator.topic import TopicReconciler
from ottla.operator.topic_resources import TopicResources
from ottla.operator.user import UserReconciler
from ottla.operator.user_resources import UserResources

logger = logging.getLogger(__name__)

# Several events of a Cluster's objects within this time cause one reconcile, because such events often come together.
GATHERED_S = 0.3
DEFINED_S = 5.0
ENDED_S = 3.0
OWNED = ("statefulsets", "pods", "persistentvolumeclaims", "services", "configmaps", "poddisruptionbudgets")
CLUSTER_WORKERS = 8
TOPIC_WORKERS = 4
USER_WORKERS = 4
KINDS = ("Cluster", "Topic", "User")


class DefinitionsGone(Exception):
    """The definitions of the operator's kinds were deleted during a watch. Only a new process can watch these kinds
    once they are defined again."""


@dataclass(frozen=True)
class Options:
    """The options that the operator was started with."""

    defaults: Defaults
    namespaces: frozenset[str] = frozenset()  # the namespaces to watch; empty if it watches all
    selector: str = ""  # a label selector: only Clusters that it finds are reconciled
    lease: str = ""  # the name of the Lease; empty if this is the only operator
    lease_namespace: str = "default"
    identity: str = "operator"
    http_port: int = 9100
    log_level_file: Path | None = None


class Operator:
    """The operator, put together from its parts. `run` returns when a signal has come or the lease is lost."""

    def __init__(self, options: Options, kube: Kube) -> None:
        self._options = options
        self._kube = kube
        self._pages = BrokerPages()
        self._etcd = EtcdKeeper(kube)
        self._resources = TopicResources(kube, options.namespaces or None, self._topic_read)
        self._user_resources = UserResources(kube, options.namespaces or None, self._user_read)
        self._known: set[Ref] = set()  # the Clusters that this operator reconciles
        self.watched = Watched()
        self._topics = TopicReconciler(kube, self._resources, ours=self._is_ours, held_changed=self._held_changed)
        self._users = UserReconciler(kube, self._user_resources, ours=self._is_ours)
        self._clusters = ClusterReconciler(
            kube,
            self._pages,
            self._etcd,
            options.defaults,
            topics_held=self._topics.held,
            ours=self._is_ours,
            clusters=self._listed,
            again=lambda key: self.queues["Cluster"].add(key),
            read=self._read,
        )
        self.queues = {
            "Cluster": Queue("Cluster", self._clusters, CLUSTER_WORKERS),
            "Topic": Queue("Topic", self._topics, TOPIC_WORKERS, of="Topics of the Cluster"),
            "User": Queue("User", self._users, USER_WORKERS, of="Users of the Cluster"),
        }
        self._access = Access(kube, options.namespaces)
        self._lease = (
            Lease(kube, options.lease_namespace, options.lease, options.identity, lambda: datetime.now(UTC))
            if options.lease
            else None
        )
        self._page = Page(
            self.queues,
            self.watched,
            lambda: kube.writes,
            lambda: self._clusters.conditions,
            self._troubles,
            lambda: self._clusters.failing,
        )
        self._stop = asyncio.Event()

    async def listen(self) -> None:
        """Serves the HTTP pages for health and metrics. Raises OSError if its port can't be opened."""
        await self._page.start(self._options.http_port)

    async def run(self) -> int:
        """Runs the operator, after `listen`; returns the process's exit code."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop.set)
        lease = self._lease
        aside = [asyncio.create_task(self._access.keep_looking(), name="access")]
        if self._options.log_level_file is not None:
            followed = FollowedLogLevel(self._options.log_level_file)
            aside.append(asyncio.create_task(followed.keep_following(), name="log level"))
        try:
            if lease is not None and not await self._unless_stopped(lease.acquire()):
                return 0
            self._page.leading = True
            return await self._act(lease)
        finally:
            for task in aside:
                task.cancel()
            self._page.leading = False
            if lease is not None:
                await lease.release()
            self._topics.close()
            self._users.close()
            self._clusters.close()
            await self._pages.close()
            await self._etcd.close()
            await self._page.stop()
            await self._kube.close()

    def _troubles(self) -> list[str]:
        """Sentences for the operator's page, each about a reason why the operator can't do its work."""
        return [trouble for trouble in (self._lease and self._lease.trouble, self._access.trouble) if trouble]

    async def _act(self, lease: Lease | None) -> int:
        """Watches and reconciles. When one of its tasks ends, cancels the others. Returns the process's exit code."""
        duties = [asyncio.create_task(queue.run(), name=f"queue of {kind}") for kind, queue in self.queues.items()]
        duties.append(asyncio.create_task(self._watch(), name="watch"))
        if lease is not None:
            duties.append(asyncio.create_task(lease.keep(), name="lease"))
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        await asyncio.wait([*duties, stopping], return_when=asyncio.FIRST_COMPLETED)
        ended = [duty for duty in duties if duty.done()]
        for duty in (*duties, stopping):
            duty.cancel()
        await asyncio.gather(*duties, stopping, return_exceptions=True)
        for duty in ended:
            error = duty.exception()
            if isinstance(error, (LeaseLost, DefinitionsGone)):
                logger.error("%s: the operator stops", error)
                return 1
            if error is not None:
                logger.error("the %s failed: the operator stops", duty.get_name(), exc_info=error)
                return 1
        return 0  # a signal has come; kopf itself handles signals while it watches, and then ends its tasks

    async def _unless_stopped(self, waited_for: Any) -> bool:
        """Whether the awaited task ended before a signal came."""
        task, stopping = asyncio.ensure_future(waited_for), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        ended = bool(task.done())
        for one in (task, stopping):
            one.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
        return ended

    # ---- what the watches tell

    async def _watch(self) -> None:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        # kopf doesn't handle definitions that come and go: it misses some, and waits for watches that have ended. So
        # the operator's definitions have to exist before kopf begins, and the process ends when one is deleted.
        settings.scanning.disabled = True
        if self._options.selector:
            settings.watching.label_selectors["clusters"] = self._options.selector
        for plural in OWNED:
            settings.watching.label_selectors[plural] = f"{MANAGED_BY}={OPERATOR}"
        await self._definitions()
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=settings,
            standalone=True,
            clusterwide=not self._options.namespaces,
            namespaces=sorted(self._options.namespaces),
        )
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        except Exception as error:
            if gone := await self._undefined():
                raise DefinitionsGone(f"the definition of {' and '.join(gone)} was deleted") from error
            raise
        finally:
            # kopf's own shutdown isn't used: it waits for kopf's workers, and sometimes never ends.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=ENDED_S)

    async def _definitions(self) -> None:
        """Returns once all of the operator's kinds are defined."""
        told: list[str] = []
        while True:
            with suppress(Retry):
                missing = await self._undefined()
                if not missing:
                    return
                if missing != told:
                    logger.warning(
                        "waiting until Kubernetes has the definition of %s: the operator's chart brings it",
                        " and ".join(missing),
                    )
                    told = missing
            await asyncio.sleep(DEFINED_S)

    async def _undefined(self) -> list[str]:
        """The operator's kinds that aren't defined in Kubernetes."""
        namespace = min(self._options.namespaces, default="")
        return [kind for kind in KINDS if not await self._kube.knows(kind, namespace)]

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**given: Any) -> kopf.ConnectionInfo | None:
            return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

        @kopf.on.event(GROUP, VERSION, "clusters", registry=registry)
        async def cluster(type: str | None, body: kopf.Body, **_: Any) -> None:
            self._cluster_seen(type, body)

        @kopf.on.event(GROUP, VERSION, "topics", registry=registry)
        async def topic(type: str | None, body: kopf.Body, **_: Any) -> None:
            self._topic_seen(type, body)

        @kopf.on.event(GROUP, VERSION, "users", registry=registry)
        async def user(type: str | None, body: kopf.Body, **_: Any) -> None:
            self._user_seen(type, body)

        async def owned(body: kopf.Body, **_: Any) -> None:
            self._owned_seen(body)

        for plural in OWNED:
            kopf.on.event(plural, registry=registry, id=f"owned-{plural}")(owned)
        return registry

    def _cluster_seen(self, event: str | None, body: Mapping[str, Any]) -> None:
        key = ref_of(body)
        gone = event == "DELETED"
        self.watched.told(("Cluster", *key), body["metadata"]["resourceVersion"], gone=gone)
        (self._known.discard if gone else self._known.add)(key)
        for queue in self.queues.values():
            queue.add(key)

    def _topic_seen(self, event: str | None, body: Mapping[str, Any]) -> None:
        self._seen(self._resources, event, body)

    def _user_seen(self, event: str | None, body: Mapping[str, Any]) -> None:
        self._seen(self._user_resources, event, body)

    def _seen(self, resources: Resources[Any], event: str | None, body: Mapping[str, Any]) -> None:
        version = body["metadata"]["resourceVersion"]
        self.watched.told((resources.kind, *ref_of(body)), version, gone=event == "DELETED")
        key = resources.seen(event, body)
        if key is not None and (key in self._known or not self._options.selector):
            self.queues[resources.kind].add(key, GATHERED_S)

    def _owned_seen(self, body: Mapping[str, Any]) -> None:
        meta = body["metadata"]
        key = Ref(meta["namespace"], meta.get("labels", {}).get(INSTANCE, ""))
        if key in self._known:
            self.queues["Cluster"].add(key, GATHERED_S)

    async def _listed(self) -> list[Object]:
        """All Clusters that this operator reconciles, also those that no watch has reported yet. Raises KubeError."""
        selector = self._options.selector
        lists = [await self._kube.list("Cluster", each, selector) for each in sorted(self._options.namespaces) or [""]]
        return [each for listed in lists for each in listed]

    def _is_ours(self, key: Ref) -> bool:
        """Whether this operator reconciles the Cluster. If a Cluster's labels stop matching the operator's selector,
        the watch reports a deletion of the Cluster."""
        return key in self._known

    def _held_changed(self, key: Ref) -> None:
        self.queues["Cluster"].add(key)

    def _read(self, key: Ref, version: str) -> None:
        self.watched.read(("Cluster", *key), version)

    def _topic_read(self, ref: Ref, version: str) -> None:
        self.watched.read(("Topic", *ref), version)

    def _user_read(self, ref: Ref, version: str) -> None:
        self.watched.read(("User", *ref), version)


async def operate(options: Options) -> NoReturn:
    """Runs an operator until a signal comes, and ends the process with its exit code. Raises OSError if the port of the
    operator's HTTP pages can't be opened.

    The process exits here, and doesn't return to asyncio.run, which would cancel all tasks and wait for them. After one
    of kopf's watches has failed, the other watches never end, and the process would wait until Kubernetes kills it for
    its liveness probe.
    """
    operator = Operator(options, await Kube.connect())
    await operator.listen()
    try:
        code = await operator.run()
    except Exception:  # after any error the process has to end by itself: see above
        logger.exception("the operator stops")
        code = 1
    logging.shutdown()
    os._exit(code)
