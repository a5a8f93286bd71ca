"""The shape of the project: data flow, lazy imports, documentation, budgets."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bluegrad

SOURCE = Path(bluegrad.__file__).parent
# Every module imports only from entries above its own.
ORDER = (
    "_checks",
    "_files",
    "_series",
    "_patterns",
    "workload",
    "participation",
    "strategy",
    "score",
    "mechanism",
    "accounting",
    "optimize",
    "noise",
    "sampling",
    "training",
    "audit",
    "theory",
    "tasks",
    "plots",
    "report",
    "cli",
)
FILES = sorted(SOURCE.rglob("*.py"))


def entry(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Entries of bluegrad that a file imports, TYPE_CHECKING blocks aside."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bluegrad":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "bluegrad"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        found.update(name.split(".")[1] for name in names if "." in name)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_flow_one_way(path):
    if path == SOURCE / "__init__.py":
        return  # names only, loaded lazily
    own = entry(path)
    assert own in ORDER, f"{own} has no place in the order"
    allowed = set(ORDER[: ORDER.index(own) + 1]) | {"__version__"}
    assert imported(path) <= allowed


def test_the_import_check_sees_a_violation(tmp_path):
    bad = tmp_path / "score.py"
    bad.write_text("import importlib\nfrom bluegrad.noise import kernel\nimportlib.import_module('bluegrad.cli')\n")
    assert imported(bad) == {"noise", "cli"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_planning_never_imports_torch():
    run(
        "import sys, bluegrad as bg\n"
        "law = bg.FixedEpochs(100, 5)\n"
        "s = bg.optimize.lambda_cgd(bg.PrefixSum(100), law)\n"
        "m = bg.calibrate(s, law, epsilon=1, delta=1e-5)\n"
        "bg.rmse(s, bg.PrefixSum(100), law), bg.epsilon(m, delta=1e-6)\n"
        "from bluegrad import cli\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(cli.app, ['plan']).exit_code == 0\n"
        "assert 'torch' not in sys.modules and 'dp_accounting' not in sys.modules\n"
    )


def test_the_torch_check_can_fail():
    assert "True" in run("import sys, bluegrad; bluegrad.NoiseStream; print('torch' in sys.modules)")


@pytest.mark.parametrize("name", bluegrad.__all__)
def test_every_public_name_is_documented(name):
    item = getattr(bluegrad, name)
    doc = inspect.getdoc(item)
    assert doc and len(doc.splitlines()[0]) > 20, f"{name}: no summary line"
    if inspect.isfunction(item):
        for section in ("Args:", "Returns:", "Raises:", ">>>", "Source:"):
            assert section in doc, f"{name}: no {section}"
    if inspect.isclass(item) and not issubclass(item, Exception):
        public = [m for n, m in vars(item).items() if not n.startswith("_") and callable(m)]
        assert all(inspect.getdoc(m) for m in public), f"{name}: an undocumented method"


def test_readme_names_every_public_function():
    readme = (SOURCE.parents[1] / "README.md").read_text() + (SOURCE.parents[1] / "docs" / "api.md").read_text()
    missing = [name for name in bluegrad.__all__ if name not in readme]
    assert not missing


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_keep_their_budget(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            doc = ast.get_docstring(node, clean=False)
            lines = node.end_lineno - node.lineno + 1 - (doc.count("\n") + 1 if doc else 0)
            assert lines <= 60, f"{node.name}: {lines} lines"
