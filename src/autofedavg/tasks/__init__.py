"""Tasks: one file and one line each. MONAI lives here and nowhere else."""

from autofedavg.core.registry import Registry

TASKS = Registry(
    "task",
    {
        "cifar10": "autofedavg.tasks.cifar.task:Cifar10",
        "covid": "autofedavg.tasks.archives.covid:Covid",
        "datalist": "autofedavg.tasks.lists.task:Datalist",
        "pancreas": "autofedavg.tasks.archives.pancreas:Pancreas",
        "synthetic": "autofedavg.tasks.synthetic.task:Synthetic",
    },
)
