"""The project's own promises: documented dependencies and locks, pinned versions, one set-up."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import vq
from vq.version import __version__

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return match.group().lower()


def declared() -> set[str]:
    """Every package that pyproject.toml asks for, wherever."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = PROJECT["dependency-groups"].values()
    lists = [PROJECT["project"]["dependencies"], PROJECT["build-system"]["requires"]]
    return {name_of(each) for some in [*lists, *extras, *groups] for each in some}


def test_every_dependency_has_its_line_and_every_line_its_dependency() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    lines = set(re.findall(r"^\| ([a-z][a-z0-9-]*) \|", page, re.MULTILINE)) - {"package"}
    assert lines == declared()


def test_what_the_set_up_installs_is_pinned() -> None:
    pinned = {
        name_of(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    needed = declared() - {"hatchling", "pyarrow"}  # a build tool, and an extra nobody sets up yet
    assert needed <= pinned


def test_constraints_are_within_the_declared_ranges() -> None:
    """An exact pin of pyproject.toml is the same in constraints.txt."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    lower = {name.lower(): version for name, version in pins.items()}
    for some in PROJECT["dependency-groups"].values():
        for requirement in some:
            name, exact, version = requirement.partition("==")
            if exact:
                assert lower[name.lower()] == version


#: Test modules that are named for no module of the code. This list only gets shorter.
NAMED_FOR_NO_MODULE = {
    "coordination/test_coordination_document.py",  # docs/coordination.md
    "remoting/test_golden.py",  # the frames of testdata/wire
    "hessian/test_peer.py",  # another package reads what we write
    "test_guarantees_document.py",  # docs/guarantees.md
    "test_attacks_document.py",  # docs/reference/attacks.md
    "test_no_code_from_data.py",  # a rule of the house, over all sources
    "remoting/test_protocol_document.py",  # docs/protocol.md
    "test_public_names.py",  # vq/__init__.py
    "test_public_signatures.py",  # every public module
    "test_same_names.py",  # vq/blocking and vq/aio
    "tools/test_deploy.py",  # deploy/
    "tools/test_fields.py",  # a rule of the house, over all classes
    "tools/test_project.py",
}


def test_a_unit_test_is_named_for_the_module_that_it_tests() -> None:
    """A package counts as a module.

    ``tests/unit/store/log/test_log.py`` and ``test_log_flush.py`` are about
    ``vq/store/log/log.py``.
    """
    unit = ROOT / "tests" / "unit"
    strays = {
        str(path.relative_to(unit))
        for path in unit.rglob("test_*.py")
        if not any(each.exists() for each in modules_of(path.relative_to(unit)))
    }
    assert strays == NAMED_FOR_NO_MODULE


def modules_of(test: Path) -> list[Path]:
    """Return what a test module below tests/unit may be named for.

    A module that is split by claim keeps the name of its module in front.
    """
    code = ROOT if test.parts[0] in {"bench", "tools"} else ROOT / "vq"
    words = test.stem.removeprefix("test_").removesuffix("_contract").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    folder = code / test.parent
    files = ("{}.py", "{}/__init__.py", "_{}.c")
    return [folder / file.format(name) for name in names for file in files]


def test_the_version_is_said_once() -> None:
    """``test_release.py`` says that the package gets it."""
    assert __version__ == vq.__version__
    said = f'"{__version__}"'
    assert [path for path in (ROOT / "vq").rglob("*.py") if said in path.read_text()] == [
        ROOT / "vq" / "version.py"
    ]
    assert said not in (ROOT / "pyproject.toml").read_text()


def test_ci_runs_what_the_readme_says() -> None:
    assert "make test" in (ROOT / "README.md").read_text()
    commands = [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make")
    ]
    assert commands == ["make test", "make check"]


def test_make_and_the_guide_name_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: help (.*)$", makefile, re.MULTILINE)
    helped = re.findall(r"^#   make (\S+)", makefile, re.MULTILINE)
    assert helped == phony.split()
    guide = re.findall(r"^\| `make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(guide) == sorted(helped)


def test_every_decision_has_a_number_of_its_own_and_a_row_in_order() -> None:
    directory = ROOT / "docs" / "decisions"
    files = sorted(path.name for path in directory.glob("[0-9]*.md"))
    assert len({name[:4] for name in files}) == len(files)
    rows = re.findall(
        r"^\| \[(\d{4}) .*?\]\(([^)]*)\) \|", (directory / "README.md").read_text(), re.M
    )
    assert [name for _, name in rows] == files
    for number, name in rows:
        assert (directory / name).read_text().startswith(f"# {number} ")


def test_a_class_has_a_name_of_its_own() -> None:
    """Also a private one. The two APIs are the exception: both have the same classes."""
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "vq").rglob("*.py")):
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            homes.setdefault(name, []).append(path.relative_to(ROOT / "vq").parts[0])
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    facades = ("Admin", "MessageConsumer", "MessageFactory", "MessageProducer", "Transaction")
    assert twice == {name: ["aio", "blocking"] for name in facades} | {
        "LocalQueue": ["aio", "local"]
    }


def locks_of(source: str) -> set[str]:
    """The locks that the classes of a module keep, as ``Class.attribute``."""
    return {
        f"{each.name}.{target.attr}"
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.ClassDef)
        for step in ast.walk(each)
        if isinstance(step, ast.Assign)
        and ast.unparse(step.value) in {"threading.Lock()", "asyncio.Lock()"}
        for target in step.targets
        if isinstance(target, ast.Attribute)
    }


def test_every_lock_has_a_row_with_what_may_be_taken_inside() -> None:
    """Commands and development tools aside, which keep their locks to themselves."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    folders = (ROOT / "vq" / name for name in ("broker", "client", "coordination", "store"))
    modules = [
        *(ROOT / "vq").glob("*.py"),
        *(path for each in folders for path in each.rglob("*.py")),
    ]
    sources = (module.read_text() for module in modules)
    found = {name for source in sources if ".Lock()" in source for name in locks_of(source)}
    assert len(found) > 10
    assert sorted(name for name in found if f"`{name}`" not in page) == []


def test_a_room_says_what_belongs_in_it_and_imports_nothing() -> None:
    """A folder of broker, cli, coordination, operations or store; ``lint-imports`` knows it."""
    for package in ("broker", "cli", "coordination", "operations", "store"):
        rooms = sorted((ROOT / "vq" / package).glob("*/__init__.py"))
        assert len(rooms) >= 5
        for room in rooms:
            tree = ast.parse(room.read_text())
            assert len(tree.body) == 1, room
            text = ast.get_docstring(tree) or ""
            assert re.search(r"^In here: ", text, re.M), room
            assert re.search(r"\bNot\s+in\s+here:\s", text), room


def names_in(path: Path) -> set[str]:
    """The functions and classes of a module, and the methods, as ``Class.method``."""
    found = set()
    for each in ast.parse(path.read_text()).body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(each.name)
        if isinstance(each, ast.ClassDef):
            found |= {f"{each.name}.{inner.name}" for inner in each.body if hasattr(inner, "name")}
    return found


def test_the_paths_through_the_code_name_files_and_functions_that_are_there() -> None:
    """In ARCHITECTURE.md. Whoever moves one of them corrects the step that names it."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    files = {name for name in re.findall(r"`([\w/]+\.py)`", page) if "/" in name}
    assert len(files) > 60
    missing = {each for each in files if not (ROOT / "vq" / each).is_file()}
    assert sorted(each for each in missing if not (ROOT / each).is_file()) == []
    _, paths = page.split("\n## Ten paths through the code\n")
    paths, _ = paths.split("\n## ", 1)
    assert len(re.findall(r"^### (?:A|An) ", paths, re.MULTILINE)) == 10
    steps = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", paths.split("\n### Beside")[0])
    assert len(steps) > 60
    named = re.findall(
        r"`([A-Z]\w+(?:\.\w+)?)` (?:\(|in )`([\w/]+\.py)`", page
    )  # on the whole page
    assert len(named) > 10
    steps += [(file, name) for name, file in named]
    gone = [(file, name) for file, name in steps if name not in names_in(ROOT / "vq" / file)]
    assert gone == []


def test_the_functions_in_which_tests_kill_a_program_are_there() -> None:
    """Most of these runs are long forms: nobody would notice for weeks."""
    points = {
        (module, name)
        for path in (ROOT / "tests").rglob("*.py")
        for module, name in re.findall(r'"(vq(?:\.\w+)+):([\w.]+)', path.read_text())
    }
    assert len(points) > 8
    for module, name in points:
        found = importlib.import_module(module)
        for part in name.split("."):
            assert hasattr(found, part), f"{module}:{name}"
            found = getattr(found, part)


def test_the_architecture_shows_every_layer_and_every_folder() -> None:
    """Those of the contract of imports; a room in the list of its package."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    _, shown = page.split("\n## The folders\n")
    shown, _ = shown.split("\n## ", 1)
    folders = [
        path.parent.relative_to(ROOT)
        for package in ("vq", "pyspark_vq")
        for path in sorted((ROOT / package).glob("*/**/__init__.py"))
    ]
    assert len(folders) > 25
    assert [str(each) for each in folders if not re.search(rf"\b{each.name}\b", shown)] == []
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    rows = [row for each in contracts if each["type"] == "layers" for row in each["layers"]]
    layers = set(re.findall(r"\w+", " ".join(rows))) - {"__main__", "properties_pb2"}
    assert len(layers) > 40
    assert sorted(each for each in layers if not re.search(rf"\b{each}\b", shown)) == []


#: Modules that applications import names from; packages besides.
PUBLIC_MODULES = {"admin", "columns", "datamanager", "opentelemetry", "serializers"}


def test_names_are_listed_only_where_applications_import_them() -> None:
    """Elsewhere a name without an underscore is public in its module, and has no list beside it."""
    listed = {
        path.relative_to(ROOT / package).with_suffix("").as_posix()
        for package in ("vq", "pyspark_vq")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" and "\n__all__" in path.read_text()
    }
    assert listed <= PUBLIC_MODULES
