"""Models of chosen rounds that stay in the run folder: w_1 .. w_K, and the global model.

`tidy` passes over them: their names are not those of models that a checkpoint may replace. A round
that is run again after a crash writes the same bits over them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.models import load_model, save_model

SITES, GLOBAL = "kept-sites", "kept-global"
SETTING = "keep_models"


def keep(folder: RunFolder, state: Round, layout: Layout) -> None:
    """Writes the models of a round; its checkpoint must come after them.

    Raises:
        ConfigError: the method has no models of the sites.
    """
    if state.w_k is None:
        raise ConfigError(
            f"{SETTING} names round {state.t}, and the method has no models of its sites",
            where=str(folder.path),
            remedy=f"leave {SETTING} out of this row",
        )
    save_model(folder, f"{SITES}-{state.t}", state.w_k, layout, {"t": state.t})
    if isinstance(state.w, Model):
        save_model(folder, f"{GLOBAL}-{state.t}", state.w, layout, {"t": state.t})


def kept_rounds(folder: RunFolder) -> list[int]:
    """The rounds whose models are there."""
    names = (path.stem for path in (folder.path / "checkpoints").glob(f"{SITES}-*.json"))
    found = (re.fullmatch(rf"{SITES}-(\d{{1,9}})", name) for name in names)
    return sorted(int(name[1]) for name in found if name)


def asked_rounds(folder: RunFolder, asked: Sequence[int]) -> list[int]:
    """These rounds, or all that were kept.

    Raises:
        RunError: no models were kept, or not those of a round.
    """
    kept = kept_rounds(folder)
    if not kept:
        raise RunError(
            "this run kept no models of its sites",
            where=str(folder.path),
            remedy=f"run it with `--set {SETTING}=[5,20]` or the like: rounds to keep",
        )
    missing = sorted(set(asked) - set(kept))
    if missing:
        raise RunError(
            f"this run kept no models of round {', '.join(map(str, missing))}",
            where=str(folder.path),
            remedy=f"choose from round {', '.join(map(str, kept))}, or name more in {SETTING}",
        )
    return sorted(set(asked)) or kept


def kept_models(folder: RunFolder, t: int, layout: Layout) -> tuple[Bank, Model | None]:
    """w_1 .. w_K of a round, and the global model where the method has one.

    Raises:
        RunError: they are damaged, or not of this network.
    """
    bank = load_model(folder, f"{SITES}-{t}", layout)
    ran = load_model(folder, f"{GLOBAL}-{t}", layout) if folder.has(f"{GLOBAL}-{t}") else None
    if not isinstance(bank, Bank) or isinstance(ran, Bank):
        raise RunError(
            f"the kept models of round {t} are damaged",
            where=str(folder.path / "checkpoints"),
            remedy="run the row again",
        )
    return bank, ran
