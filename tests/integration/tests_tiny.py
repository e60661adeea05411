"""A study of three rows that runs in seconds, and its finished folder as committed.

`python tests/integration/tests_tiny.py` runs it again and renews tests/data/tiny.zip.
"""

import tempfile
import zipfile
from pathlib import Path

from autofedavg import read_study, run_study

COMMITTED = Path(__file__).parents[1] / "data" / "tiny.zip"

TINY = """
[study]
name = "tiny"
title = "Tiny hospitals"
baseline = "fedavg"

[base]
rounds = 3

[base.task]
name = "synthetic"
scale = 0.02
extent = [24.0, 24.0, 30.0]

[base.task.pipeline]
roi = [16, 16, 8]
channels = [4, 8]

[base.training]
iterations = 2
batch_size = 2
learning_rate = 3e-3

[[run]]
name = "local-only"
label = "Local only"
method = { name = "local-only" }

[[run]]
name = "fedavg"
label = "FedAvg"
method = { name = "fedavg" }

[[run]]
name = "n-dirichlet"
label = "Auto-FedAvg-N-Dirichlet"
method = { name = "auto-fedavg", S = 2 }
"""


def run_tiny(folder: Path) -> Path:
    """Runs the study below a folder: its study folder."""
    (folder / "tiny.toml").write_text(TINY)
    return run_study(read_study(folder / "tiny.toml"), folder / "runs")


def committed_tiny(folder: Path) -> Path:
    """The committed study folder, unpacked."""
    with zipfile.ZipFile(COMMITTED) as archive:
        archive.extractall(folder)
    return folder / "tiny"


def renew() -> None:
    """Runs the study and writes the committed archive, always in the same bytes."""
    with tempfile.TemporaryDirectory() as place:
        study = run_tiny(Path(place))
        files = sorted(path for path in study.rglob("*") if path.is_file())
        COMMITTED.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(COMMITTED, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                name = path.relative_to(study.parent).as_posix()
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    renew()
