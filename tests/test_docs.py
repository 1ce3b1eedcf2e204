"""The pages for newcomers say what is so: every place they name exists, every word stands once and is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import conformance, plugin, services

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "headrace"
WALKS = (DOCS / "architecture.md").read_text().partition("## Five walks")[2]
GLOSSARY = (DOCS / "glossary.md").read_text()
BACKENDS = (DOCS / "write-a-backend.md").read_text()
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, flags=re.MULTILINE)
WORDS_AT_MOST = 40
# The page about backends shows passages of an example, not programs.
PAGES_WITH_PROGRAMS = [ROOT / "README.md", *sorted({*DOCS.glob("*.md")} - {DOCS / "write-a-backend.md"})]
READING_ORDER = (
    *("journals", "projections", "outbox", "avro", "state", "keyspaces", "engine", "gateway", "clients"),
    *("consistency", "nodes"),
)


def _steps(text: str) -> list[tuple[str, str]]:
    """Return what stands in backquotes as `file.py:Name` or `file.py`; the name of the latter is empty."""
    return re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", text)


def _names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in body if isinstance(node, kinds)}


def _is_defined(file: Path, name: str) -> bool:
    """Return True if the file itself defines the function, the class or the class's method."""
    body = ast.parse(file.read_text()).body
    for part in name.split("."):
        found = _names(body).get(part)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


@pytest.mark.parametrize(
    "walk", re.split(r"^### ", WALKS, flags=re.MULTILINE)[1:], ids=lambda walk: walk.split("\n")[0]
)
def test_every_step_of_a_walk_exists(walk: str) -> None:
    """A step names a file below src/headrace and a function, a class or a method that this file defines."""
    steps = _steps(walk)
    assert len(steps) >= 5
    missing = [f"{file}:{name}" for file, name in steps if not (SOURCE / file).is_file()]
    assert missing == []
    undefined = [f"{file}:{name}" for file, name in steps if name and not _is_defined(SOURCE / file, name)]
    assert undefined == []


def test_the_files_that_the_map_names_exist() -> None:
    """The table of where to look for something names files below src/headrace."""
    table = (DOCS / "architecture.md").read_text().partition("## Where to look for")[2].partition("## ")[0]
    named = re.findall(r"`([\w/]+/\w+\.(?:py|toml))`", table)
    assert len(named) > 10
    assert [file for file in named if not (SOURCE / file).is_file()] == []


def test_there_are_five_walks() -> None:
    """One append, one read, one replicated record, one outbox message, one live query by tag."""
    assert len(re.findall(r"^### ", WALKS, flags=re.MULTILINE)) == 5


def test_the_map_names_every_room() -> None:
    """A package below src/headrace has its row in the table of rooms."""
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file()}
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "architecture.md").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert rooms - named == set()


def test_no_word_of_the_glossary_stands_twice() -> None:
    """One word, one meaning: at most 40, in the order of the alphabet."""
    assert WORDS
    assert len(WORDS) <= WORDS_AT_MOST
    assert sorted(set(WORDS), key=str.lower) == WORDS


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_the_glossary_is_used(word: str) -> None:
    """The word is met in the code or in another page; one that nobody meets needs no explanation."""
    pages = [*SOURCE.rglob("*.py"), *DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pattern = re.compile(rf"\b{re.escape(word)}s?\b", flags=re.IGNORECASE)
    assert any(pattern.search(page.read_text()) for page in pages if page.name != "glossary.md")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the project."""
    for target in re.findall(r"\]\((?!http|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES_WITH_PROGRAMS, ids=lambda page: page.name)
def test_the_functions_of_a_page_have_types(page: Path) -> None:
    """FN6: a program that is copied from a page into a project under mypy --strict has no function without types."""
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                untyped = [each.arg for each in node.args.args if each.annotation is None and each.arg != "self"]
                assert (node.name, untyped, node.returns is not None) == (node.name, [], True)


# Programs of several pages in one process: a process for each would take most of the time.
_RUN_ALL = """
import asyncio, contextlib, io, sys
for number, code in enumerate(sys.stdin.read().split("\\0")):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(code, f"program {number}", "exec"), {"__name__": "__main__"})
        except Exception as error:
            raise SystemExit(f"program {number} failed: {error!r}\\n{code}")
"""


@pytest.mark.timeout(240)
def test_the_programs_of_all_pages_can_be_run_in_one_folder_and_again(tmp_path: Path) -> None:
    """FN6: a reader who goes from page to page in one folder meets no journal, topic or group of another page."""
    pages = [ROOT / "README.md", *(DOCS / f"{name}.md" for name in READING_ORDER)]
    programs = [code for page in pages for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    assert len(programs) > 12
    done = subprocess.run(
        [sys.executable, "-c", _RUN_ALL],
        input="\0".join(programs * 2),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert done.returncode == 0, done.stderr
    assert "Task was destroyed" not in done.stderr


@pytest.mark.parametrize("block", re.findall(r"```(?:python|toml)\n(.*?)```", BACKENDS, flags=re.DOTALL))
def test_the_page_about_backends_quotes_its_example(block: str) -> None:
    """What the page shows is a passage of the example, which `make test` runs."""
    files = [file for file in (ROOT / "examples" / "sqlite_registry").iterdir() if file.suffix in (".py", ".toml")]
    assert any(block in file.read_text() for file in files), block


def test_the_page_about_backends_names_every_suite_and_fixture() -> None:
    """A suite that is shipped, and a fixture of the plugin, can be found by reading."""
    for name in (*conformance.__all__, *plugin.__all__, *services.__all__):
        if name.startswith("headrace_") or name.endswith("Conformance"):
            assert f"`{name}`" in BACKENDS, name
