"""Public CT as a task: one class, a committed split, files where their archives put them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from autofedavg.core.errors import DataError
from autofedavg.core.settings import setting
from autofedavg.tasks.archives.sources import (
    CommittedCase,
    DataSource,
    FoundFiles,
    in_drawn_order,
    read_cases,
    read_sources,
    warn_of_misplaced,
)
from autofedavg.tasks.base import Progress
from autofedavg.tasks.imaging.cache import data_home
from autofedavg.tasks.imaging.files import look
from autofedavg.tasks.imaging.image import size_text
from autofedavg.tasks.imaging.pipeline import Network, Pipeline, step
from autofedavg.tasks.imaging.preparation import Case, Classes
from autofedavg.tasks.imaging.prepared import SPLITS
from autofedavg.tasks.imaging.task import CaseFiles, Collection, ImageTask, counted
from autofedavg.tasks.lists.splits import split_digest


class PublicPipeline(Pipeline):
    """The paper's settings for CT; the default is that of its COVID-19 study."""

    network: Network = step(
        "network",
        "basic-unet",
        "derived from MONAI's challenge baseline; the paper says 3D U-Net",
    )


class PublicTask(ImageTask):
    """Segmentation of one structure in public CT."""

    paths: ClassVar[tuple[str, ...]] = ("root", "cache")
    private_names: ClassVar[bool] = False  # they are published
    heading: ClassVar[str]  # the description of the task for `autofedavg data`
    published: ClassVar[str]  # the description of the data for `environment.json` and the tables
    structure: ClassVar[str]  # the name of the class
    typical: ClassVar[int]  # approximate bytes of a prepared case, for `check` without the data

    name: str = ""
    root: str = setting(
        "", origin="ours", help="folder of the data; the task's name below AUTOFEDAVG_DATA if empty"
    )
    cases: int = setting(
        0,
        origin="ours",
        help="use only the first so many cases of every site and split; 0 for all",
        ge=0,
    )
    holdout: float = setting(
        0.0, origin="ours: decision 3", help="share of training cases set aside", ge=0, lt=1
    )
    pipeline: Pipeline = setting(Pipeline(), origin="ours", help="from images to batches")

    @property
    def sources(self) -> dict[str, DataSource]:
        """Site -> the data set its cases are from."""
        return {site: source for source in read_sources(self.name) for site in source.sites}

    def site_names(self) -> list[str]:
        return [*self.sources]

    @property
    def folder(self) -> Path:
        """The folder of the data."""
        return (Path(self.root) if self.root else data_home(self.name)).absolute()

    def known(self) -> list[CommittedCase]:
        """The cases that are used: without withdrawn ones, limited by the setting `cases`."""
        used: list[CommittedCase] = []
        count: Counter[tuple[str, str]] = Counter()
        for known in read_cases(self.name):
            place = known.site, known.split
            if not known.withdrawn and (not self.cases or count[place] < self.cases):
                count[place] += 1
                used.append(known)
        return used

    def withdrawn(self) -> list[CommittedCase]:
        """The cases that are never used."""
        return [known for known in read_cases(self.name) if known.withdrawn]

    def splits(self) -> dict[str, dict[str, str]]:
        """Site -> case -> split, with the holdout."""
        splits = {site: {k.case: k.split for k in self.known() if k.site == site} for site in
                  self.sources}  # fmt: skip
        for site, cases in splits.items() if self.holdout else ():
            training = [case for case, split in cases.items() if split == "train"]
            count = max(1, round(len(training) * self.holdout))
            if count >= len(training):
                raise DataError(
                    f"it has {len(training)} training cases, and the holdout would take {count}",
                    where=f"site {site}",
                    remedy="lower task.holdout, or raise task.cases",
                )
            aside = in_drawn_order(f"{self.name} holdout", training)[:count]
            cases |= dict.fromkeys(aside, "holdout")
        return splits

    @cached_property
    def _found(self) -> dict[str, FoundFiles]:
        """Case -> its files; case ids are unique in a task."""
        found: dict[str, FoundFiles] = {}
        for source in read_sources(self.name):
            found |= source.find(self.folder)
        return found

    def lacking(self) -> dict[CommittedCase, list[str]]:
        """Cases that cannot be used because of missing or ambiguous files, and what is wrong."""
        checked = {
            known: self.sources[known.site].lacking(
                known.case, self._found.get(known.case, FoundFiles())
            )
            for known in self.known()
        }
        return {known: wrong for known, wrong in checked.items() if wrong}

    def form(self) -> tuple[Pipeline, int, Classes]:
        return self.pipeline, 1, {self.structure: (1,)}

    def prepare(self, progress: Progress | None = None) -> None:
        ready = self.store(memory=0).sites(self.case_files(), progress)
        for site, source in self.sources.items():
            if source.by_rows:  # their affines cannot show a misplaced label
                cases = [case for part in ready[site].values() for case in part]
                warn_of_misplaced(site, cases, self.pipeline)

    def memory(self) -> int:
        return min(len(self.known()) * self.typical, int(self.hold * 2**30))

    def where(self) -> str:
        total, lacking = len(self.known()), len(self.lacking())
        if not lacking:
            return f"in {self.folder}: all {total} cases present"
        return (
            f"in {self.folder}: {lacking} of {total} cases are missing; "
            f"`autofedavg data {self.name}` says which and where to get them"
        )

    def outline(self) -> dict[str, Any]:
        splits = self.splits()
        out = [known.case for known in self.withdrawn()]
        few = f"; the first {self.cases} of every site and split only" if self.cases else ""
        return {
            "data": self.named(
                self.published + (f"; without {', '.join(out)}" if out else "") + few
            ),
            "cases": counted(splits),
            "split_sha256": split_digest(splits),
        }

    def collection(self, progress: Progress | None = None) -> Collection:
        lacking = self.lacking()
        if len(lacking) == len(self.known()):
            raise self._error(self._reported(lacking))
        how, _, classes = self.form()
        return Collection(self._with_files(lacking), classes, how, self.cache, len(lacking))

    def about(self) -> str:
        lines = [self.heading]
        per_site = Counter(known.site for known in read_cases(self.name))
        for source in read_sources(self.name):
            count = sum(per_site[site] for site in source.sites)
            place = self.folder / source.folder
            lines += [
                "",
                f"{', '.join(source.sites)}: {source.title}, {count} labelled cases",
                f"  get      {source.get}",
                f"  licence  {source.licence}",
                *(f"  cite     {text}" for text in source.cite),
                f"  put      unpack below {place}",
                f"           {source.image.format('...')} and {source.label.format('...')}"
                " are found there in any subfolder",
            ]
        return "\n".join(lines)

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Checks every file's presence and header; `prepare` reads the whole files."""
        lacking = self.lacking()
        wrong = self._reported(lacking)
        grids: dict[str, list[tuple[int, ...]]] = {site: [] for site in self.sources}
        usable = [known for known in self.known() if known not in lacking]
        for done, known in enumerate(usable, 1):
            pair = self._found[known.case]
            try:
                image, label = (look([paths[0]]).grid for paths in (pair.images, pair.labels))
            except DataError as error:
                wrong.append(f"{known.site}, {known.case}: {error}")
            else:
                grids[known.site].append(image)
                if image != label:
                    sizes = f"its grid is {size_text(label)}, the image's {size_text(image)}"
                    wrong.append(f"{known.site}, {known.case}: {pair.labels[0]}: {sizes}")
            if progress:
                progress("reading headers", done, len(usable))
        if wrong:
            raise self._error(wrong)
        return self._lines(grids)

    def _lines(self, grids: Mapping[str, list[tuple[int, ...]]]) -> list[str]:
        lines = [f"in {self.folder}"]
        for site, cases in self.splits().items():
            split = [*cases.values()]
            parts = ", ".join(f"{split.count(s)} {s}" for s in SPLITS if s in split)
            order = sorted(grids[site], key=lambda grid: grid[-1])
            lines.append(
                f"{site}: {len(cases)} cases ({parts}), from {size_text(order[0])} "
                f"to {size_text(order[-1])} voxels"
            )
        lines += [f"left out: {k.site} {k.case}, {k.withdrawn}" for k in self.withdrawn()]
        listed = {known.case for known in read_cases(self.name)}
        lines += [
            f"note: {case} is present but not in the split, so it is not used"
            for case, pair in sorted(self._found.items())
            if case not in listed and pair.images and pair.labels
        ]
        return lines

    def case_files(self, progress: Progress | None = None) -> CaseFiles:
        lacking = self.lacking()
        if lacking:
            raise self._error(self._reported(lacking))
        return self._with_files(lacking)

    def _with_files(self, lacking: Iterable[CommittedCase]) -> CaseFiles:
        without = {known.case for known in lacking}
        return {
            site: [self._case(site, *each) for each in cases.items() if each[0] not in without]
            for site, cases in self.splits().items()
        }

    def _case(self, site: str, case: str, split: str) -> Case:
        source, pair = self.sources[site], self._found[case]
        image, label = pair.images[0], pair.labels[0]
        return Case(case, split, (image,), label, "", source.classes, source.by_rows)

    def _reported(self, lacking: Mapping[CommittedCase, list[str]]) -> list[str]:
        """One line per case; a site without any file gets a single line."""
        lines = []
        for site, source in self.sources.items():
            mine = [known for known in self.known() if known.site == site]
            if not any(known.case in self._found for known in mine):
                image, label = (
                    source.named(ends, mine[0].case) for ends in (source.image, source.label)
                )
                lines.append(
                    f"{site}: none of its {len(mine)} cases, such as {image} and {label}, "
                    f"was found below {self.folder / source.folder}"
                )
            else:
                lines += [
                    f"{site}, {k.case}: {'; '.join(lacking[k])}" for k in mine if k in lacking
                ]
        return lines

    def _error(self, wrong: list[str]) -> DataError:
        return DataError(
            "data is missing or unusable:\n  " + "\n  ".join(wrong),
            where=str(self.folder),
            remedy=f"`autofedavg data {self.name}` says what to download and where to put it",
        )
