"""The bindings of a cluster (`ottla.protocol.acls`), by the resources to which they apply. Pure.

A decision must not look at all bindings of a cluster, of which there may be tens of thousands. The bindings are kept by
type and pattern of resource, and below that by principal. A name has few patterns that may apply to it: the name
itself, `*`, and one prefix for each length that any prefix of the type has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ottla.protocol.acls import EVERY_NAME, AclBinding, PatternType
from ottla.protocol.rights import ResourceType

ByPrincipal = dict[str, set[AclBinding]]
"""The bindings of one pattern, by their principals."""


class AclIndex:
    """The bindings, which change one by one."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[ResourceType, PatternType, str], ByPrincipal] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {kind: Counter() for kind in ResourceType}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AclBinding]:
        for by_principal in self._patterns.values():
            for bindings in by_principal.values():
                yield from bindings

    def add(self, binding: AclBinding) -> None:
        """Adds a binding, unless the index has it."""
        pattern = (binding.resource_type, binding.pattern_type, binding.name)
        by_principal = self._patterns.get(pattern)
        if by_principal is None:
            by_principal = self._patterns[pattern] = {}
            if binding.pattern_type is PatternType.PREFIXED:
                self._prefix_lengths[binding.resource_type][len(binding.name)] += 1
        bindings = by_principal.setdefault(binding.principal, set())
        self._count += binding not in bindings
        bindings.add(binding)

    def remove(self, binding: AclBinding) -> None:
        """Removes a binding, if the index has it."""
        pattern = (binding.resource_type, binding.pattern_type, binding.name)
        by_principal = self._patterns.get(pattern, {})
        bindings = by_principal.get(binding.principal, set())
        if binding not in bindings:
            return
        self._count -= 1
        bindings.remove(binding)
        if not bindings:
            del by_principal[binding.principal]
        if not by_principal:
            del self._patterns[pattern]
            if binding.pattern_type is PatternType.PREFIXED:
                lengths = self._prefix_lengths[binding.resource_type]
                lengths[len(binding.name)] -= 1
                if not lengths[len(binding.name)]:
                    del lengths[len(binding.name)]

    def applying(self, resource_type: ResourceType, name: str) -> Iterator[ByPrincipal]:
        """The bindings that apply to a resource, pattern by pattern, in the order in which Kafka looks at them: longer
        names first, the literal pattern before the prefix of the same name, `*` last."""
        patterns = self._patterns
        literal = patterns.get((resource_type, PatternType.LITERAL, name)) if name != EVERY_NAME else None
        if literal is not None:
            yield literal
        lengths = self._prefix_lengths[resource_type]
        for length in sorted(lengths, reverse=True):
            if length <= len(name):
                prefixed = patterns.get((resource_type, PatternType.PREFIXED, name[:length]))
                if prefixed is not None:
                    yield prefixed
        every = patterns.get((resource_type, PatternType.LITERAL, EVERY_NAME))
        if every is not None:
            yield every

    def of_principals(self, resource_type: ResourceType, principals: tuple[str, ...]) -> Iterator[AclBinding]:
        """All bindings of some principals on resources of a type."""
        for (kind, _, _), by_principal in self._patterns.items():
            if kind is resource_type:
                for principal in principals:
                    yield from by_principal.get(principal, ())
