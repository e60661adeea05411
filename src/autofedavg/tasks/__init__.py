"""Tasks: one file and one line each. MONAI lives here and nowhere else."""

from autofedavg.registry import Registry

TASKS = Registry(
    "task",
    {
        "covid": "autofedavg.tasks.covid:Covid",
        "datalist": "autofedavg.tasks.datalist:Datalist",
        "pancreas": "autofedavg.tasks.pancreas:Pancreas",
        "synthetic": "autofedavg.tasks.synthetic:Synthetic",
    },
)
