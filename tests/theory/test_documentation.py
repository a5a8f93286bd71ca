"""The guide: every public name is in it and documented, and its snippets run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bluegrad import theory

GUIDE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()


@pytest.mark.parametrize("name", theory.__all__)
def test_every_name_is_in_the_guide_and_documented(name):
    assert f"`{name}`" in GUIDE
    item = getattr(theory, name)
    doc = inspect.getdoc(item)
    assert doc and len(doc.splitlines()[0]) > 20
    if inspect.isfunction(item):
        sections = ["Returns:", ">>>", "Source:"]
        if inspect.signature(item).parameters:
            sections += ["Args:", "Raises:"]
        assert all(section in doc for section in sections)
    else:
        public = [member for key, member in vars(item).items() if not key.startswith("_") and callable(member)]
        assert all(inspect.getdoc(member) for member in public)


def test_the_snippets_run():
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(snippets) >= 5
    exec("\n".join(snippets), {})


def test_the_theory_never_imports_torch():
    code = "import sys, bluegrad.theory; assert 'torch' not in sys.modules and 'cvxpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
