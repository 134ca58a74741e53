"""The compiled loops over all samples of a fit: rows read and added, residuals of classes, sums over the rows of a table.

Sums are made of parts of CHUNK samples each, so that they do not depend on the number of threads.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import numpy as np

from lutetia._shared.elementary import exp_double
from lutetia._shared.loops import U, entry, jit, jit_any_order, kernel

CHUNK = 1 << 14  # samples
BLOCK = 256  # samples that stay in the cache
MOST_LOG = 709.0  # of a count: above, exp is not a number of 64 bits


@kernel
def read_cells(codes, anchors, cells, begin, end):
    """The row that each of a range of samples reads of one table: codes uint8 [F, n], anchors [A, 2] -> cells uint16 [n]."""
    cells_of(codes, begin, anchors, cells[begin:end])


@jit
def cells_of(codes, first, anchors, cells):
    """The same of as many samples as there are cells, from the first on."""
    n_inputs, last = len(codes), first + len(cells)
    for at in range(len(cells)):
        cells[at] = 0
    for place in range(len(anchors)):
        bit, left = np.uint16(1 << place), codes[anchors[place, 0], first:last]
        if anchors[place, 1] >= n_inputs:
            constant = np.uint8(anchors[place, 1] - n_inputs)
            for at in range(len(cells)):
                cells[at] |= bit if left[at] > constant else np.uint16(0)
        else:
            right = codes[anchors[place, 1], first:last]
            for at in range(len(cells)):
                cells[at] |= bit if left[at] > right[at] else np.uint16(0)


@kernel
def add_rows(rows, cells, scores, begin, end):
    """scores [n, K] += the rows [R, K] that a range of samples read."""
    if scores.shape[1] == 1:  # three times as fast as a loop of one turn
        for sample in range(U(begin), U(end)):
            scores[sample, U(0)] += rows[U(cells[sample]), U(0)]
        return
    for sample in range(U(begin), U(end)):
        cell = U(cells[sample])
        for output in range(U(scores.shape[1])):
            scores[sample, output] += rows[cell, output]


@entry
def shared_answers(cells):
    """The bits that the addresses cells uint16 [n] all have, and those that any of them has."""
    in_all, in_one = np.uint16(0xFFFF), np.uint16(0)
    for sample in range(U(len(cells))):
        in_all &= cells[sample]
        in_one |= cells[sample]
    return np.int64(in_all), np.int64(in_one)


@kernel
def number_residuals(y, scores, weight, missing, begin, end):
    """What the scores [n, 1] of a range of samples lack to y [n], times the weight: missing [n, 1]."""
    for sample in range(U(begin), U(end)):
        missing[sample, U(0)] = (y[sample] - scores[sample, U(0)]) * weight[sample]


@kernel
def quantile_residuals(y, scores, weight, level, missing, begin, end):
    """Which way scores [n, 1] are off a quantile of y [n], times the weight: missing [n, 1]."""
    for sample in range(U(begin), U(end)):
        own, score = y[sample], scores[sample, U(0)]
        slope = level if own > score else (level - 1 if own < score else 0.0)
        missing[sample, U(0)] = slope * weight[sample]


@kernel
def count_residuals(y, scores, weight, missing, curved, begin, end):
    """What the means exp(scores [n, 1]) lack to counts y [n], and these means, times the weight: [n, 1] each."""
    for first in range(U(begin), U(end), U(BLOCK)):
        last = min(first + U(BLOCK), U(end))
        for sample in range(first, last):
            curved[sample, U(0)] = exp_double(min(scores[sample, U(0)], MOST_LOG))
        for sample in range(first, last):
            mean, held = curved[sample, U(0)], np.float64(weight[sample])
            missing[sample, U(0)], curved[sample, U(0)] = (y[sample] - mean) * held, mean * held


@kernel
def number_losses(samples, scores, slopes, losses, begin, end):
    """The losses of the numbers and weights [n] of a range of chunks, times the weights: losses [chunks]. An error is multiplied
    by one of two slopes, and its square by a third number."""
    for chunk in range(begin, end):
        first, last = CHUNK * chunk, min(CHUNK * (chunk + 1), len(scores))
        losses[chunk] = _number_loss(samples[0][first:last], samples[1][first:last], scores[first:last], slopes)


@jit_any_order
def _number_loss(y, weight, scores, slopes):
    above, below, square = slopes
    loss = 0.0
    for sample in range(U(len(y))):
        error = y[sample] - scores[sample, U(0)]
        loss += weight[sample] * ((above if error > 0 else below) * error + square * error * error)
    return loss


@kernel
def count_losses(samples, scores, losses, begin, end):
    """Σ (exp(score) - count · score), times the weight, of the counts and weights [n] of a range of chunks: losses [chunks]."""
    (y, weight), powers = samples, np.empty(BLOCK)
    for chunk in range(begin, end):
        last = min(U(CHUNK * (chunk + 1)), U(len(scores)))
        loss = 0.0
        for first in range(U(CHUNK * chunk), last, U(BLOCK)):
            size = min(U(BLOCK), last - first)
            for at in range(size):
                powers[at] = exp_double(min(scores[first + at, U(0)], MOST_LOG))
            for at in range(size):
                powers[at] = (powers[at] - y[first + at] * scores[first + at, U(0)]) * weight[first + at]
            for at in range(size):
                loss += powers[at]
        losses[chunk] = loss


@kernel
def parts_of(curved, whole, parts, begin, end):
    """The curvature [n, 1] of a range of samples, as a multiple of a number: parts float32 [n]."""
    for sample in range(U(begin), U(end)):
        parts[sample] = np.float32(curved[sample, U(0)] / whole)


@kernel
def class_residuals(scores, y, weight, missing, begin, end):
    """What the probabilities of the classes lack, times the weight, for a range of samples: missing [n, K]."""
    n_outputs = U(scores.shape[1])
    powers = np.empty(BLOCK * n_outputs)
    for first in range(U(begin), U(end), U(BLOCK)):
        size = min(U(BLOCK), U(end) - first)
        if n_outputs == 2:  # one exponential is enough, and the classes lack the same
            for at in range(size):
                powers[at] = -abs(scores[first + at, U(1)] - scores[first + at, U(0)])
            for at in range(size):
                powers[at] = exp_double(powers[at])
            for at in range(size):
                sample = first + at
                less = powers[at] / (1 + powers[at])
                chance = less if scores[sample, U(1)] < scores[sample, U(0)] else 1 - less
                missing[sample, U(1)] = weight[sample] * (np.float64(y[sample]) - chance)
                missing[sample, U(0)] = -missing[sample, U(1)]
            continue
        _shifted(scores, first, size, powers)
        for at in range(size * n_outputs):
            powers[at] = exp_double(powers[at])
        for at in range(size):
            sample, place, total = first + at, at * n_outputs, 0.0
            for output in range(n_outputs):
                total += powers[place + output]
            factor = -weight[sample] / total
            for output in range(n_outputs):
                missing[sample, output] = factor * powers[place + output]
            missing[sample, U(y[sample])] += weight[sample]


@kernel
def class_losses(scores, y, weight, losses, begin, end):
    """The cross-entropy in nats of a range of chunks, times the weights: losses [chunks]."""
    n_outputs = U(scores.shape[1])
    powers = np.empty(BLOCK * n_outputs)
    for chunk in range(begin, end):
        last = min(U(CHUNK * (chunk + 1)), U(len(scores)))
        loss = 0.0
        for first in range(U(CHUNK * chunk), last, U(BLOCK)):
            size = min(U(BLOCK), last - first)
            _shifted(scores, first, size, powers)
            for at in range(size):
                loss -= weight[first + at] * powers[at * n_outputs + U(y[first + at])]
            for at in range(size * n_outputs):
                powers[at] = exp_double(powers[at])
            for at in range(size):
                total = 0.0
                for output in range(n_outputs):
                    total += powers[at * n_outputs + output]
                loss += weight[first + at] * np.log(total)
        losses[chunk] = loss


@jit
def _shifted(scores, first, size, powers):
    """Scores of some samples, less the highest of each."""
    n_outputs = U(scores.shape[1])
    for at in range(size):
        highest = scores[first + at, U(0)]
        for output in range(U(1), n_outputs):
            highest = max(highest, scores[first + at, output])
        for output in range(n_outputs):
            powers[at * n_outputs + output] = scores[first + at, output] - highest


@kernel
def class_sums(cells, missing, weight, sums, begin, end):
    """Σ missing and Σ curvature of the samples that read each row, for a range of chunks: sums [chunks, 2, R, K].

    A class of probability p curves the loss by p (1 - p), and lacks -p or 1 - p. Two classes lack the same.
    """
    n_outputs = U(missing.shape[1])
    from_output = U(1) if n_outputs == 2 else U(0)
    for chunk in range(begin, end):
        own, curved = sums[chunk, 0], sums[chunk, 1]
        for sample in range(U(CHUNK * chunk), min(U(CHUNK * (chunk + 1)), U(len(cells)))):
            cell, scale = U(cells[sample]), 1 / max(np.float64(weight[sample]), 1e-300)
            for output in range(from_output, n_outputs):
                lacking = missing[sample, output]
                own[cell, output] += lacking
                curved[cell, output] += abs(lacking) * (1 - abs(lacking) * scale)
        if n_outputs == 2:
            for cell in range(U(len(own))):
                own[cell, U(0)], curved[cell, U(0)] = -own[cell, U(1)], curved[cell, U(1)]


@kernel
def number_sums(cells, missing, held, sums, begin, end):
    """Σ missing [n, 1] and Σ held [n] of the samples that read each row, for a range of chunks: sums [chunks, 2, R, 1]."""
    for chunk in range(begin, end):
        own, mass = sums[chunk, 0], sums[chunk, 1]
        for sample in range(U(CHUNK * chunk), min(U(CHUNK * (chunk + 1)), U(len(cells)))):
            cell = U(cells[sample])
            own[cell, U(0)] += missing[sample, U(0)]
            mass[cell, U(0)] += held[sample]
