"""How the checkpoints of a run are called, and which of its models hold.

Models that may be tested are files of their own round, `best-global@12`; the checkpoint of a round,
`last-<t>`, says which of them hold. So a model and the state that chose it change in one step.
Earlier versions wrote `best-global`, over and over.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from autofedavg.core.errors import RunError
from autofedavg.experiment.files import content_of, naming, values_in

AT = "@"  # between a model's name and its round; a quoted name of a site cannot hold it
LONGEST = 200  # bytes of a site's name in a file's name, which may have 255 with all around it
_ENDINGS = (".json", ".safetensors")
_LAST = re.compile(r"last-(\d{1,9})")
_MODEL = re.compile(r"(?:best|final)-(?:global|(?:local|personal)-[^@]+)")
_DATED = re.compile(rf"({_MODEL.pattern}){AT}(\d{{1,9}})")


def site_name(kind: str, whose: Literal["local", "personal"], site: str) -> str:
    """A model of one site; a site's name may hold any character, and be of any length.

    Example:
        >>> site_name("best", "local", "Süd"), site_name("best", "local", "x" * 500)[100:]
        ('best-local-S%C3%BCd', 'xxxxxxxxxxx=c38c2bf3055c516a')
    """
    quoted = quote(site, safe="")
    if len(quoted) > LONGEST:
        digest = hashlib.sha256(site.encode(errors="surrogatepass")).hexdigest()
        quoted = f"{quoted[:100]}={digest[:16]}"  # no quoted name holds this mark
    return f"{kind}-{whose}-{quoted}"


def at_round(name: str, t: int) -> str:
    """The files of a model that round t made."""
    return f"{name}{AT}{t}"


def without_round(stem: str) -> str:
    """The model that files of this name hold."""
    return stem.partition(AT)[0]


class CheckpointNames:
    """What lies in a run's folder of checkpoints, by name; reads no tensors.

    Args:
        folder: that of the checkpoints; it need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """Rounds with a checkpoint, in order; files of other names are somebody else's."""
        return self._rounds("last-*.json")

    def models(self) -> list[str]:
        """Names of all files of models, those that no checkpoint names any more among them."""
        stems = {path.stem for path in self.folder.glob("*-*") if path.suffix in _ENDINGS}
        return sorted(s for s in stems if _MODEL.fullmatch(s) or _DATED.fullmatch(s))

    def held(self, t: int) -> dict[str, str] | None:
        """Model -> name of its files, as the checkpoint of a round has it; None if unreadable."""
        try:
            with naming(self.folder):
                facts = values_in(content_of(self.folder / f"last-{t}.json"))
                if "models" not in facts:  # an earlier version's
                    return {s: s for s in self.models() if AT not in s and self.vouched(s)}
                held = {str(model): str(stem) for model, stem in facts["models"].items()}
                return {model: stem for model, stem in held.items() if without_round(stem) == model}
        except RunError:
            return None

    def vouched(self, stem: str) -> bool:
        """Whether the JSON that vouches for the tensors is there: it is written last."""
        return (self.folder / f"{stem}.json").exists()

    def written(self, name: str) -> str:
        """The name of the files of a model that holds; any other name is left as it is."""
        if not _MODEL.fullmatch(name):
            return name
        for t in reversed(self.rounds()):
            if (held := self.held(t)) is not None:
                return held.get(name, name)
        # No state to ask: the newest there is.
        dated = [found for stem in self.models() if (found := _DATED.fullmatch(stem))]
        rounds = [int(found[2]) for found in dated if found[1] == name]
        return at_round(name, max(rounds)) if rounds else name

    def useless(self, kept: int) -> list[str]:
        """Names of files that nothing goes back to: older than the last `kept` checkpoints."""
        rounds = self.rounds()
        needed = {s for t in rounds[-kept:] for s in (self.held(t) or {}).values()}
        # Their tensors too where a kill came after the removal of the JSON.
        there = self._rounds("last-*.json", "last-*.safetensors")
        old = [f"last-{t}" for t in there if t < min(rounds[-kept:], default=0)]
        return [*old, *(stem for stem in self.models() if stem not in needed)]

    def _rounds(self, *patterns: str) -> list[int]:
        stems = {path.stem for pattern in patterns for path in self.folder.glob(pattern)}
        return sorted(int(name[1]) for stem in stems if (name := _LAST.fullmatch(stem)))
