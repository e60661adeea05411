"""What a page of the documentation tells its reader to do, to be done by a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


class Page:
    """A how-to whose blocks a test follows.

    Args:
        name: of the page, below docs/how-to.
        words: what the page's example names stand for on this machine.
        folder: where the reader sits.
        variables: of the environment, above this process's own.
    """

    def __init__(
        self, name: str, words: Mapping[str, str], folder: Path, variables: Mapping[str, str]
    ) -> None:
        text = (DOCS / "how-to" / name).read_text(encoding="utf-8")
        self._blocks = re.findall(r"<!-- (.+?) -->\n```\w*\n(.*?)```", text, flags=re.DOTALL)
        self.words, self.folder = dict(words), folder
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.variables = {**os.environ, "PATH": tools, **variables}

    def text(self, mark: str, **words: str) -> str:
        """The block under this mark, with this machine's names in it."""
        (found,) = [block for said, block in self._blocks if said == mark]
        for word, meant in {**self.words, **words}.items():
            found = found.replace(word, meant)
        return found

    def do(self, mark: str, **words: str) -> str:
        """Runs a block as its reader would; what it printed."""
        log = self.folder / "printed.txt"
        with log.open("wb") as printed:  # not a pipe: what is started in the background keeps it
            done = subprocess.run(
                ["bash", "-euc", self.text(mark, **words)],
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=1200,
                check=False,
            )
        told = log.read_text(errors="replace")
        assert done.returncode == 0, f"{mark}:\n{told}"
        return told
