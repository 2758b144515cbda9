import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from docs.tables import LIMITS
from loadchaos.core import limits

PACKAGE = Path(limits.__file__).parent.parent
NAMES = [name for name in vars(limits) if name.isupper()]
DOCUMENTED = {name for modules in LIMITS.values() for name in modules.get("core.limits", ())}


def users(name: str) -> set[Path]:
    """Modules beside the owner that name a limit."""
    files = (p for p in PACKAGE.rglob("*.py") if p != Path(limits.__file__))
    return {p for p in files if re.search(rf"\b{name}\b", p.read_text())}


@pytest.mark.parametrize("name", NAMES)
def test_shared_limit_has_several_users_or_stands_in_the_docs(name: str) -> None:
    assert len(users(name)) > 1 or name in DOCUMENTED


def test_shared_limits_have_a_meaning() -> None:
    body = ast.parse(Path(limits.__file__).read_text()).body
    described = {
        statement.targets[0].id
        for statement, doc in pairwise(body)
        if isinstance(statement, ast.Assign)
        and isinstance(doc, ast.Expr)
        and isinstance(statement.targets[0], ast.Name)
    }
    assert described == set(NAMES)
