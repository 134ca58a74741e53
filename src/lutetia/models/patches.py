"""How often small patterns occur in an image: detectors that are asked at every position, and counts of their answers.

A detector compares pairs of pixels that lie in one small patch: whether the first is brighter than the second by more than a
threshold, or whether the two differ by more than that in all channels together. The answers are the bits of an address, as in a
local binary pattern (Ojala, Pietikäinen and Mäenpää, 2002) or a fern (Özuysal and others, 2007). A count says at how many
positions of a region a detector gave one address. So what an image shows is found wherever it lies. Whole numbers are compared,
looked up and added: nothing is multiplied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia._shared.threads import spread
from lutetia.errors import ArgumentError

Array = np.ndarray[Any, Any]
LEVELS = 255  # the brightest level of a pixel
MOST_PAIRS = 8  # of a detector: an address is a byte
REGIONS = ("the image", "the upper left quarter", "the upper right quarter", "the lower left quarter", "the lower right quarter")
# The cells of each region, a bit for each of 4 × 4 cells, row by row.
REGION_CELLS = (0xFFFF, 0x0033, 0x00CC, 0x3300, 0xCC00, *(1 << cell for cell in range(16)))
N_REGIONS = len(REGION_CELLS)
MOST_CHANNELS = 128  # whose distances add up to 16 bits
FEWEST = 4  # positions of a detector down and across, one for each row and column of cells


class Patches(nn.Module):
    """Images [n, pixels] -> counts [n, n_counts].

    pairs      int32 [n_detectors, n_pairs, 4]: row and column of the first pixel in the patch, then of the second
    plane      int32 [n_detectors]: the channel in which pixels are compared, -1 for their distance in all of them
    threshold  int32 [n_detectors]: by how many levels they must differ
    counted    int32 [n_counts, 3]: detector, address and region of each count, the detectors in order
    span       float64 [2]: the values of the levels 0 and 255
    """

    pairs: Tensor
    plane: Tensor
    threshold: Tensor
    counted: Tensor
    span: Tensor

    def __init__(self, shape: tuple[int, ...], n_detectors: int, n_pairs: int, n_counts: int) -> None:
        super().__init__()
        self.shape = (1, *shape) if len(shape) == 2 else tuple(shape)
        self.register_buffer("pairs", torch.zeros(n_detectors, n_pairs, 4, dtype=torch.int32))
        self.register_buffer("plane", torch.zeros(n_detectors, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(n_detectors, dtype=torch.int32))
        self.register_buffer("counted", torch.zeros(n_counts, 3, dtype=torch.int32))
        self.register_buffer("span", torch.tensor([0.0, 1.0], dtype=torch.float64))

    @property
    def n_counts(self) -> int:
        """Counts of an image."""
        return len(self.counted)

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """Pairs, plane, threshold and counted as int64 arrays, once they are checked: compiled loops read what they point to."""
        if not (bool(self.span.isfinite().all()) and self.span[0] < self.span[1]):
            raise ArgumentError(f"the levels of patches go from {self.span[0]} to {self.span[1]}, expected a finite range")
        pairs, plane, threshold, counted = (
            each.cpu().numpy().astype(np.int64) for each in (self.pairs, self.plane, self.threshold, self.counted)
        )
        channels, height, width = self.shape
        if channels > MOST_CHANNELS:
            raise ArgumentError(f"images of patches have {channels} channels, expected {MOST_CHANNELS} at most")
        reach = pairs.max((0, 1), initial=0).reshape(2, 2).max(0)
        if pairs.min(initial=0) < 0 or reach[0] > height - FEWEST or reach[1] > width - FEWEST:
            most = f"{height - FEWEST} rows and {width - FEWEST} columns"
            raise ArgumentError(f"the detectors of patches reach beyond the image, expected pairs of pixels within {most}")
        if not -1 <= plane.min(initial=0) <= plane.max(initial=0) < channels:
            raise ArgumentError(f"the detectors of patches compare in plane {plane.max()}, expected -1 to {channels - 1}")
        if not 0 <= threshold.min(initial=0) <= threshold.max(initial=0) <= channels * LEVELS:
            raise ArgumentError(f"the thresholds of patches go beyond 0 to {channels * LEVELS}")
        limits = (len(pairs), 1 << pairs.shape[1], N_REGIONS)
        if counted.size and (counted.min() < 0 or (counted >= limits).any() or (np.diff(counted[:, 0]) < 0).any()):
            raise ArgumentError(f"the counts of patches are not sorted detectors, addresses and regions below {limits}")
        return pairs, plane, threshold, counted

    def levels(self, x: Array) -> Array:
        """Images [n, pixels], NaN for what is missing, as levels 0 to 255, int16 [n, channels, height, width]; missing ones 0."""
        low, high = self.span.tolist()
        scaled = np.rint((x - low) * (LEVELS / (high - low)))
        return np.clip(np.nan_to_num(scaled), 0, LEVELS).astype(np.int16, order="C").reshape(-1, *self.shape)

    def counts(self, x: Array, threads: int = 1) -> Array:
        """Images float64 [n, pixels] -> int32 [n, n_counts]."""
        from lutetia.models import patch_loops  # compiled: other models are used without loading numba

        detectors = self.arrays()
        found = np.empty((len(x), self.n_counts), np.int32)
        starts = np.searchsorted(detectors[3][:, 0], np.arange(len(self.pairs) + 1))
        spread(threads, len(x), patch_loops.count, self.levels(x), detectors, starts, found)
        return found

    def shares(self, relevance: Tensor, x: Tensor) -> Tensor:
        """Relevance of counts [n, n_counts] as that of pixels, float64 [n, pixels]: divided among the positions where a pattern
        was found, or where it was not among all of its region, and there among the pixels that are compared."""
        levels, arrays = self.levels(x.detach().flatten(1).cpu().double().numpy()), self.arrays()
        heat: Array = np.zeros(levels.shape)
        for image, own, values in zip(levels, heat, relevance.detach().cpu().double().numpy(), strict=True):
            self._share(image, values, own, arrays)
        return torch.from_numpy(heat.reshape(len(heat), -1)).to(relevance.device)

    def _share(self, image: Array, values: Array, heat: Array, arrays: tuple[Array, Array, Array, Array]) -> None:
        pairs, plane, _, counted = arrays
        for detector in np.unique(counted[values != 0, 0]).tolist():
            address = self.addresses(image, detector)
            share = np.zeros(address.shape)
            for number in np.flatnonzero((counted[:, 0] == detector) & (values != 0)):
                inside = region_mask(address.shape, int(counted[number, 2]))
                found = inside & (address == counted[number, 1])
                found = found if found.any() else inside
                share[found] += values[number] / found.sum()
            own = slice(None) if plane[detector] < 0 else slice(plane[detector], plane[detector] + 1)
            share /= 2 * pairs.shape[1] * len(heat[own])
            down, right = address.shape
            for row, column in pairs[detector].reshape(-1, 2).tolist():
                heat[own, row : row + down, column : column + right] += share

    def addresses(self, image: Array, detector: int) -> Array:
        """The address of one detector at every position of an image: levels int16 [C, H, W] -> uint8 [rows, columns]."""
        pairs, plane, threshold, _ = self.arrays()
        own, (_, height, width) = pairs[detector], image.shape
        down, right = height - own[:, ::2].max(), width - own[:, 1::2].max()
        address = np.zeros((down, right), np.uint8)
        for place, (above, left, below, beside) in enumerate(own.tolist()):
            apart = image[:, above : above + down, left : left + right] - image[:, below : below + down, beside : beside + right]
            of = int(plane[detector])
            apart = apart[of] if of >= 0 else np.abs(apart).sum(0)
            address |= (apart > threshold[detector]).astype(np.uint8) << place
        return address

    def keep(self, wanted: Array) -> Patches:
        """The same with some of the counts, numbers in order, and only the detectors that they need."""
        counted = self.counted[torch.from_numpy(wanted)].clone()
        detectors, numbers = torch.unique(counted[:, 0], return_inverse=True)
        counted[:, 0] = numbers
        kept = Patches(self.shape, len(detectors), self.pairs.shape[1], len(counted))
        own = detectors.long()
        kept.pairs, kept.plane, kept.threshold = self.pairs[own], self.plane[own], self.threshold[own]
        kept.counted, kept.span = counted, self.span
        return kept

    def name(self, number: int) -> str:
        """What a count counts, in words."""
        detector, address, region = self.counted[number].tolist()
        return f"pattern {address} of detector {detector} in {region_name(region)}"


def region_name(region: int) -> str:
    """A region in words."""
    return REGIONS[region] if region < len(REGIONS) else f"cell {(region - 5) // 4 + 1}, {(region - 5) % 4 + 1} of 4 × 4"


def region_mask(shape: tuple[int, ...], region: int) -> Array:
    """Which positions [rows, columns] lie in a region, bool; each region has some."""
    row, column = np.arange(shape[0]) * 4 // shape[0], np.arange(shape[1]) * 4 // shape[1]
    return (REGION_CELLS[region] >> (row[:, None] * 4 + column) & 1).astype(bool)
