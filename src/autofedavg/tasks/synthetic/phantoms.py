"""The scans of the generated hospitals.

Each hospital has its own voxel spacing, intensity scale, noise, lesion size and contrast, its own
look-alikes that are not lesions, and its own bias in drawing outlines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import ndimage

VERSION = 1  # part of the cache's name: raise it whenever the same seed gives other volumes


@dataclass(frozen=True)
class Hospital:
    """The appearance of one hospital's scans. Lengths in mm, intensities in its own units."""

    paper_split: tuple[int, int, int]
    spacing: tuple[float, float, float]
    scale: float
    offset: float
    noise: float
    radius: tuple[float, float]
    contrast: tuple[float, float]
    lesions: tuple[int, int]
    lookalikes: Literal["vessels", "calcifications", "plates"]
    outline: float


HOSPITALS = {
    "I": Hospital(
        (447, 112, 112), (1.0, 1.0, 2.5), 1.0, 0.0, 20.0, (5.0, 9.0), (90.0, 150.0), (1, 3),
        "vessels", 0.0,
    ),
    "II": Hospital(
        (30, 29, 29), (1.4, 1.4, 3.0), 0.7, 90.0, 35.0, (5.0, 8.0), (80.0, 130.0), (1, 2),
        "plates", 1.0,
    ),
    "III": Hospital(
        (124, 31, 31), (0.8, 0.8, 5.0), 1.2, -90.0, 30.0, (8.0, 13.0), (50.0, 90.0), (1, 3),
        "calcifications", -1.0,
    ),
}  # fmt: skip

# A hospital that takes no part: its scans are the server's own data.
SERVER_HOSPITAL = Hospital(
    (0, 0, 0), (1.1, 1.1, 3.5), 0.9, 30.0, 25.0, (5.0, 11.0), (70.0, 130.0), (1, 3),
    "vessels", 0.0,
)  # fmt: skip


def scan(
    hospital: Hospital, extent: tuple[float, float, float], random: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """One volume (int16) and its label (uint8) on the hospital's own grid."""
    spacing = np.array(hospital.spacing)
    shape = tuple(int(n) for n in np.round(np.array(extent) / spacing))
    grid = np.stack(np.meshgrid(*[(np.arange(n) + 0.5) for n in shape], indexing="ij"), axis=-1)
    place = grid * spacing
    tissue = _texture(shape, spacing, 6.0, random) * 25.0
    body = _ellipsoid(place, np.array(extent) / 2, np.array(extent) * 0.47) < 1
    lesions = np.zeros(shape, dtype=bool)
    drawn = np.zeros(shape, dtype=bool)
    intensity = tissue.copy()
    rough = _texture(shape, spacing, 3.0, random) * 1.6
    for _ in range(random.randint(hospital.lesions[0], hospital.lesions[1] + 1)):
        radius = random.uniform(*hospital.radius, size=3)
        margin = np.minimum(radius + 3, np.array(extent) * 0.45)
        centre = random.uniform(margin, np.array(extent) - margin)
        depth = (1 - np.sqrt(_ellipsoid(place, centre, radius))) * radius.mean() + rough
        inside = (depth > 0) & body
        intensity[inside] += random.uniform(*hospital.contrast)
        lesions |= inside
        drawn |= (depth > -hospital.outline) & body
    _add_lookalikes(intensity, hospital.lookalikes, place, np.array(extent), lesions, random)
    intensity = ndimage.gaussian_filter(intensity, 0.8 / spacing)
    image = np.where(body, intensity * hospital.scale + hospital.offset, -280.0)
    image = image + random.normal(0, hospital.noise, shape)
    return np.round(image).astype(np.int16), drawn.astype(np.uint8)


def _add_lookalikes(
    intensity: np.ndarray,
    kind: str,
    place: np.ndarray,
    extent: np.ndarray,
    lesions: np.ndarray,
    random: np.random.RandomState,
) -> None:
    """Draws structures that are not lesions, different at each hospital, into `intensity`."""
    for _ in range(4):
        centre = random.uniform(extent * 0.15, extent * 0.85)
        if kind == "vessels":
            direction = random.normal(size=3)
            direction /= np.linalg.norm(direction)
            off = place - centre
            across = off - (off @ direction)[..., None] * direction
            what, strength = np.linalg.norm(across, axis=-1) < 2.2, 130.0
        elif kind == "calcifications":
            what, strength = _ellipsoid(place, centre, np.full(3, 4.0)) < 1, 260.0
        else:
            flat = random.permutation([2.2, 12.0, 12.0])
            what, strength = _ellipsoid(place, centre, flat) < 1, 110.0
        intensity[what & ~lesions] += strength


def _ellipsoid(place: np.ndarray, centre: np.ndarray, radius: np.ndarray) -> np.ndarray:
    squared: np.ndarray = (((place - centre) / radius) ** 2).sum(axis=-1)
    return squared


def _texture(
    shape: tuple[int, ...], spacing: np.ndarray, length: float, random: np.random.RandomState
) -> np.ndarray:
    """Smooth noise of unit variance with a correlation length in mm."""
    noise = ndimage.gaussian_filter(random.normal(size=shape), length / spacing, mode="wrap")
    smooth: np.ndarray = noise / noise.std()
    return smooth
