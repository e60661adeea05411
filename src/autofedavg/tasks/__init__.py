"""Tasks: ours, one file and one line each, and those that other packages add.

A package adds a task by an entry point in the group `autofedavg.tasks`.
"""

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
    group="autofedavg.tasks",
    base="autofedavg.tasks.base:Task",
)
