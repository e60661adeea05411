"""A network as a file that runs without this package: TorchScript or ONNX."""

from __future__ import annotations

import io
import logging
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autofedavg.core.errors import missing_extra

Run = Callable[[Tensor], Tensor]
LARGEST = 2**19  # voxels of an input that outputs are compared on


@dataclass(frozen=True)
class Ports:
    """What a network takes and gives, by the names of the tensors.

    Attributes:
        sizes: of an input in use.
        steps: what each size is a multiple of; None where sizes are fixed.
    """

    input: str
    output: str
    channels: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...] | None

    @classmethod
    def of(cls, preprocessing: dict[str, Any]) -> Ports:
        """Those that a task's `preprocessing` names."""
        taken, given = preprocessing["input"], preprocessing["output"]
        _, channels, *sizes = taken["shape"]
        steps = taken["multiple_of"]
        return cls(taken["name"], given["name"], channels, tuple(sizes), steps and tuple(steps))

    def small(self) -> tuple[int, ...]:
        """The shape of two small inputs: two steps along every axis."""
        sizes = self.sizes if self.steps is None else tuple(2 * step for step in self.steps)
        return (2, self.channels, *sizes)

    def large(self) -> tuple[int, ...]:
        """The shape of one input as in use, or of as much as is compared in little memory."""
        sizes = self.sizes
        if self.steps is not None:
            counts = [size // step for size, step in zip(sizes, self.steps, strict=True)]
            while math.prod(sizes) > LARGEST and max(counts) > 2:
                longest = counts.index(max(counts))
                counts[longest] = max(2, counts[longest] // 2)
                sizes = tuple(n * step for n, step in zip(counts, self.steps, strict=True))
        return (1, self.channels, *sizes)

    def dynamic(self) -> dict[int, Any]:
        """The axes of an input that may have other sizes, for torch.export."""
        axes: dict[int, Any] = {0: torch.export.Dim("batch")}
        for axis, step in enumerate(self.steps or (), 2):
            size = torch.export.Dim(f"n{axis - 1}")
            axes[axis] = step * size if step > 1 else size
        return axes


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        file: its name.
        write: writes a network to a path; returns what is to be known of the file.
        load: reads it back as a function, or None where nothing here can run it.
    """

    file: str
    write: Callable[[nn.Module, Ports, Path], dict[str, Any]]
    load: Callable[[Path, Ports], Run | None]


def _write_torchscript(network: nn.Module, ports: Ports, path: Path) -> dict[str, Any]:
    with _quietly():
        traced = torch.jit.trace(network, torch.zeros(ports.small()), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, path)
    content = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(content) as whole, zipfile.ZipFile(path, "w") as kept:
        for record in whole.infolist():
            if not record.filename.endswith(".debug_pkl"):  # names source files of this machine
                kept.writestr(record, whole.read(record))
    return {"torch": torch.__version__}


def _load_torchscript(path: Path, _: Ports) -> Run:
    with _quietly():
        loaded: Run = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return loaded


def _write_onnx(network: nn.Module, ports: Ports, path: Path) -> dict[str, Any]:
    onnx, onnxscript = (_needed(package) for package in ("onnx", "onnxscript"))
    with _quietly():
        program = torch.onnx.export(
            network,
            (torch.zeros(ports.small()),),
            dynamo=True,
            dynamic_shapes=(ports.dynamic(),),
            input_names=[ports.input],
            output_names=[ports.output],
            verbose=False,
        )
    proto = program.model_proto  # type: ignore[union-attr]
    for node in (node for part in (proto.graph, *proto.functions) for node in part.node):
        del node.metadata_props[:]  # they name the source files of this very machine
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString())
    opset = next(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    versions = {"torch": torch.__version__, "onnxscript": onnxscript.__version__}
    return {"opset": opset, "ir_version": proto.ir_version, **versions}


def _load_onnx(path: Path, ports: Ports) -> Run | None:
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda image: torch.from_numpy(session.run(None, {ports.input: image.numpy()})[0])


def _needed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise missing_extra("onnx", package) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what PyTorch says of itself: it is known, and no reader can do anything about it."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        # TorchScript is deprecated, and what Triton and MONAI Deploy read.
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        # Branches on sizes; other sizes are compared once the file is written.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        logging.disable(logging.WARNING)  # such as: torchvision is not installed
        try:
            yield
        finally:
            logging.disable(level)


FORMATS = {
    "torchscript": Format("model.ts", _write_torchscript, _load_torchscript),
    "onnx": Format("model.onnx", _write_onnx, _load_onnx),
}
