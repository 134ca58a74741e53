// The classifier: bits, indices, rows, sums. The same numbers as in Python, C and Verilog.

function bitsOf(stage, x) {
  const { left, right, constant } = stage, bits = new Uint8Array(left.length);
  for (let i = 0; i < left.length; i++) bits[i] = x[left[i]] > (right[i] < 0 ? constant[i] : x[right[i]]) ? 1 : 0;
  return bits;
}

function indexOf(stage, u, bits) {
  let index = 0;
  for (let r = 0; r < stage.k; r++) index = index * 2 + bits[stage.lanes[u * stage.k + r]];
  return (index ^ stage.flip[u]) >>> 0;
}

function addLookup(stage, u, index, sums, sign = 1) {
  const n = stage.count[u], row = stage.start[u] + index * n, target = stage.firstTarget[u];
  for (let c = 0; c < n; c++) sums[stage.targets[target + c]] += sign * stage.contents[row + c];
}

function runStage(stage, x) {
  const sums = Float64Array.from(stage.bias);
  if (stage.weight) {
    const n = x.length;
    for (let o = 0; o < sums.length; o++) for (let i = 0; i < n; i++) sums[o] += stage.weight[o * n + i] * x[i];
    return sums;
  }
  const bits = bitsOf(stage, x);
  for (let u = 0; u < stage.count.length; u++) addLookup(stage, u, indexOf(stage, u, bits), sums);
  return sums;
}

const runStages = (x, from = 0) => model.stages.slice(from).reduce((values, stage) => runStage(stage, values), x);

// The number that a sum stands for: the sum in its unit, or exp of that.
const numberOf = (sum) => (model.isLog ? Math.exp(sum * model.unit) : sum * model.unit);

// The ends of the interval of a number; none where nothing is known of the errors. Those of counts begin at 0 at least.
function interval(x, sum) {
  if (!model.halfWidth) return [];
  const { least, half, fine, stage, unit } = model.halfWidth;
  const width = Math.floor((Math.max(least, stage ? runStage(stage, x)[0] : least) + half) / fine);
  if (!model.isLog) return [(sum - width) * unit, (sum + width) * unit];
  const low = numberOf(sum) - width * unit, high = numberOf(sum) + width * unit;
  return [low > 1e-6 * high ? low : 0, high]; // less is 0 but for rounding
}

function greatest(scores) {
  let best = 0;
  for (let c = 1; c < scores.length; c++) if (scores[c] > scores[best]) best = c;
  return best;
}

function check(x) {
  if (!(x instanceof Int32Array)) refuse("the sample is not an Int32Array");
  if (x.length !== model.nInputs) refuse(`the sample has ${x.length} numbers, expected ${model.nInputs}`);
  const outside = x.find((each) => each < 0 || each > model.largest);
  if (outside !== undefined) refuse(`the sample has ${outside}, expected 0 to ${model.largest}`);
}

// The class of a sample, or the sum of a regression.
function classify(x) {
  check(x);
  const scores = runStages(x);
  return scores.length > 1 ? greatest(scores) : scores[0];
}

// What each detector of the first layer says on average, for each of its sums.
const means = model.stages[0].weight ? [] : averages(model.stages[0]);

function averages(stage) {
  const rows = 2 ** stage.k, found = new Float64Array(stage.targets.length);
  for (let u = 0; u < stage.count.length; u++) {
    for (let c = 0; c < stage.count[u]; c++) {
      let total = 0;
      for (let row = 0; row < rows; row++) total += stage.contents[stage.start[u] + row * stage.count[u] + c];
      found[stage.firstTarget[u] + c] = total / rows;
    }
  }
  return found;
}

// Points that the lead of the winner loses when one detector of the first layer says what it says on average.
function loudest(x, most) {
  const [stage] = model.stages, scores = runStages(x), best = greatest(scores), bits = stage.weight ? [] : bitsOf(stage, x);
  if (stage.weight) return [];
  const lead = (each) => each[best] - Math.max(...each.filter((_, c) => c !== best), -Infinity);
  const single = model.stages.length === 1, base = single ? scores : runStage(stage, x), found = [];
  for (let u = 0; u < stage.count.length; u++) {
    const sums = Float64Array.from(base), n = stage.count[u];
    addLookup(stage, u, indexOf(stage, u, bits), sums, -1);
    for (let c = 0; c < n; c++) sums[stage.targets[stage.firstTarget[u] + c]] += means[stage.firstTarget[u] + c];
    const loss = scores.length > 1 ? lead(scores) - lead(single ? sums : runStages(sums, 1)) : base[0] - sums[0];
    if (loss) found.push({ u, loss });
  }
  return found.sort((a, b) => Math.abs(b.loss) - Math.abs(a.loss)).slice(0, most);
}

// What a detector of the first layer compares: inputs, or an input and a number; and the answers.
function comparisons(x, u) {
  const [stage] = model.stages, bits = bitsOf(stage, x);
  return Array.from(stage.lanes.slice(u * stage.k, (u + 1) * stage.k), (lane) => ({
    left: stage.left[lane], right: stage.right[lane], constant: stage.constant[lane], answer: bits[lane] === 1,
  }));
}

window.lutetia = { classify, generate: () => refuse("this page holds a classifier, which cannot write") };
