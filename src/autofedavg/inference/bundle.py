"""A model as a MONAI bundle: its preprocessing said again in MONAI's own transforms.

What MONAI has no twin for is refused or, where it is rare, told in the bundle's README.
"""

from __future__ import annotations

import json
from typing import Any

from autofedavg.core.errors import ConfigError

METADATA, INFERENCE, README = "configs/metadata.json", "configs/inference.json", "docs/README.md"
BUNDLE = (METADATA, INFERENCE, README)
# Where MONAI finds the schema when it is asked to verify the metadata.
_SCHEMA = (
    "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
    "meta_schema_20220324.json"
)
_NOT_STATED = "not stated; ask those who trained the model"
_README = """# {label}

Segmentation of volumes. Values in the labels that are written:

{classes}

Trained by `{method}`, round {round}{scored}. Not evaluated for clinical use.
`preprocessing.json` has all steps in words and numbers, and where the model comes from.

Run it on the NIfTI files in `images`; labels are written to `labels`:

    python -m monai.bundle run --config_file configs/inference.json

MONAI runs Python code that stands in a bundle's configs: read `configs/inference.json` first.

What differs from the pipeline the model was trained with:

- A volume smaller than the window {size} along an axis is padded with 0, not with its own smallest
  value. Where a volume reaches down to {zero:g}, as CT with air does, the two are the same.
- A NIfTI file without an orientation in its header is turned as MONAI guesses, not left as it is.
- There is no `models/model.pt`: the weights are in `models/model.ts`.
"""


def refuse_unlike(recipe: dict[str, Any], where: str) -> None:
    """Refuses a preprocessing that MONAI's transforms cannot do.

    Raises:
        ConfigError: says which part.
    """
    why = "a bundle is for volumes"
    if recipe["kind"] == "segmentation" and len(recipe["windows"]["size"]) == 3:
        way = _named(recipe, "normalise")["how"]
        if way == "window":
            return
        why = f"MONAI has no transform that normalises as this model's {way!r} does"
    remedy = "use --format torchscript or onnx, with preprocessing.json"
    raise ConfigError(why, where=where, remedy=remedy)


def bundle_files(whole: dict[str, Any]) -> dict[str, str]:
    """The texts of a bundle by their file names, from an export's preprocessing."""
    made = {METADATA: _metadata(whole), INFERENCE: _inference(whole)}
    texts = {name: json.dumps(content, indent=1) + "\n" for name, content in made.items()}
    named = "\n".join(f"- {n}: {name}" for n, name in enumerate(whole["output"]["classes"]))
    zero, size = _named(whole, "normalise")["zero"], whole["windows"]["size"]
    origin, scored = whole["provenance"], ""
    if origin["score"] is not None:
        scored = f", {origin['metric']} {origin['score']:.4f} on validation cases"
    told = _README.format(**origin, classes=named, zero=zero, size=size, scored=scored)
    return texts | {README: told}


def _named(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in recipe["steps"] if step["step"] == name)
    return found


def _plain(text: str) -> str:
    """Text that MONAI does not take for code, a reference or a file: names come from data lists."""
    return f"'{text}'" if text[:1] in ("$", "@", "%") else text


def _inference(whole: dict[str, Any]) -> dict[str, Any]:
    windows = whole["windows"]
    blending = {key: windows[key] for key in ("overlap", "sigma_scale")}
    predicted = "@inferer(item['image'][None].to(@device), @network_def)[0]"
    return {
        "imports": ["$import glob", "$import numpy", "$import torch"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/labels'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "datalist": "$[{'image': path} for path in sorted(glob.glob(@dataset_dir + '/*.nii*'))]",
        "network_def": f"$torch.jit.load(@bundle_root + '/{whole['model']['file']}', @device)",
        "preprocessing": {"_target_": "Compose", "transforms": _before(whole)},
        "dataset": {"_target_": "Dataset", "data": "@datalist", "transform": "@preprocessing"},
        "inferer": _call(
            "SlidingWindowInferer", roi_size=windows["size"], mode=windows["weight"], **blending
        ),
        "postprocessing": {"_target_": "Compose", "transforms": _after()},
        "run": [f"$[@postprocessing({{**item, 'pred': {predicted}}}) for item in @dataset]"],
    }


def _call(target: str, **options: Any) -> dict[str, Any]:
    return {"_target_": target, **options}


def _before(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps as MONAI's transforms, in their order."""
    made = [_call("LoadImaged", ensure_channel_first=True)]
    for step in whole["steps"]:
        if step["step"] == "orientation":
            made.append(_call("Orientationd", axcodes=step["to"], labels=None))
        elif step["step"] == "spacing":
            how = {"mode": "bilinear", "padding_mode": "border", "dtype": "$torch.float32"}
            made.append(_call("Spacingd", pixdim=step["mm"], **how))
        elif step["step"] == "crop":
            kept = f"$lambda voxels: voxels > {step['value']!r}"
            box = _call("CropForegroundd", source_key="image", select_fn=kept, allow_smaller=True)
            made.append(box)
        elif step["step"] == "normalise":
            ends = zip(("a_min", "a_max", "b_min", "b_max"),
                       (step["zero"], step["one"], *step["clip"]), strict=True)  # fmt: skip
            made.append(_call("ScaleIntensityRanged", **dict(ends), clip=True))
        elif step["step"] == "round":
            kinds = (step["to"], whole["input"]["dtype"])
            made += [_call("CastToTyped", dtype=f"$torch.{kind}") for kind in kinds]
    return [{**one, "keys": "image"} for one in made]


def _after() -> list[dict[str, Any]]:
    """Background is what the other classes leave to one, also where the volume was cut away."""
    classes = "torch.cat([1 - chances.sum(0, keepdim=True), chances]).argmax(0, keepdim=True)"
    saved = {"output_dir": "@output_dir", "output_dtype": "$numpy.uint8", "output_postfix": "label"}
    made = [
        _call("Activationsd", softmax=True),
        _call("Lambdad", func="$lambda chances: chances[1:]"),
        _call("Invertd", transform="@preprocessing", orig_keys="image", nearest_interp=False),
        _call("Lambdad", func=f"$lambda chances: {classes}"),
        _call("SaveImaged", **saved, resample=False, separate_folder=False),
    ]
    return [{**one, "keys": "pred"} for one in made]


def _metadata(whole: dict[str, Any]) -> dict[str, Any]:
    origin, taken, given = whole["provenance"], whole["input"], whole["output"]
    versions = origin["exported_with"]["versions"]
    channels = [f"channel {number}" for number in range(taken["shape"][1])]
    ports = {
        "image": ("magnitude", taken, channels, _named(whole, "normalise")["clip"]),
        "pred": ("labels", given, given["classes"], []),
    }
    told = {
        name: {
            "type": "image",
            "format": format,
            "modality": "n/a",
            "num_channels": len(meanings),
            "spatial_shape": port["shape"][2:],
            "dtype": port["dtype"],
            "value_range": between,
            "is_patch_data": True,
            "channel_def": dict(enumerate(map(_plain, meanings))),
        }
        for name, (format, port, meanings, between) in ports.items()
    }
    return {
        "schema": _SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported from {origin['checkpoint']}"},
        "monai_version": versions["monai"],
        "pytorch_version": versions["torch"],
        "numpy_version": versions["numpy"],
        "required_packages_version": {"nibabel": versions["nibabel"]},
        "task": f"segmentation of {', '.join(given['classes'][1:])}",
        "description": f"trained by {origin['method']}: {origin['label']}",
        "authors": _NOT_STATED,
        "copyright": _NOT_STATED,
        "data_source": _plain(str(origin["data"]["data"])),
        "intended_use": "research; not evaluated for clinical use",
        "network_data_format": {
            "inputs": {"image": told["image"]},
            "outputs": {"pred": told["pred"]},
        },
    }
