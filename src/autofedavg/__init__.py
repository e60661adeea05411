"""Auto-FedAvg: federated averaging with weights learned from the clients' own data.

Names are imported when first used, so that `import autofedavg` costs nothing.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

# The stub is the one list of public names: type checkers and editors read it as it is.
_WHERE = {
    name.name: str(line.module)
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}

__all__ = [*sorted(_WHERE)]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autofedavg' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
