"""Tasks: one file and one line each. MONAI lives here and nowhere else."""

from autofedavg.registry import Registry

TASKS = Registry(
    "task",
    {
        "cifar10": "autofedavg.tasks.cifar10:Cifar10",
        "covid": "autofedavg.tasks.covid:Covid",
        "datalist": "autofedavg.tasks.datalist:Datalist",
        "pancreas": "autofedavg.tasks.pancreas:Pancreas",
        "synthetic": "autofedavg.tasks.synthetic:Synthetic",
    },
)
