"""A plausibility check of labels: an organ's label covers mostly soft tissue."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence

import numpy as np

from autofedavg.tasks.imaging.casefolder import PreparedCase
from autofedavg.tasks.imaging.pipeline import Pipeline

log = logging.getLogger(__name__)
SOFT = -50.0  # Hounsfield units: above fat
ENOUGH = 0.8  # of a label's voxels; a misplaced label also covers fat and air


def soft_tissue(case: PreparedCase, how: Pipeline) -> float:
    """The share of a case's labelled voxels that are neither fat or air nor above the window."""
    found = np.concatenate(case.centres())
    if not len(found):
        return 1.0
    voxels = np.stack(np.unravel_index(found, case.size))
    box = tuple(slice(int(axis.min()), int(axis.max()) + 1) for axis in voxels)
    image, label = case.crop(box)
    low, high = how.window
    values = image[0][label[0] > 0]
    soft = (values > (SOFT - low) / (high - low)) & (values < 1)
    return float(soft.float().mean())


def warn_of_misplaced(site: str, cases: Sequence[PreparedCase], how: Pipeline) -> None:
    """Warns if the labels of a site do not cover soft tissue; needs a window in HU."""
    if how.normalise != "window" or how.window[0] >= SOFT:
        return
    share = statistics.median(soft_tissue(case, how) for case in cases)
    if share < ENOUGH:
        log.warning(
            "%s: only %.0f %% of the labelled voxels are soft tissue in most cases; labels may be "
            "flipped or shifted against their images; compare some in a viewer",
            site,
            100 * share,
        )
