"""The documents are true: their examples run, their links lead somewhere, translations keep up.

Blocks run as a reader runs them, in order, against a cluster that the document itself starts
(README, tutorial) or that a reader of a how-to has running. How a block is run is told in
``support.documents``.
"""

import codeop
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.databases import postgresql
from support.documents import ROOT, Block, Machine, blocks_of, missing_line, unexpected_line
from support.zookeeper import ZooKeeperService, unavailable

import vq
from vq.cli.main import COMMANDS

README = ROOT / "README.md"
CHINESE = ROOT / "README.zh-CN.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
SPARK = [
    ROOT / "docs" / "spark-tutorial.md",
    ROOT / "docs" / "howto" / "spark.md",
    ROOT / "docs" / "howto" / "spark-write.md",
]
STOP = ROOT / "docs" / "howto" / "stop-a-producer.md"  # it freezes a broker
BROKERS = ROOT / "docs" / "howto" / "add-and-remove-brokers.md"
BACK_UP = ROOT / "docs" / "howto" / "back-up.md"
DATABASES = ROOT / "docs" / "howto" / "transactions-with-databases.md"
SERVICE = ROOT / "docs" / "howto" / "fastapi.md"  # it runs twice
HOWTOS = sorted(
    {*(ROOT / "docs" / "howto").glob("[a-z]*.md")} - {STOP, BROKERS, BACK_UP, DATABASES, *SPARK}
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Those that tell what vq is today: not decisions, changes, formats, nor what code writes.
PAGES = [
    path
    for path in DOCUMENTS
    if {"decisions", "reference"}.isdisjoint(path.parts)
    and path.stem not in {"CHANGELOG", "formats", "protocol", "coordination"}
]
_LINK = re.compile(r"\]\((?!\))([^)#:\s]*)(#[^)\s]*)?\)")
_CREATES = re.compile(r'topic create ([\w-]+)|(?:create_topic|publish)\("([\w-]+)"')
_GROUP = re.compile(
    r'\bgroup="([\w.-]+)"|--group ([\w.-]+)|vq group (?:create|clone [\w-]+) ([\w-]+)'
)
_HEADING = re.compile(r"^(#+) ", re.MULTILINE)
CLUSTER = Block(
    "howto", "sh", "vq standalone --brokers 2", "a terminal of its own, until: ctrl-C …"
)


def run(documents: Sequence[Path], machine: Machine, directory: Path) -> None:
    """Run every block of documents that is to be run, one document after the other."""
    terminal = machine.terminal(directory)
    (directory / "README.md").write_text(README.read_text())
    for document in documents:
        terminal.begin_page()
        for block in blocks_of(document):
            if block.runs:
                terminal.run(block)
    terminal.close()  # its clients would go on beside the next sixty pages


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [README, TUTORIAL, STOP, BROKERS, BACK_UP], ids=lambda path: path.stem
)
def test_a_document_that_starts_with_nothing_works(
    document: Path, tmp_path: Path, zookeeper: ZooKeeperService
) -> None:
    """It starts its own cluster. (``zookeeper``: Java and the jars are there.)"""
    with Machine() as machine:
        run([document], machine, tmp_path / "reader")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_pages_of_spark_work(tmp_path: Path, zookeeper: ZooKeeperService) -> None:
    """The tutorial starts a cluster and a session of Spark; the how-tos go on with both.

    A session is half a minute of work. What the pages do is tested in ``tests/spark``, in the
    session that is there; that they are true to the letter, in the long form.
    """
    with Machine() as machine:
        run(SPARK, machine, tmp_path / "reader")


@pytest.fixture(scope="module")
def machine(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[Machine]:
    """A machine on which a cluster of two brokers runs."""
    with Machine() as made:
        made.terminal(tmp_path_factory.mktemp("cluster") / "cluster").run(CLUSTER)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [path for path in HOWTOS if path != SERVICE], ids=lambda path: path.stem
)
def test_a_how_to_works(document: Path, machine: Machine, tmp_path: Path) -> None:
    needs_curl = any("curl " in block.code for block in blocks_of(document) if block.runs)
    if needs_curl and shutil.which("curl") is None:
        unavailable("curl is not installed")
    run([document], machine, tmp_path / "reader")


@pytest.mark.slow
def test_the_page_of_databases_works(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgresql() as url:
        monkeypatch.setenv("SHOP", url.replace("postgresql+psycopg", "postgresql"))
        run([DATABASES], machine, tmp_path / "reader")


@pytest.mark.slow
def test_the_page_of_a_service_works_again(machine: Machine, tmp_path: Path) -> None:
    """What a test of a service leaves behind must not stop its next run."""
    for number in ("first", "second"):
        run([SERVICE], machine, tmp_path / number)


def test_vq_is_installed_from_files_and_never_by_its_name() -> None:
    """It is on no index; whoever asked one for ``vq`` would install a package of somebody else."""
    code = [*(ROOT / "vq").rglob("*.py"), *(ROOT / "pyspark_vq").rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): command.strip()
        for path in [*PAGES, *code]
        for command in re.findall(r"pip install ([^`#\n]*)", path.read_text())
        if re.search(r"(?<![\w./])vq(\[[a-z,]+\])?['\"]?(?= *(['\"]|$))", command)
    }
    assert found == {}


#: What the documents call missing, by a word of the sentence, and a proof that it is.
ABSENT = {
    "work queue": lambda: not hasattr(vq.MessageConsumer, "ack"),
    "console": lambda: "console" not in COMMANDS,
    "authentication": lambda: not {"user", "password", "token"} & CONFIG,
    "compact": lambda: "compact" not in vq.TopicSettings.__dataclass_fields__,
    "index": lambda: (ROOT / "docs" / "howto" / "install.md").is_file(),
}


CONFIG = {*vq.MessageFactoryConfig.__dataclass_fields__}
_MISSING = re.compile(r"\bnot yet\b|does not (?:exist|have) yet|There is no [^.]* yet")


def told_missing(document: Path) -> Iterator[str]:
    """The lines that say that vq lacks something; of a list, each of its entries."""
    lines = document.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#") or not _MISSING.search(line):
            continue
        if not line.endswith(":"):
            yield line
            continue
        for entry in lines[number + 2 :]:
            if not entry.startswith(("- ", "  ")):
                break
            if entry.startswith("- "):
                yield entry


def test_what_is_said_to_be_missing_is_missing() -> None:
    """A sentence with "not yet" has a proof here, so that nobody forgets to take it away."""
    found = [(path.name, line) for path in PAGES for line in told_missing(path)]
    assert found
    proofs = {line: [name for name in ABSENT if name.lower() in line.lower()] for _, line in found}
    assert [each for each in found if not proofs[each[1]]] == []
    wrong = [(line, name) for line, names in proofs.items() for name in names if not ABSENT[name]()]
    assert wrong == []


def test_no_how_to_creates_a_topic_of_another_page() -> None:
    """They run against one cluster, in any order, and after the README or the tutorial."""
    creators: dict[str, set[str]] = {}
    for document in [README, TUTORIAL, *HOWTOS, *SPARK[1:]]:
        for block in filter(lambda block: block.runs, blocks_of(document)):
            for topic in map("".join, _CREATES.findall(block.code)):
                creators.setdefault(topic, set()).add(document.name)
    assert creators.pop("orders") == {README.name, TUTORIAL.name}  # each says so of the other
    assert {topic: names for topic, names in creators.items() if len(names) > 1} == {}


def test_no_how_to_uses_a_group_of_another_page() -> None:
    """A group keeps its terms, and its place: the next page would get those of the first one."""
    users: dict[str, set[str]] = {}
    for document in [README, TUTORIAL, *HOWTOS, STOP, DATABASES, *SPARK[1:]]:
        for block in filter(lambda block: block.runs, blocks_of(document)):
            for group in map("".join, _GROUP.findall(block.code)):
                users.setdefault(group, set()).add(document.name)
    assert users.pop("shop") == {README.name, TUTORIAL.name}  # each needs a cluster of its own
    assert len(users) > 30
    assert {group: names for group, names in users.items() if len(names) > 1} == {}


def test_links_lead_somewhere() -> None:
    """Relative links between files of the project, and within one; anchors must be headings."""
    links = [
        (document, target, anchor)
        for document in DOCUMENTS
        for target, anchor in _LINK.findall(document.read_text())
    ]
    assert [f"{each[0]}: {wrong}" for each in links if (wrong := dead(*each))] == []


def test_the_pages_that_texts_of_the_code_name_are_there() -> None:
    """Errors, hints and findings send an operator to ``docs/…``."""
    code = [path for folder in ("vq", "pyspark_vq") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in code for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_how_to_is_in_one_of_the_two_lists() -> None:
    """Of operators or of applications, so that a reader finds it."""
    of_operators = (ROOT / "docs" / "operations.md").read_text()
    of_applications = (ROOT / "docs" / "howto" / "README.md").read_text()
    for page in {*HOWTOS, STOP, BROKERS, BACK_UP}:
        lists = (of_operators, f"(howto/{page.name}"), (of_applications, f"({page.name}")
        assert any(re.search(rf"{re.escape(link)}[)#]", text) for text, link in lists), page.name


def test_the_files_of_the_project_that_a_page_names_are_there() -> None:
    """Not those of decisions, changes and measurements, which tell of another day."""
    told_then = {"CHANGELOG", "performance"}
    named = {
        (document.name, name)
        for document in DOCUMENTS
        if "decisions" not in document.parts and document.stem not in told_then
        for name in re.findall(
            r"`((?:vq|pyspark_vq|tests|tools)/[\w/.-]+\.\w+)`", document.read_text()
        )
    }
    assert len(named) > 30
    assert sorted(each for each in named if not (ROOT / each[1]).is_file()) == []


def dead(document: Path, target: str, anchor: str) -> str:
    """What is wrong with a link; "" if it leads somewhere."""
    path = (document.parent / target).resolve() if target else document
    if not path.exists():
        return f"{target} does not exist"
    if anchor and path.suffix == ".md" and anchor[1:] not in anchors(path):
        return f"{target} has no heading {anchor}"
    return ""


def anchors(path: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_the_translation_has_the_same_sections_and_blocks() -> None:
    """Same headings in the same order, same links, same code but for its comments."""
    ours, theirs = README.read_text(), CHINESE.read_text()
    assert _HEADING.findall(theirs) == _HEADING.findall(ours)
    ours_links = {target for target, _ in _LINK.findall(ours)} - {CHINESE.name}
    assert {target for target, _ in _LINK.findall(theirs)} - {README.name} == ours_links
    assert [code_of(block) for block in blocks_of(CHINESE)] == [
        code_of(block) for block in blocks_of(README)
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
@pytest.mark.parametrize("document", [README, TUTORIAL], ids=lambda path: path.stem)
def test_git_ignores_what_a_document_makes_in_the_checkout(document: Path) -> None:
    """Its environment, its directory and the data of its cluster: none is for a commit."""
    text = document.read_text()
    made = [f"{name}/x" for name in re.findall(r"^(?:python3 -m venv|mkdir) (\S+)$", text, re.M)]
    made += [
        str(Path(name, "vq-data", "b1")) for name in (".", *re.findall(r"^cd (\S+)$", text, re.M))
    ]
    command = ["git", "check-ignore", "--no-index", *made]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == made, done.stderr


def code_of(block: Block) -> tuple[str, list[str], str]:
    """Return a block without the comments in its code."""
    lines = [re.sub(r"\s*#.*$", "", line) for line in block.code.splitlines()]
    return block.language, lines, block.expected


def test_every_decision_is_listed_and_has_a_status() -> None:
    decisions = ROOT / "docs" / "decisions"
    index = (decisions / "README.md").read_text()
    for page in decisions.glob("0*.md"):
        status = re.search(r"^Status: (\w+)", page.read_text(), re.MULTILINE)
        assert status, f"{page.name} has no line 'Status: …'"
        assert re.search(rf"\({re.escape(page.name)}\) \| {status[1]}", index), page.name


def test_a_decision_that_is_replaced_says_by_which_and_that_one_says_so() -> None:
    """In whole or in part; the index has the newer one, too."""
    decisions = ROOT / "docs" / "decisions"
    index = (decisions / "README.md").read_text()
    by, of = set(), set()
    for page in decisions.glob("0*.md"):
        found = re.search(r"^Status: (.*?)\n\n", page.read_text(), re.MULTILINE | re.DOTALL)
        assert found is not None, page.name
        for clause in re.split(r"[;.] ", found[1]):
            numbers = re.findall(r"\((0\d+)-[\w-]+\.md\)", clause)
            by |= {(page.name[:4], number) for number in numbers if "replaced" in clause}
            of |= {(number, page.name[:4]) for number in numbers if "replaces" in clause}
    shown = {
        (row[:4], number)
        for row in re.findall(r"^\| \[(0.*)$", index, re.MULTILINE)
        for number in re.findall(r"\[(0\d+)\]\(", row)
    }
    assert len(by) > 8
    assert by == of == shown


def test_what_is_not_run_says_why() -> None:
    """A block of a document that is run is run, or says why not.

    Output in a block without a language would not be compared.
    """
    for document in [README, TUTORIAL, STOP, BROKERS, *HOWTOS, *SPARK]:
        for block in blocks_of(document):
            assert block.runs or len(block.comment) > 12, block.name


@pytest.mark.parametrize("document", [README, CHINESE, TUTORIAL], ids=lambda path: path.name)
def test_python_can_be_pasted_into_the_prompt(document: Path) -> None:
    """Of Python 3.12 and earlier: a line that follows a block needs an empty one before it.

    And an empty line inside of a block ends it.
    """
    for block in blocks_of(document):
        if block.language != "python":
            continue
        pending: list[str] = []
        for number, line in enumerate([*block.code.splitlines(), ""], start=1):
            pending.append(line)
            try:
                code = codeop.compile_command("\n".join(pending), symbol="single")
            except SyntaxError as error:
                pytest.fail(f"{block.name}, line {number} {line!r}: {error}")
            if code is not None:
                pending = []
        assert not pending, f"{block.name} does not end"


def test_a_block_that_ends_between_two_looks_has_ended_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs at one look and has ended at the next one, however close they are."""

    class Ends(subprocess.Popen[bytes]):
        looks = 0

        def poll(self) -> int | None:
            self.looks += 1
            return self.wait() if self.looks > 1 else None

    with Machine() as machine:
        terminal = machine.terminal(tmp_path / "reader")
        monkeypatch.setattr(subprocess, "Popen", Ends)
        terminal.run(Block("page", "sh", "echo done", "", "done"))


def test_expected_lines_are_compared_as_a_reader_would() -> None:
    said = "partition\tgroup\n0\tb1\n1\tb2\n"
    assert missing_line("partition  group\n─────────\n1  b2\n", said) is None
    assert missing_line("1  b2\n0  b1\n", said) == "0  b1", "in that order"
    assert missing_line("…  b1\n", said) is None
    assert missing_line("0  b2", said) == "0  b2"


@pytest.mark.parametrize(
    ("expected", "more"),
    [
        ("partition group\n0 b1\n1 b2", None),
        ("partition group\n1 b2", "0\tb1"),
        ("partition group\n…\n1 b2", None),
        ("partition group\n0 b1", "1\tb2"),
        ("partition group\n0 b1\n…", None),
        ("…\n1 b2", None),
        ("…\n0 b1", "1\tb2"),
        ("…\npartition …\n0 b1\n1 b2", None),
    ],
)
def test_a_screen_shows_all_lines_or_says_that_it_is_cut(expected: str, more: str | None) -> None:
    assert unexpected_line(expected, "partition\tgroup\n\n0\tb1\n1\tb2\n") == more
