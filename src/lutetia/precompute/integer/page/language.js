// The language model: compare, look up, add. The same numbers as in Python, C and Verilog.

// A layer of tables: the index of each detector at one place of the stream, whose channels begin at `from`.
const scaled = new Float64Array(model.width);
function detect(layer, stream, from, indices) {
  const { anchors, gains, nAnchors, nDetectors } = layer, { width } = model;
  if (gains) for (let c = 0; c < width; c++) scaled[c] = stream[from + c] * gains[c];
  else for (let c = 0; c < width; c++) scaled[c] = stream[from + c];
  for (let t = 0, at = 0; t < nDetectors; t++) {
    let index = 0;
    for (let r = 0; r < nAnchors; r++, at += 2) index |= (scaled[anchors[at]] > scaled[anchors[at + 1]] ? 1 : 0) << r;
    indices[t] = index;
  }
}

function addRow(layer, t, row, sums, to) {
  const { numbers, nOutputs, nRows } = layer, from = (t * nRows + row) * nOutputs;
  for (let c = 0; c < nOutputs; c++) sums[to + c] += numbers[from + c];
}

function takeRow(layer, t, row, sums, to) {
  const { numbers, nOutputs, nRows } = layer, from = (t * nRows + row) * nOutputs;
  for (let c = 0; c < nOutputs; c++) sums[to + c] -= numbers[from + c];
}

// What a block keeps of every place: the keys of its detectors, what its attention saw, the rows of its feed-forward and their sum.
function kept({ attention, feedForward }) {
  const { context, width } = model;
  return {
    keys: new Uint32Array(context * attention.nDetectors),
    seen: new Int32Array(context * width),
    rows: new Uint32Array(context * feedForward.nDetectors),
    fed: new Int32Array(context * width),
  };
}

class Reader {
  constructor() {
    const { context, width, blocks, unembedding } = model, layers = blocks.flatMap((each) => [each.attention, each.feedForward]);
    this.length = 0;
    this.bytes = new Uint8Array(context);
    this.stream = new Int32Array(context * width);
    this.blocks = blocks.map(kept);
    this.found = new Uint32Array(Math.max(...[unembedding, ...layers].map((each) => each.nDetectors)));
    this.sums = new Int32Array(model.vocab);
  }

  put(byte) {
    if (!(Number.isInteger(byte) && byte >= 0 && byte < model.vocab)) refuse(`a byte is ${byte}, expected 0 to ${model.vocab - 1}`);
    if (this.length === model.context) this.slide();
    this.bytes[this.length] = byte;
    this.step(this.length++);
  }

  // The score of each next byte, until the next call.
  scores() {
    if (!this.length) refuse("no byte was read, expected at least one to continue from");
    const layer = model.unembedding, { found, sums } = this;
    detect(layer, this.stream, (this.length - 1) * model.width, found);
    sums.fill(0);
    for (let t = 0; t < layer.nDetectors; t++) addRow(layer, t, found[t], sums, 0);
    return sums;
  }

  // How much each earlier byte added to the stream of the last one, in all blocks together.
  looked() {
    const last = this.length - 1, shares = new Float64Array(last), sum = new Int32Array(model.width);
    model.blocks.forEach(({ attention }, number) => {
      for (let i = 0; i < last; i++) {
        sum.fill(0);
        for (let t = 0; t < attention.nDetectors; t++) addRow(attention, t, this.cell(number, last, i, t), sum, 0);
        shares[i] += sum.reduce((total, each) => total + Math.abs(each), 0) * attention.unit;
      }
    });
    return shares;
  }

  embed(j) {
    const { embedding, embeddingUnit, width } = model, from = this.bytes[j] * width, to = j * width;
    for (let c = 0; c < width; c++) this.stream[to + c] = embedding[from + c] * embeddingUnit;
  }

  join(sums, j, unit) {
    const { stream } = this, { width } = model;
    for (let at = j * width, end = at + width; at < end; at++) stream[at] += sums[at] * unit;
  }

  // The row of detector t for place j, which looks at place i.
  cell(number, j, i, t) {
    const { nAnchors, positionBits, positions, nDetectors } = model.blocks[number].attention, { keys } = this.blocks[number];
    const pair = (keys[j * nDetectors + t] << nAnchors) | keys[i * nDetectors + t];
    return (pair << positionBits) | positions[(j - i - 1) * nDetectors + t];
  }

  attend(number, j) {
    const { attention } = model.blocks[number], { width } = model, { seen } = this.blocks[number];
    seen.fill(0, j * width, (j + 1) * width);
    for (let i = 0; i < j; i++) {
      for (let t = 0; t < attention.nDetectors; t++) addRow(attention, t, this.cell(number, j, i, t), seen, j * width);
    }
  }

  // The stream of place j behind a block, from what its attention saw. `again`: the place has been there, and few rows are others.
  finish(number, j, again) {
    const { attention, feedForward } = model.blocks[number], { width } = model, { found } = this;
    const { seen, rows, fed } = this.blocks[number], first = j * feedForward.nDetectors;
    this.join(seen, j, attention.unit);
    detect(feedForward, this.stream, j * width, found);
    if (!again) fed.fill(0, j * width, (j + 1) * width);
    for (let t = 0; t < feedForward.nDetectors; t++) {
      if (again && found[t] === rows[first + t]) continue;
      if (again) takeRow(feedForward, t, rows[first + t], fed, j * width);
      addRow(feedForward, t, found[t], fed, j * width);
      rows[first + t] = found[t];
    }
    this.join(fed, j, feedForward.unit);
  }

  step(j) {
    this.embed(j);
    model.blocks.forEach(({ attention }, number) => {
      detect(attention, this.stream, j * model.width, this.found);
      for (let t = 0; t < attention.nDetectors; t++) this.blocks[number].keys[j * attention.nDetectors + t] = this.found[t];
      this.attend(number, j);
      this.finish(number, j, false);
    });
  }

  // The oldest byte leaves; all but the last block keep the sums of those that stay, less what they saw of it.
  slide() {
    const n = model.context - 1, last = model.blocks.length - 1, { width } = model;
    this.bytes.copyWithin(0, 1);
    for (let j = 0; j < n; j++) this.embed(j);
    model.blocks.forEach(({ attention, feedForward }, number) => {
      const { keys, seen, rows, fed } = this.blocks[number], { nDetectors } = attention;
      for (let j = 1; j <= n && number < last; j++) {
        for (let t = 0; t < nDetectors; t++) takeRow(attention, t, this.cell(number, j, 0, t), seen, j * width);
      }
      keys.copyWithin(0, nDetectors);
      rows.copyWithin(0, feedForward.nDetectors);
      for (const sums of [seen, fed]) sums.copyWithin(0, width);
      if (number) this.findKeys(number, n, number < last); // those of the first block follow from the bytes alone
      for (let j = 0; j < n && number < last; j++) this.finish(number, j, true);
    });
    this.length = n;
  }

  findKeys(number, n, summed) {
    const { attention } = model.blocks[number], { nDetectors } = attention, { keys } = this.blocks[number], { found } = this;
    for (let j = 0; j < n; j++) {
      detect(attention, this.stream, j * model.width, found);
      for (let t = 0; t < nDetectors; t++) {
        if (summed && found[t] !== keys[j * nDetectors + t]) this.replace(number, j, t, found[t], n);
        keys[j * nDetectors + t] = found[t];
      }
    }
  }

  // Place j has another key: what it saw, and what later places saw of it, changes with it.
  replace(number, j, t, key, n) {
    const { attention } = model.blocks[number], { keys, seen } = this.blocks[number], { width } = model;
    const place = j * attention.nDetectors + t, old = keys[place];
    for (const change of [takeRow, addRow]) {
      keys[place] = change === addRow ? key : old;
      for (let i = 0; i < j; i++) change(attention, t, this.cell(number, j, i, t), seen, j * width);
      for (let i = j + 1; i < n; i++) change(attention, t, this.cell(number, i, j, t), seen, i * width);
    }
  }
}

// Marsaglia's xorshift of 32 bits.
class Draws {
  constructor(seed) {
    this.state = seed >>> 0 || 2463534242;
  }

  next() {
    let s = this.state;
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    this.state = s >>> 0;
    return this.state;
  }
}

function choose(scores, draws) {
  let best = 0;
  for (let c = 1; c < scores.length; c++) if (scores[c] > scores[best]) best = c;
  if (!draws) return best;
  const weights = Array.from(scores, (score) => model.weights[Math.floor((scores[best] - score) / 2 ** model.drop)] ?? 0);
  const total = weights.reduce((sum, each) => sum + each, 0);
  let mask = 0, r = total;
  while (mask < total - 1) mask = mask * 2 + 1;
  while (r >= total) r = (draws.next() & mask) >>> 0;
  let byte = 0;
  for (; r >= weights[byte]; byte++) r -= weights[byte];
  return byte;
}

function read(prompt) {
  const reader = new Reader();
  for (const byte of prompt.slice(-model.context)) reader.put(byte);
  return reader;
}

function generate(prompt, n, seed = null) {
  if (!(prompt instanceof Uint8Array)) refuse("the prompt is not a Uint8Array");
  if (!prompt.length) refuse("the prompt is empty, expected at least one byte to continue from");
  if (!(Number.isInteger(n) && n >= 0)) refuse(`n is ${n}, expected how many bytes to write`);
  const outside = prompt.find((byte) => byte >= model.vocab);
  if (outside !== undefined) refuse(`the prompt has the byte ${outside}, expected 0 to ${model.vocab - 1}`);
  const reader = read(prompt), draws = seed === null ? null : new Draws(seed), wrote = new Uint8Array(n);
  for (let at = 0; at < n; at++) {
    wrote[at] = choose(reader.scores(), draws);
    if (at < n - 1) reader.put(wrote[at]);
  }
  return wrote;
}

window.lutetia = { generate, classify: () => refuse("this page holds a language model, which cannot classify") };
