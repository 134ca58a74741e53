// The answers of a model of windows of signals, and which comparisons decided: the same numbers as in Python and C.

const { length, step, signals, features, starts, codes, edges, thresholds } = model.windows;
const signalOf = (input) => model.windows.signal[input];
const featureOf = (input) => features[model.windows.feature[input]];
const asked = signals.map(() => []); // the inputs of each signal that something is compared with
model.windows.signal.forEach((signal, input) => starts[input] < starts[input + 1] && asked[signal].push(input));

// What a window has of an input: a whole number.
function numberAt(w, input) {
  const { kind, at } = featureOf(input);
  return FEATURES[kind].of(w, at);
}

// A whole number of an input in the unit of its signal.
function inUnit(input, number) {
  const { divisor, hasUnit } = featureOf(input);
  return number / (hasUnit ? divisor * signals[signalOf(input)].scale : divisor);
}

// The inputs of the window that begins at a row; of one that is compared with nothing, 1. `look` is told the number of each.
function inputsAt({ samples }, start, look = () => {}) {
  const inputs = new Int32Array(model.nInputs).fill(1);
  asked.forEach((own, signal) => {
    const w = own.length ? windowAt(samples[signal], start, length) : null;
    for (const input of own) {
      const value = numberAt(w, input);
      look(input, value);
      for (let k = starts[input]; k < starts[input + 1] && value > edges[k]; k++) inputs[input] = codes[k];
    }
  });
  return inputs;
}

// The class and the probabilities, or the number and the ends of its interval.
function answerOf(inputs) {
  const scores = runStages(inputs);
  if (scores.length === 1) return { scores, value: numberOf(scores[0]), ends: interval(inputs, scores[0]) };
  return { scores, best: greatest(scores), chances: chancesOf(scores) };
}

// Why a window is answered so.
const windowReasons = (inputs) => reasonsOf(inputs, asked.flat().map((input) => [input]));

const titleOf = (input) => `${signals[signalOf(input)].name}: ${featureOf(input).title}`;

// An input of a window in the unit of its signal.
function valueOf(recording, start, input) {
  return inUnit(input, numberAt(windowAt(recording.samples[signalOf(input)], start, length), input));
}

// How far a number of an input is beyond those that were fitted, in widths of these; 0 where they are not known.
function beyond(input, number) {
  const ends = model.windows.trained[input];
  if (!ends) return 0;
  const value = inUnit(input, number), [low, high] = ends, width = high > low ? high - low : Math.max(Math.abs(low), 1);
  return Math.max(low - value, value - high) / width;
}

// A reason in the words of `lutetia explain`.
function reasonText({ left, right, bit, isAbove }, recording, start) {
  if (bit === undefined) return `${titleOf(left)} = ${shortNumber(valueOf(recording, start, left))}`;
  if (right < 0 && thresholds[bit] === "missing") return `${titleOf(left)} is ${isAbove ? "known" : "missing"}`;
  return `${titleOf(left)} ${isAbove ? ">" : "≤"} ${right < 0 ? thresholds[bit] : `${titleOf(right)} by rank`}`;
}

// Where the windows of a recording begin: each lies in one series.
function startsOf({ begins, nRows }) {
  return begins.flatMap((begin, at) => {
    const end = begins[at + 1] ?? nRows, own = [];
    for (let start = begin; start + length <= end; start += step) own.push(start);
    return own;
  });
}

// For whoever scripts the page: a CSV file, as bytes, as samples; its windows and their answers; why one of them is answered so;
// and all that is made of the window that begins at some sample of a signal, and what a picture marks of it.
Object.assign(window.lutetia, {
  read: (bytes) => readRecording(bytes, ""),
  predict: (bytes) => {
    const recording = readRecording(bytes, "");
    return startsOf(recording).map((start) => ({ first: start, last: start + length - 1, ...answerOf(inputsAt(recording, start)) }));
  },
  explain: (bytes, number) => {
    const recording = readRecording(bytes, ""), start = startsOf(recording)[number];
    return windowReasons(inputsAt(recording, start)).map((each) => [reasonText(each, recording, start), each.effect]);
  },
  measure: (samples, start) => features.map(({ kind, at }) => FEATURES[kind].of(windowAt(samples, start, length), at)),
  marks: (samples, start) => features.map(({ kind, at }) => FEATURES[kind].marks(windowAt(samples, start, length), at)),
});
