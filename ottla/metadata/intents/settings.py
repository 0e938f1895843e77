"""Dynamic settings of resources and quotas of entities, as administrators change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ottla.metadata import keys
from ottla.metadata.identities import ConfigResource, QuotaEntity
from ottla.metadata.model.settings import Config, Quota
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Delete, Guard, Put, Write
from ottla.protocol.errors import ErrorCode, KafkaError

_NO_ENTRIES: Mapping[str, str] = {}
_NO_LIMITS: Mapping[str, float] = {}

ConfigEdit = Callable[[Mapping[str, str]], Mapping[str, str]]
QuotaEdit = Callable[[Mapping[str, float]], Mapping[str, float]]


class SettingIntents:
    """Administrators' requests about settings and quotas."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def alter_config(self, resource: ConfigResource, edit: ConfigEdit, timeout_s: float = 30.0) -> None:
        """Replaces a resource's dynamic settings by `edit(present settings)`. Waits until this broker's image has them.

        `edit` may raise KafkaError. It is called again if another process has changed the settings meanwhile. If it
        returns no settings, the resource's key is removed.
        """
        async with within(timeout_s):
            await self._alter_config(resource, edit)

    async def _alter_config(self, resource: ConfigResource, edit: ConfigEdit) -> None:
        config: Config | None = self._settling.image.configs.get(resource)
        key = keys.config(resource)
        while True:
            present = Config(_NO_ENTRIES) if config is None else config
            entries = edit(present.entries)
            write: Write = Put(key, replace(present, entries=entries).encode()) if entries else Delete(key)
            writes = [] if entries == present.entries else [write]
            result = await self._settling.attempt([*self._guards_of(resource), Guard(key, present.revision)], writes)
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:  # the outcome is unknown: the image will show it
                await self._settling.until_settled(key)
                config = self._settling.image.configs.get(resource)
            elif key in result.failed:
                entry = result.failed[key]
                config = None if entry is None else Config.decode(entry)
            else:  # the topic was deleted meanwhile, or its number of partitions was raised
                (topic,) = result.failed.values()
                if topic is None:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition)
                await self._settling.until_revision(topic.mod_revision)
                config = self._settling.image.configs.get(resource)

    async def alter_quota(self, entity: QuotaEntity, edit: QuotaEdit, timeout_s: float = 30.0) -> None:
        """Does the same as `alter_config` for the quotas of an entity."""
        async with within(timeout_s):
            await self._alter_quota(entity, edit)

    async def _alter_quota(self, entity: QuotaEntity, edit: QuotaEdit) -> None:
        quota: Quota | None = self._settling.image.quotas.get(entity)
        key = keys.quota(entity)
        while True:
            present = Quota(_NO_LIMITS) if quota is None else quota
            limits = edit(present.limits)
            write: Write = Put(key, replace(present, limits=limits).encode()) if limits else Delete(key)
            writes = [] if limits == present.limits else [write]
            result = await self._settling.attempt([Guard(key, present.revision)], writes)
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:
                await self._settling.until_settled(key)
                quota = self._settling.image.quotas.get(entity)
                continue
            entry = result.failed[key]
            quota = None if entry is None else Quota.decode(entry)

    def _guards_of(self, resource: ConfigResource) -> list[Guard]:
        """For a topic, the transaction's condition that the topic still exists: its deletion deletes the settings, too.
        Nothing for other resources."""
        if resource.type != "topic":
            return []
        intent = self._settling.image.intents.get(resource.name)
        if intent is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return [Guard(keys.topic(resource.name), intent.revision)]
