"""Learned weights in a FLARE job of somebody else's making.

On the server, instead of FLARE's own FedAvg:

    recipe = LearnedFedAvgRecipe(min_clients=3, num_rounds=5, ..., S=20)   # was: FedAvgRecipe
    job.to_server(LearnedFedAvg(num_clients=3, num_rounds=5, S=20))        # was: FedAvg
    job.to_clients(LearnedWeights(), id="learned_weights")                 # both without the
    job.set_app_packages(["autofedavg"])                                   # recipe

At a site, in the script (or in an Executor's START_RUN), once before the first round:

    answer_with(network=Net(), loss=loss, batches=validation)

The script must run in the job's own process, which is FLARE's default: `answer_with` reaches the
component through this process's memory. A script in a process of its own
(`launch_external_process`, `attach`) cannot be asked.
"""

from __future__ import annotations

from autofedavg.engines.flare.answering import LearnedWeights, answer_with
from autofedavg.engines.flare.learned import LearnedFedAvg, LearnedFedAvgRecipe

__all__ = ["LearnedFedAvg", "LearnedFedAvgRecipe", "LearnedWeights", "answer_with"]
