"""What the mixtures of learning at the server show of the models in them."""

from __future__ import annotations


def shown_by_mixtures(softmax: bool, S: int, sites: int) -> str:
    """A caution for those who choose `learning = "server"` to hide models (decision 44)."""
    if softmax:
        why = "the softmax draws nothing, so a site knows the weights they are mixed with"
    elif sites == 2:
        why = "with two sites every mixture lies on the line from one model to the other"
    else:
        why = f"S = {S} mixtures a call show where the {sites} models lie"
    return (
        "learning = 'server' sends no site's model while it learns, but a site that tries can "
        f"find it from the mixtures: {why} (decision 44)"
    )
