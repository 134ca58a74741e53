// Probabilities of classes, and which comparisons decided: the same numbers as in Python.

const MOST_REASONS = 8;

// What sums are worth beside each other, next to the given one: of a forest its shares, of other models exponentials.
const partsOf = (scores, beside) => scores.map((score) => (model.addsChances ? Math.max(score, 0) : Math.exp((score - beside) * model.scoreUnit)));

// Parts of a whole; all alike where there is nothing to divide.
function sharesOf(parts, count = parts.length) {
  const total = parts.reduce((sum, part) => sum + part, 0);
  return parts.map((part) => (total ? part / total : 1 / count));
}

const chancesOf = (scores) => sharesOf(partsOf(scores, scores[greatest(scores)]));

// With which weights sums are the lead of the best class over its rivals; a number is its own.
function contrastOf(scores) {
  if (scores.length === 1) return Float64Array.of(1);
  const best = greatest(scores), top = Math.max(...scores.filter((_, c) => c !== best));
  const shares = sharesOf(partsOf(scores, top).map((part, c) => (c === best ? 0 : part)), scores.length - 1);
  return shares.map((share, c) => (c === best ? 1 : -share));
}

// How unusual a sample is: above 0 it is flagged.
const scoreOf = (scores) => (scores[1] - scores[0]) * model.scoreUnit;

// Why a sample is answered so, the most effective first: what the lead loses with the other answer to a comparison, or, where
// tables vote, without the inputs of a group.
function reasonsOf(x, groups) {
  if (model.stages.length > 1 || model.stages[0].weight) return [];
  const scores = runStages(x), weights = contrastOf(scores);
  const found = model.votes ? blanked(x, groups, scores, weights) : turned(x, weights);
  // Of unusual rows only what made them so: what all rows share is rarest the other way round.
  const told = found.filter(({ effect }) => (model.findsUnusual ? effect > 0 : effect !== 0)).map((each) => ({ ...each, effect: each.effect * model.scoreUnit }));
  return told.sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
}

function blanked(x, groups, scores, weights) {
  const leadOf = (sums) => sums.reduce((sum, each, c) => sum + each * weights[c], 0), lead = leadOf(scores);
  return groups.map((group) => {
    const others = x.slice();
    for (const input of group) others[input] = 0;
    return { left: group[0], right: -1, effect: lead - leadOf(runStages(others)) };
  });
}

// Of each comparison what its tables say for the lead, less what they would say with its other answer.
function turned(x, weights) {
  const [stage] = model.stages, bits = bitsOf(stage, x), effects = new Float64Array(bits.length);
  for (let u = 0; u < stage.count.length; u++) {
    const index = indexOf(stage, u, bits), said = saidBy(stage, u, index, weights);
    for (let r = 0; r < stage.k; r++) effects[stage.lanes[(u + 1) * stage.k - 1 - r]] += said - saidBy(stage, u, index ^ (1 << r), weights);
  }
  const different = new Map(); // two inputs are compared once: the higher is above the lower, whichever comes first
  effects.forEach((effect, bit) => {
    const a = stage.left[bit], b = stage.right[bit], isSwapped = b >= 0 && x[a] < x[b];
    const [left, right] = isSwapped ? [b, a] : [a, b], key = `${left} ${right} ${b < 0 ? stage.constant[bit] : ""}`;
    const known = different.get(key) ?? { left, right, bit, isAbove: right < 0 ? bits[bit] === 1 : x[left] > x[right], effect: 0 };
    different.set(key, { ...known, effect: known.effect + effect });
  });
  return [...different.values()];
}

// What a table says with a row, for a lead of these weights.
function saidBy(stage, u, index, weights) {
  const n = stage.count[u], row = stage.start[u] + index * n, target = stage.firstTarget[u];
  let sum = 0;
  for (let c = 0; c < n; c++) sum += weights[stage.targets[target + c]] * stage.contents[row + c];
  return sum;
}
