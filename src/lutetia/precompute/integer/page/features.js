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

// Of a shape: where its three samples are and how far its nine are apart, and what their sum is above.
const shapeOf = (number) => model.windows.shapes[number];

// How far three of nine samples are above the six others, six times, at a place.
function raisedAt(x, t, [a, b, c, apart]) {
  const three = x[t + a] + x[t + b] + x[t + c];
  let nine = 0;
  for (let k = 0; k < 9; k++) nine += x[t + k * apart];
  return three + three + three - nine;
}

// At how many places of a window a shape is, and at the first of those where it is clearest.
function placesOf({ x, n }, shape) {
  const [, , , apart, above] = shape;
  let count = 0, best = 0, most = -Infinity;
  for (let t = 0; t < n - 8 * apart; t++) {
    const raised = raisedAt(x, t, shape);
    if (raised > above) count++;
    if (raised > most) [most, best] = [raised, t];
  }
  return { count, span: [best, best + 8 * apart + 1] };
}

// What a picture marks of a window: a span of samples, the place of one, or a level.
const ofSpan = (w, parts, at) => ({ span: partOf(w, parts, at) });
const ofPlace = ({ x }, begin, end, isLargest) => ({ place: placeOf(x, begin, end, isLargest) });
const ofEnds = (w, begin, end) => [ofPlace(w, begin, end, true), ofPlace(w, begin, end, false)];
const ofMean = ({ total, n }) => ({ level: total / n });

// Each kind of `lutetia.models.windows`, a line each, which a build looks for: what it is of a window w, by a lag or the number of
// a part or a shape, and what a picture marks: of a shape where it is clearest.
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
  "shape": { of: (w, at) => placesOf(w, shapeOf(at)).count, marks: (w, at) => [{ span: placesOf(w, shapeOf(at)).span }] },
};
