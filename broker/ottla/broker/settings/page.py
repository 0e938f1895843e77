"""docs/settings.md, from the tables: `python -m ottla.broker.settings.page > docs/settings.md`.

Pure but for printing; a test fails when the page in the repository is not what this prints.
"""

from collections.abc import Iterable, Iterator

from ottla.broker.settings.catalogue import BROKER_PAGES, CLIENT_METRICS, GROUP, TOPIC
from ottla.broker.settings.retired import FAMILIES, RETIRED
from ottla.broker.settings.setting import Setting

_HEAD = """# Settings

<!-- Generated: make docs. -->

A broker takes Apache Kafka's own property names, from a properties file, from `--set name=value` and from environment
variables; the later of these outweighs the earlier. The variable of a setting is its name in capitals with
underscores: `OTTLA_LOG_SEGMENT_BYTES` is `log.segment.bytes`; names that begin with `ottla.` say it only once:
`OTTLA_LOG_LEVEL` is `ottla.log.level`.

Every name of Apache Kafka 4.3 and of older lines is known. One that Ottla honours is printed in **bold**; any other is
accepted with one warning, and the table says what Ottla does instead. A name that nobody knows, or a value out of
bounds, stops the start.

*Changes* says whether a setting can change while brokers run: for one broker, for the whole cluster, or not at all.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for title, settings in BROKER_PAGES:
        yield from _table(f"{title}: broker settings", settings, broker=True)
    yield from _table("Settings of a topic", TOPIC.values(), broker=False)
    yield from _table("Settings of a group", GROUP.values(), broker=False)
    yield from _table("Settings of a subscription to clients' metrics", CLIENT_METRICS.values(), broker=False)
    yield "## Settings of older lines\n\nAccepted in a broker's file, with one warning.\n"
    yield "| name | what Ottla does instead |\n|---|---|"
    for name, instead in sorted({**RETIRED, **{f"{prefix}*": text for prefix, text in FAMILIES.items()}}.items()):
        yield f"| `{name}` | {instead} |"
    yield ""


def _table(title: str, settings: Iterable[Setting], *, broker: bool) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| name | type | default | bounds | changes | what it is |" if broker else (
        "| name | type | default | bounds | a broker's default for it | what it is |"
    )
    yield "|---|---|---|---|---|---|"
    for setting in sorted(settings, key=lambda row: row.name):
        if not setting.internal:
            yield _row(setting, broker)
    yield ""


def _row(setting: Setting, broker: bool) -> str:
    name = f"`{setting.name}`" if setting.instead else f"**`{setting.name}`**"
    default = "none" if setting.default is None else f"`{setting.default}`" if setting.default else "empty"
    fifth = setting.update.value if broker else ", ".join(f"`{synonym}`" for synonym in setting.synonyms)
    doc = f"{setting.doc} *No effect: {setting.instead}.*" if setting.instead else setting.doc
    bounds = str(setting.bounds) if setting.bounds is not None else ""
    return f"| {name} | {setting.kind.name.lower()} | {default} | {bounds} | {fifth} | {doc} |".replace("  ", " ")


if __name__ == "__main__":
    print(page(), end="")
