// What is made of a window of a signal: the same whole numbers as in Python and C. `lutetia.models.windows` says what they are.
// Sums stay below 2 ** 47, of at most 2 ** 14 samples of 32 bits, so that all of them, and floor of a mean, are exact.

const EIGHTHS = 8, QUARTERS = 4;

// Some samples from a row on, as many as a window has.
function windowAt(samples, start, n) {
  const x = samples.subarray(start, start + n), total = sumOf(x, 0, n);
  return { x, n, total, mean: Math.floor(total / n) };
}

function sumOf(x, begin, end) {
  let sum = 0;
  for (let t = begin; t < end; t++) sum += x[t];
  return sum;
}

// How far some samples are from a number, added up.
function apartOf(x, from) {
  let sum = 0;
  for (let t = 0; t < x.length; t++) sum += Math.abs(x[t] - from);
  return sum;
}

// How far some samples are from those `lag` before, added up.
function changeOf(x, begin, end, lag) {
  let sum = 0;
  for (let t = begin + lag; t < end; t++) sum += Math.abs(x[t] - x[t - lag]);
  return sum;
}

// How often two samples that are `lag` apart are on different sides of the mean.
function crossingsOf({ x, n, mean }, lag) {
  let count = 0;
  for (let t = lag; t < n; t++) count += x[t] > mean !== x[t - lag] > mean ? 1 : 0;
  return count;
}

// The place of the first smallest sample, or largest, of some.
function placeOf(x, begin, end, isLargest) {
  let best = begin;
  for (let t = begin + 1; t < end; t++) if (isLargest ? x[t] > x[best] : x[t] < x[best]) best = t;
  return best;
}

const rangeOf = (x, begin, end) => x[placeOf(x, begin, end, true)] - x[placeOf(x, begin, end, false)];

// Where one of so many parts of a window begins and ends.
const partOf = ({ n }, parts, at) => [Math.floor((at * n) / parts), Math.floor(((at + 1) * n) / parts)];

function aboveOf({ x, mean }, [begin, end]) {
  return sumOf(x, begin, end) - mean * (end - begin);
}

// What a picture marks of a window: a span of samples, the place of one, or a level.
const ofSpan = (w, parts, at) => ({ span: partOf(w, parts, at) });
const ofPlace = ({ x }, begin, end, isLargest) => ({ place: placeOf(x, begin, end, isLargest) });
const ofEnds = (w, begin, end) => [ofPlace(w, begin, end, true), ofPlace(w, begin, end, false)];
const ofMean = ({ total, n }) => ({ level: total / n });

// Each kind of `lutetia.models.windows`, a line each, which a build looks for: what it is of a window w, by a lag or the number of
// a part, and what a picture marks.
const FEATURES = {
  "mean": { of: (w) => w.total, marks: (w) => [ofMean(w)] },
  "minimum": { of: (w) => w.x[placeOf(w.x, 0, w.n, false)], marks: (w) => [ofPlace(w, 0, w.n, false)] },
  "maximum": { of: (w) => w.x[placeOf(w.x, 0, w.n, true)], marks: (w) => [ofPlace(w, 0, w.n, true)] },
  "range": { of: (w) => rangeOf(w.x, 0, w.n), marks: (w) => ofEnds(w, 0, w.n) },
  "deviation": { of: (w) => apartOf(w.x, w.mean), marks: (w) => [ofMean(w)] },
  "crossings": { of: (w) => crossingsOf(w, 1), marks: (w) => [ofMean(w)] },
  "change": { of: (w, lag) => changeOf(w.x, 0, w.n, lag), marks: () => [] },
  "agreement": { of: (w, lag) => w.n - lag - crossingsOf(w, lag), marks: (w) => [ofMean(w)] },
  "place of the maximum": { of: (w) => placeOf(w.x, 0, w.n, true), marks: (w) => [ofPlace(w, 0, w.n, true)] },
  "place of the minimum": { of: (w) => placeOf(w.x, 0, w.n, false), marks: (w) => [ofPlace(w, 0, w.n, false)] },
  "part": { of: (w, at) => sumOf(w.x, ...partOf(w, EIGHTHS, at)), marks: (w, at) => [ofSpan(w, EIGHTHS, at)] },
  "part above": { of: (w, at) => aboveOf(w, partOf(w, EIGHTHS, at)), marks: (w, at) => [ofSpan(w, EIGHTHS, at), ofMean(w)] },
  "quarter change": { of: (w, at) => changeOf(w.x, ...partOf(w, QUARTERS, at), 1), marks: (w, at) => [ofSpan(w, QUARTERS, at)] },
  "quarter range": { of: (w, at) => rangeOf(w.x, ...partOf(w, QUARTERS, at)), marks: (w, at) => [ofSpan(w, QUARTERS, at), ...ofEnds(w, ...partOf(w, QUARTERS, at))] },
};
