"""House style as a test: what no linter knows about this repository.

The layers between packages are import-linter's (`[tool.importlinter]`); here are purity, docstrings, names, sizes,
modules that nothing uses, and what a broker may import before it serves.
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

# Nothing that waits, talks, reads a clock or throws dice is imported by a module that says of itself that it is pure.
IMPURE = frozenset(
    "asyncio concurrent multiprocessing queue random secrets select selectors sched shutil signal socket socketserver "
    "ssl subprocess tempfile threading time uvloop http sqlite3".split()
)
# What the design marks as pure, by prefix of the module's name.
MUST_BE_PURE = (
    "ottla.protocol.",
    "ottla.metadata.model",
    "ottla.metadata.image",
    "ottla.metadata.keys",
    "ottla.placement",
    "ottla.broker.group.",
    "ottla.broker.replica.",
    "ottla.controller.decide",
    "ottla.operator.plan.",
)
# Started by name, not imported (commands are in pyproject.toml): processes, what Spark looks up, generators.
ENTRY_POINTS = re.compile(
    r"__main__$|^ottla\.cli\.(main|server)$|^ottla\.broker\.documentation$|^pyspark_ottla$|^ottla\.operator\.app$"
    r"|^ottla\.spark\.(jobs\.[a-z_]+|listener)$"
)
# A broker's start-up time and memory: these belong to the tools, the tests and Spark; grpc to brokers on etcd.
NOT_IN_A_BROKER = (
    "typer click rich numba numpy pyspark pyarrow pandas kubernetes kopf kafka aiokafka confluent_kafka hypothesis "
    "grpc aetcd"
).split()
LINES_MAX = 600
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
VAGUE_NAME = re.compile(r"(^|_)(utils?|helpers?|managers?|misc|common)$")


@cache
def modules() -> dict[str, Path]:
    """Every module of ours: dotted name → file."""
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
def imported(name: str, path: Path, *, typing_only: bool = True) -> tuple[str, ...]:
    """The dotted names that a module imports, relative ones resolved; `from a.b import c` gives `a.b` and `a.b.c`."""
    return tuple(_imported(name, path, typing_only=typing_only))


def _imported(name: str, path: Path, *, typing_only: bool) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    skipped = set() if typing_only else _typing_only_nodes(tree(path))
    for node in ast.walk(tree(path)):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _typing_only_nodes(module: ast.Module) -> set[ast.AST]:
    """What stands under `if TYPE_CHECKING:`."""
    return {
        inner
        for node in ast.walk(module)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }


def says_pure(path: Path) -> bool:
    """Whether the module's docstring has a sentence "Pure." or one that goes on with a mark ("Pure: …")."""
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
            # An API module is one handler, and its header says what that does.
            if name.startswith("ottla.broker.api.") and node.name in ("handle", "serve"):
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


@cache
def impurities(name: str) -> frozenset[str]:
    """What a module imports that waits, talks, reads a clock or throws dice; by way of other modules of ours too."""
    found: set[str] = set()
    for target in runtime_closure(name):
        direct = imported(target, modules()[target], typing_only=False)
        found |= {f"{other} in {target}" for other in direct if other.partition(".")[0] in IMPURE}
    return frozenset(found)


def runtime_closure(name: str) -> set[str]:
    """A module of ours and all that it imports of ours, but for annotations alone."""
    seen, waiting = set(), [name]
    while waiting:
        current = waiting.pop()
        if current in seen or current not in modules():
            continue
        seen.add(current)
        waiting.extend(imported(current, modules()[current], typing_only=False))
    return seen


def test_pure_modules_stay_pure() -> None:
    mistakes = []
    for name, path in modules().items():
        if not path.read_text().strip():
            continue
        pure = says_pure(path)
        if name.startswith(MUST_BE_PURE) and not pure and path.name != "__init__.py":
            mistakes.append(f"{relative(path)}: its docstring has to say that it is Pure.")
        if pure and (found := impurities(name)):
            mistakes.append(f"{relative(path)} is pure but imports {', '.join(sorted(found))}")
    assert not mistakes


def test_no_module_is_dead() -> None:
    used = {target for name, path in modules().items() for target in imported(name, path) if target != name}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    used |= {target.partition(":")[0] for target in scripts.values()}
    # What only users import shows in an example or a page of how.
    used |= {target for path in (ROOT / "examples").rglob("*.py") for target in imported(path.stem, path)}
    used |= {name for page in (ROOT / "docs").glob("*.md") for name in re.findall(r"ottla(?:\.\w+)+", page.read_text())}
    # The API modules are imported by name, from a table of names; processes are started by `-m`.
    text = "".join(path.read_text() for path in modules().values())
    dead = [
        relative(path)
        for name, path in modules().items()
        if path.name != "__init__.py"
        and name not in used
        and not ENTRY_POINTS.search(name)
        and not (name.startswith("ottla.broker.api.") and f'"{name.rpartition(".")[2]}"' in text)
        and f'"{name}"' not in text
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
