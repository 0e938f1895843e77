"""House style as a test: rules about this repository that no linter knows.

import-linter checks the layers between packages (`[tool.importlinter]`). The tests here check purity, docstrings,
names, sizes, modules that nothing uses, and the modules that a broker imports before it serves.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (ROOT, ROOT / "broker", ROOT / "controller", ROOT / "operator")

# The modules that the design marks as pure, by prefix of their names. Other modules may declare themselves pure.
MUST_BE_PURE = (
    "ottla.protocol.",
    "ottla.security.ciphers",
    "ottla.security.der",
    "ottla.security.distinguished_names",
    "ottla.security.jks",
    "ottla.security.pem",
    "ottla.security.principal_mapping",
    "ottla.security.tls_settings",
    "ottla.storage.",
    "ottla.metadata.model.",
    "ottla.metadata.image",
    "ottla.metadata.keys",
    "ottla.metadata.identities",
    "ottla.metadata.intents.replicas",
    "ottla.metadata.store",
    "ottla.metadata.elections",
    "ottla.metadata.eligibility",
    "ottla.metadata.features",
    "ottla.metadata.lineage",
    "ottla.metadata.reports",
    "ottla.settings.",
    "ottla.security.client_login",
    "ottla.security.jaas",
    "ottla.security.listener_logins",
    "ottla.security.oauthbearer",
    "ottla.security.token_claims",
    "ottla.security.unsecured_tokens",
    "ottla.security.plain",
    "ottla.security.scram",
    "ottla.net.pending",
    "ottla.net.pipeline",
    "ottla.placement",
    "ottla.balance.",
    "ottla.wording",
    "ottla.uuids",
    "ottla.broker.group.",
    "ottla.broker.login.conversation",
    "ottla.broker.login.credentials",
    "ottla.broker.login.tokens",
    "ottla.broker.transaction.",
    "ottla.broker.replica.",
    "ottla.broker.authorization.",
    "ottla.broker.fetch_sessions",
    "ottla.broker.restart_risk",
    "ottla.broker.event_rate",
    "ottla.broker.quota.",
    "ottla.controller.decide",
    "ottla.controller.topics",
    "ottla.controller.reassignment",
    "ottla.controller.recovery",
    "ottla.operator.spec.",
    "ottla.operator.plan.",
    "ottla.operator.objects",
)
# All that a pure module may import, beside our other pure modules. These modules are allowed with all their names:
PURE_MODULES = frozenset(
    "__future__ base64 binascii bisect collections contextlib dataclasses decimal difflib enum functools hashlib heapq "
    "hmac ipaddress itertools json math operator re string struct textwrap types typing unicodedata urllib.parse zlib "
    "backports.zstd compression.zstd crc32c cramjam kio lz4.block lz4.frame numpy pyarrow pydantic pydantic_core "
    "pyspark.sql.pandas.types pyspark.sql.types yaml".split()
)
# Of modules that also read a clock, draw random numbers or query the machine, only these names are allowed:
PURE_NAMES = frozenset(
    "datetime.UTC datetime.datetime datetime.timedelta mmap.mmap sys.maxsize sys.version_info uuid.UUID "
    "ottla.protocol._record_walk.RecordWalk".split()
)
# Built-ins, and methods of the allowed classes and modules, that reach out of the process without an import.
IMPURE_BUILTINS = frozenset("__import__ breakpoint eval exec input open print".split())
IMPURE_ATTRIBUTES = frozenset("now today utcnow astimezone memmap fromfile tofile random".split())
# Modules that no other module has to import: processes (their commands are in pyproject.toml), generators of pages,
# and modules that Spark looks up by name.
ENTRY_POINTS = re.compile(
    r"__main__$|^ottla\.cli\.(main|server)$|^ottla\.broker\.documentation$|^pyspark_ottla$|^ottla\.operator\.app$"
    r"|^ottla\.spark\.(jobs\.[a-z_]+|listener)$"
)
# Packages that a broker doesn't import at its start, because they cost start-up time and memory. The tools, the tests
# and Spark use them. A broker on etcd imports grpc and aetcd later, when it connects to etcd.
NOT_IN_A_BROKER = (
    "typer click rich numba numpy pyspark pyarrow pandas kubernetes kopf kafka aiokafka confluent_kafka hypothesis "
    "grpc aetcd cryptography"
).split()
LINES_MAX = 600
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
VAGUE_NAME = re.compile(r"(^|_)(utils?|helpers?|managers?|misc|common)$")


@cache
def modules() -> dict[str, Path]:
    """All our modules: dotted name → file."""
    found = {}
    for source_root in SOURCE_ROOTS:
        for path in sorted((source_root / "ottla").rglob("*.py")):
            parts = path.relative_to(source_root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    if (spark := ROOT / "pyspark_ottla.py").exists():
        found["pyspark_ottla"] = spark
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imported(name: str, path: Path) -> tuple[str, ...]:
    """The absolute dotted names that a module imports; `from a.b import c` gives `a.b` and `a.b.c`."""
    return tuple(_imported(name, path))


def _imported(name: str, path: Path) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    """The absolute dotted name of the module behind `from`; `package` is the importing module's package."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _typing_only_nodes(module: ast.Module) -> set[ast.AST]:
    """The nodes under `if TYPE_CHECKING:`."""
    return {
        inner
        for node in ast.walk(module)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }


def says_pure(path: Path) -> bool:
    """Whether the module's docstring has a sentence that begins with "Pure", directly before a punctuation mark."""
    return re.search(r"(^|[.;:]\s+)Pure[.:;,]", ast.get_docstring(tree(path)) or "") is not None


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_namespace_package_has_no_init() -> None:
    for source_root in SOURCE_ROOTS:
        assert not (source_root / "ottla" / "__init__.py").exists(), "ottla is a namespace package (PEP 420)"


def test_operator_folder_never_shadows_pythons_own_module() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "operator.py").exists()


def test_every_module_says_what_it_owns() -> None:
    silent = [relative(p) for p in modules().values() if p.read_text().strip() and not ast.get_docstring(tree(p))]
    assert not silent


def test_public_classes_and_functions_have_docstrings() -> None:
    silent = []
    for name, path in modules().items():
        for node in tree(path).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            # An API module is one handler, and its header says what that does; `Parts` are the ports that it uses.
            if name.startswith("ottla.broker.api.") and node.name in ("handle", "serve", "Parts"):
                continue
            if not ast.get_docstring(node):
                silent.append(f"{relative(path)}:{node.lineno} {node.name}")
    assert not silent


def test_nothing_is_left_to_do() -> None:
    folders = [
        ROOT / name for name in ("ottla", "broker", "controller", "operator", "tests", "bench", "examples", "docs")
    ]
    files = [
        p for folder in folders for p in folder.rglob("*") if p.suffix in (".py", ".md", ".java", ".go") and p.is_file()
    ]
    found = [
        f"{relative(path)}:{number}"
        for path in files
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFTOVER.search(line)
    ]
    assert not found


def test_names_say_something() -> None:
    assert not [relative(path) for path in modules().values() if VAGUE_NAME.search(path.stem)]


def test_modules_hold_one_idea() -> None:
    long = {
        relative(path): count
        for path in modules().values()
        if (count := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert not long


def used(name: str, path: Path) -> Iterator[str]:
    """The dotted names that a module uses at run time: `from a import b` gives `a.b`, `import a` gives `a`.

    If only some names of a module are allowed, `import a` gives the used names, as `a.b`.
    """
    module = tree(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    skipped = _typing_only_nodes(module)
    attributes = [n for n in ast.walk(module) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    for node in ast.walk(module):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name
                names = {f"{alias.name}.{a.attr}" for a in attributes if ast.unparse(a.value) == bound}
                yield from {alias.name} if _among(alias.name, PURE_MODULES) or not names else names
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(node, package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _among(name: str, allowed: frozenset[str]) -> bool:
    """Whether a dotted name, or a module that contains it, is one of `allowed`."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in allowed for count in range(1, len(parts) + 1))


@cache
def pure_modules() -> frozenset[str]:
    """The names of our modules that declare themselves pure."""
    return frozenset(name for name, path in modules().items() if says_pure(path))


def impurities(name: str, path: Path) -> list[str]:
    """The parts of a module that a pure one may not have: forbidden imports, built-ins and methods."""
    pure, known = pure_modules(), frozenset(modules())
    found = [
        f"imports {other}"
        for other in used(name, path)
        if not _allowed(other) and not (_among(other, known) and _innermost(other, known) in pure)
    ]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and node.id in IMPURE_BUILTINS:
            found.append(f"uses {node.id} (line {node.lineno})")
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_ATTRIBUTES:
            found.append(f"uses {ast.unparse(node)} (line {node.lineno})")
    return found


def _allowed(name: str) -> bool:
    return _among(name, PURE_MODULES) or name in PURE_NAMES


def _innermost(name: str, known: frozenset[str]) -> str:
    """The longest leading part of a dotted name that is a module's name."""
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def test_pure_modules_stay_pure() -> None:
    mistakes = [
        f"no module is called {prefix}…"
        for prefix in MUST_BE_PURE
        if not any(name.startswith(prefix) for name in modules())
    ]
    for name, path in modules().items():
        if not path.read_text().strip():
            continue
        pure = says_pure(path)
        if name.startswith(MUST_BE_PURE) and not pure and path.name != "__init__.py":
            mistakes.append(f"{relative(path)}: its docstring has to say that it is Pure.")
        if pure and (found := impurities(name, path)):
            mistakes.append(f"{relative(path)} says that it is pure, but {', '.join(sorted(found))}")
    assert not mistakes


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import time as clock",
        "from random import Random",
        "from uuid import uuid4",
        "import uuid\nname = uuid.uuid4()",
        "import sys\nargument = sys.argv[1]",
        "from datetime import UTC, datetime\nmoment = datetime.now(UTC)",
        "import numpy\ndie = numpy.random.default_rng()",
        "import pyspark.sql",
        "text = open('file').read()",
        "def late():\n    import socket",
        "from ottla.net import server",
        "from ottla.broker.log.disk import RealDisk",
        "from .net.server import Server",
        "import ottla.net.server",
        "import somebody_elses",
    ],
)
def test_what_is_impure_is_seen(code: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(code)
    assert impurities("ottla.planted", path)


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nmost = sys.maxsize",
        "from uuid import UUID",
        "from collections.abc import Sequence",
        "from ottla.protocol import frames",
        "from .protocol.frames import RequestHeader",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random",
    ],
)
def test_what_is_pure_passes(code: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(code)
    assert not impurities("ottla.planted", path)


def test_no_module_is_dead() -> None:
    used = {target for name, path in modules().items() for target in imported(name, path) if target != name}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    used |= {target.partition(":")[0] for target in scripts.values()}
    # A module that only users import appears in an example or on a page of docs/.
    used |= {target for path in (ROOT / "examples").rglob("*.py") for target in imported(path.stem, path)}
    used |= {name for page in (ROOT / "docs").glob("*.md") for name in re.findall(r"ottla(?:\.\w+)+", page.read_text())}
    # Processes are started by `-m`.
    text = "".join(path.read_text() for path in modules().values())
    dead = [
        relative(path)
        for name, path in modules().items()
        if path.name != "__init__.py" and name not in used and not ENTRY_POINTS.search(name) and f'"{name}"' not in text
    ]
    assert not dead


@pytest.mark.parametrize(
    ("module", "said_first"), [("ottla.cli.server", "usage"), ("ottla.broker.log.compaction_child", "loaded")]
)
def test_a_broker_imports_only_what_it_serves_with(module: str, said_first: str) -> None:
    code = f"""if True:
        import runpy, sys
        sys.argv[1:] = ["--help"]
        try:
            runpy.run_module({module!r}, run_name="__main__")
        except (SystemExit, ValueError):  # a server has said how it is used, a compaction that it was given no job
            print("loaded", *[name for name in {NOT_IN_A_BROKER!r} if sys.modules.get(name)])"""
    done = subprocess.run(
        [sys.executable, "-c", code], input="", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith(said_first)
    assert done.stdout.splitlines()[-1].split() == ["loaded"]
