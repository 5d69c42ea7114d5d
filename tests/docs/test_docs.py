"""The docs agree with the code."""

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib import pyplot as plt
from PIL import Image

from stacks.deploy.cdk import PACKAGE
from tests.helpers import ROOT

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.ipynb")),
    *sorted((ROOT / "papers").rglob("README.md")),
]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_the_experiment_file_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference" / "experiment_file.md").read_text() == script(
        "make_experiment_file_md"
    ).table()


def test_the_reference_of_rounds_jsonl_is_up_to_date() -> None:
    rounds = script("make_rounds_md")
    text = rounds.DOCUMENT.read_text()
    assert rounds.table() in text
    assert rounds.document(text) == text


def test_every_event_of_the_code_is_explained_and_no_other() -> None:
    text = (
        (ROOT / "docs" / "reference" / "run_directory.md")
        .read_text()
        .split("## events.jsonl")[1]
        .split("\n## ")[0]
    )
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {
        name
        for path in (ROOT / "runtime").rglob("*.py")
        for name in re.findall(r'(?:events\.append|_tell)\(\s*"(\w+)"', path.read_text())
    }
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == named


def headings(page: Path) -> set[str]:
    """Returns a page's anchors, as GitHub generates them from headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(document: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", document.read_text()):
        page = document.parent / target if target else document
        assert page.exists(), target
        if anchor:
            assert anchor in headings(page), f"{target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_the_docs_exist(document: Path) -> None:
    for name in re.findall(
        r"`((?:runtime|lambda_actor|tests|experiments|benchmarks|papers|docs)/[\w./-]+\.\w+)`",
        document.read_text(),
    ):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", ["README.md", "docs/guides/deploy.md"])
def test_the_cdk_that_pages_name_is_the_one_that_make_deploy_runs(page: str) -> None:
    assert set(re.findall(r"aws-cdk@[\w.]+", (ROOT / page).read_text())) == {PACKAGE}


def test_tests_named_in_the_paper_map_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(
        r"`(test_\w+)`", (ROOT / "docs" / "design" / "paper_map.md").read_text()
    ):
        assert f"def {name}(" in sources, name


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            path = (page.parent / target).resolve()
            is_page = path.suffix in (".md", ".ipynb")
            waiting.extend(
                [path] if is_page else sorted(path.glob("*.md")) if path.is_dir() else []
            )
    assert {page for page in DOCUMENTS if page not in reached} == set()


def test_the_picture_of_a_deployment_is_drawn_by_its_program_from_the_present_templates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "pictures"))
    deployment = importlib.import_module("make_deployment")
    figure = deployment.draw(deployment.synthesised())
    # A notebook of this process would show it.
    plt.close(figure)
    with Image.open(ROOT / "docs" / "pictures" / "deployment.png") as image:
        assert image.info["Data"] == deployment.drawn_from(figure, "deployment"), "run make docs"
