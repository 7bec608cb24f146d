"""Nothing that is received chooses code: what would let it is not in the sources, or stands here.

RocketMQ ran commands that a request had put into its settings (CVE-2023-33246, CVE-2023-37582), and
Kafka Connect loaded classes that one named (CVE-2023-25194).
"""

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
#: Modules that make objects of bytes, or run what bytes say.
LOADERS: Final = frozenset(
    {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "jsonpickle", "code"}
)
CALLS: Final = frozenset({"eval", "exec", "compile", "__import__"})
#: Who may import by a computed name, start a process or read pickles, and why that is no data.
ALLOWED: Final[Mapping[str, Mapping[str, str]]] = {
    "import": {
        "vq/__init__.py": "names of vq itself, from a table",
        "vq/admin.py": "names of vq itself, from a table",
        "vq/cli/main.py": "commands, from a table",
        "vq/worker/handlers.py": "the module of handlers that the command line names",
    },
    "process": {
        "vq/cli/bench/worker.py": "vq itself, with a fixed list",
        "vq/devtools/zookeeper.py": "the Java of the machine, with a fixed list",
        "vq/devtools/processes.py": "vq itself, with a fixed list",
        "vq/worker/process.py": "vq itself, with a fixed list",
        "vq/console/acts/reports.py": "the report of the console, with a fixed list",
        "pyspark_vq/session.py": "the Java of the machine, with a fixed list",
    },
    "loader": {
        "pyspark_vq/reports/audit.py": "what Spark carries from its own workers to its driver",
    },
}


#: What a source has in which ``found_in`` may find something: to parse the others takes seconds.
STEERED: Final = (
    re.compile(rf"\b(?:import|from)\s[^\n]*(?:\b(?:{'|'.join([*LOADERS, 'subprocess'])})\b|\\\n)"),
    re.compile(rf"(?<![\w.])(?:{'|'.join(CALLS)})\s*\("),
    re.compile(r"\bimport_module\b|\b(?:system|popen)\s*\(|\bcreate_subprocess_|\bshell\s*="),
)


def may_steer(source: str) -> bool:
    """Return whether ``found_in`` may find something."""
    return any(each.search(source) for each in STEERED)


def sources(chosen: Callable[[str], object]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the sources whose text is chosen: the name, and the tree."""
    for package in ("vq", "pyspark_vq"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            if not path.name.endswith("_pb2.py") and chosen(text):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def found_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what is there that data could steer: its kind, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names]
            roots = {each.partition(".")[0] for each in names}
            if isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").partition(".")[0]} if not node.level else set()
            if roots & LOADERS:
                yield "loader", node.lineno
            if "subprocess" in roots:
                yield "process", node.lineno
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            plain = isinstance(called, ast.Name)
            if plain and name in CALLS:
                yield "code", node.lineno
            elif name == "import_module" and not isinstance(node.args[0], ast.Constant):
                yield "import", node.lineno
            elif name in {"system", "popen", "create_subprocess_exec", "create_subprocess_shell"}:
                yield "process", node.lineno
            elif any(
                each.arg == "shell" and getattr(each.value, "value", True) for each in node.keywords
            ):
                yield "shell", node.lineno


def test_nothing_that_is_received_can_choose_code() -> None:
    """No eval, no shell; imports by name, processes and pickles only where the table says why."""
    seen: set[tuple[str, str]] = set()
    wrong = []
    for name, tree in sources(may_steer):
        for kind, line in found_in(tree):
            if name in ALLOWED.get(kind, {}):
                seen.add((kind, name))
            else:
                wrong.append(f"{name}:{line}: {kind}")
    assert not wrong
    assert seen == {(kind, name) for kind, names in ALLOWED.items() for name in names}


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import pickle", "loader"),
        ("import json, code", "loader"),
        ("import json, \\\n    code", "loader"),
        ("from yaml import load", "loader"),
        ("eval(text)", "code"),
        ("importlib.import_module(name)", "import"),
        ("os.system(text)", "process"),
        ("asyncio.create_subprocess_exec(text)", "process"),
        ("run(text, shell=True)", "shell"),
    ],
)
def test_what_would_let_data_choose_code_is_seen(source: str, kind: str) -> None:
    assert may_steer(source)
    assert [each for each, _ in found_in(ast.parse(source))] == [kind]


# Secrets are compared in constant time (CVE-2021-38153) -------------------------------------------
#: Ends of names of values that only who may know them can say.
SECRET_ENDS: Final = ("signature", "proof", "token", "csrf", "mac", "digest", "secret", "password")
SECRET: Final = re.compile(rf"(?:{'|'.join(SECRET_ENDS)})\b", re.IGNORECASE)


def may_compare(source: str) -> bool:
    """Return whether a secret is named on a line with an operator, or on one beside it."""
    lines = source.split("\n")
    return any(
        SECRET.search("\n".join(lines[max(0, number - 1) : number + 2]))
        for number, line in enumerate(lines)
        if "==" in line or "!=" in line
    )


def compared_plainly(tree: ast.AST) -> Iterator[str]:
    """Yield the comparisons of such a value with another one with == or !=."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        operands = [node.left, *node.comparators]
        for operator, sides in zip(node.ops, itertools.pairwise(operands), strict=True):
            if not isinstance(operator, ast.Eq | ast.NotEq):
                continue
            if any(isinstance(each, ast.Constant) for each in sides):
                continue  # "" is no secret
            names = [getattr(each, "attr", getattr(each, "id", "")) for each in sides]
            if any(each.lower().endswith(SECRET_ENDS) for each in names):
                yield ast.unparse(node)


#: Comparisons that tell a peer nothing, each with the reason.
PLAIN: Final[Mapping[str, str]] = {
    "vq/broker/replication/secret.py: secret != self._secret": "both are what ZooKeeper has",
    "vq/broker/security/authentication.py: each.keys == known.secret": (
        "what the broker verified, and what ZooKeeper has now"
    ),
    "vq/broker/security/authentication.py: known.secret == older[user]": "the same, for a metric",
    "vq/operations/security/users.py: each.keys == keys.secret": "of an operator, who reads both",
    "vq/console/accounts/tokens.py: tokens.c.digest == digest_of(token).hex()": (
        "an index of the database finds the hash of a random token"
    ),
    "vq/console/accounts/tokens.py: tokens.c.digest == row.digest": "both are the database's",
}


def test_secrets_are_compared_in_constant_time() -> None:
    """Otherwise the time of a refusal tells how much of a guess is right."""
    found = {
        f"{name}: {text}" for name, tree in sources(may_compare) for text in compared_plainly(tree)
    }
    assert found == set(PLAIN), "use hmac.compare_digest"


def test_a_plain_comparison_of_a_secret_is_seen() -> None:
    text = "given == self.expected_proof"
    assert may_compare(text)
    assert may_compare("(\n    self.csrf\n    != given.other\n)")
    assert list(compared_plainly(ast.parse(text))) == [text]
    assert not list(compared_plainly(ast.parse("if token == '': pass")))
