"""The public names, and where they live: `__init__.py` reads this list, and so do type checkers."""

from autofedavg.algorithm import Round as Round
from autofedavg.core.bank import Bank as Bank
from autofedavg.core.constraints import Dirichlet as Dirichlet
from autofedavg.core.constraints import Softmax as Softmax
from autofedavg.core.ensemble import Ensemble as Ensemble
from autofedavg.core.errors import AutoFedAvgError as AutoFedAvgError
from autofedavg.core.errors import ConfigError as ConfigError
from autofedavg.core.errors import DataError as DataError
from autofedavg.core.errors import FederationError as FederationError
from autofedavg.core.errors import MissingExtra as MissingExtra
from autofedavg.core.errors import RunError as RunError
from autofedavg.core.errors import TrainingError as TrainingError
from autofedavg.core.problem import Problem as Problem
from autofedavg.core.settings import setting as setting
from autofedavg.core.trainer import Training as Training
from autofedavg.federation.port import Federation as Federation
from autofedavg.inference.predict import predict as predict
from autofedavg.methods.auto_fedavg import AutoFedAvg as AutoFedAvg
from autofedavg.methods.base import Method as Method
from autofedavg.methods.ensemble import EnsembleMethod as EnsembleMethod
from autofedavg.methods.fedadagrad import FedAdagrad as FedAdagrad
from autofedavg.methods.fedadam import FedAdam as FedAdam
from autofedavg.methods.fedavg import FedAvg as FedAvg
from autofedavg.methods.fedexp import FedExP as FedExP
from autofedavg.methods.fedma.method import FedMA as FedMA
from autofedavg.methods.fedprox import FedProx as FedProx
from autofedavg.methods.fedyogi import FedYogi as FedYogi
from autofedavg.methods.geometric_median import GeometricMedian as GeometricMedian
from autofedavg.methods.ima import IMA as IMA
from autofedavg.methods.local_only import LocalOnly as LocalOnly
from autofedavg.methods.multi_krum import MultiKrum as MultiKrum
from autofedavg.methods.robust_weights import RobustWeights as RobustWeights
from autofedavg.methods.trimmed_mean import TrimmedMean as TrimmedMean
from autofedavg.studies.federate import federate as federate
from autofedavg.studies.launch import resume as resume
from autofedavg.studies.launch import run_study as run_study
from autofedavg.studies.machine import Machine as Machine
from autofedavg.studies.study_file import read_study as read_study
from autofedavg.tasks.base import Task as Task
from autofedavg.tasks.loaders import LoaderSite as LoaderSite

__version__: str
