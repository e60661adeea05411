"""How MONAI is imported: quietly, and without libraries that it offers and nothing here needs.

`import monai` loads all of it, and with it MLflow for a handler and SciPy's signal processing for
ultrasound: more than half of its time, in every process.
"""

from __future__ import annotations

import getpass
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED = ("mlflow", "scipy.signal")


@contextmanager
def importing_monai() -> Iterator[None]:
    """While MONAI is imported: no warnings of optional packages, and unused ones are not found."""
    hidden = [] if "monai" in sys.modules else [name for name in UNUSED if name not in sys.modules]
    _name_the_user()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: not to be found
        try:
            yield
        finally:
            for name in hidden:
                del sys.modules[name]


def _name_the_user() -> None:
    """Names a user without an entry in the password file, as in many containers.

    MONAI asks for the name when it is imported, and would fail.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):  # the second from Python 3.13 on
        os.environ["USER"] = f"uid-{os.getuid()}"
