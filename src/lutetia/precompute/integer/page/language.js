// The language model: compare, look up, add. The same numbers as in Python, C and Verilog.

// A layer of tables: the index of each detector for one position of the stream.
function detect(layer, stream, indices) {
  const { anchors, gains, nAnchors } = layer;
  for (let t = 0, at = 0; t < indices.length; t++) {
    let index = 0;
    for (let r = 0; r < nAnchors; r++, at += 2) {
      const a = anchors[at], b = anchors[at + 1];
      const greater = gains ? stream[a] * gains[a] > stream[b] * gains[b] : stream[a] > stream[b];
      if (greater) index |= 1 << r;
    }
    indices[t] = index;
  }
}

// sum += sign · row
function addRow(layer, t, row, sum, sign) {
  const { numbers, nOutputs, nRows } = layer;
  const from = (t * nRows + row) * nOutputs;
  if (sign > 0) for (let c = 0; c < nOutputs; c++) sum[c] += numbers[from + c];
  else for (let c = 0; c < nOutputs; c++) sum[c] -= numbers[from + c];
}

class Reader {
  constructor() {
    const { context, width, blocks } = model;
    const places = (make) => Array.from({ length: context }, make);
    this.bytes = [];
    this.stream = places(() => new Float64Array(width));
    this.keys = blocks.map(({ attention }) => places(() => new Uint32Array(attention.nDetectors)));
    this.seen = blocks.map(() => places(() => new Int32Array(width)));
  }

  reset() {
    this.bytes = [];
  }

  put(byte) {
    if (!(Number.isInteger(byte) && byte >= 0 && byte < model.vocab)) refuse(`a byte is ${byte}, expected 0 to ${model.vocab - 1}`);
    if (this.bytes.length === model.context) this.slide();
    this.bytes.push(byte);
    this.step(this.bytes.length - 1);
  }

  scores() {
    if (!this.bytes.length) refuse("nothing was read, expected at least one byte to go on from");
    const layer = model.unembedding, rows = new Uint32Array(layer.nDetectors), sums = new Int32Array(model.vocab);
    detect(layer, this.stream[this.bytes.length - 1], rows);
    rows.forEach((row, t) => addRow(layer, t, row, sums, 1));
    return sums;
  }

  // How much each earlier byte added to the stream of the last one, in all blocks together.
  looked() {
    const last = this.bytes.length - 1, shares = new Float64Array(last);
    model.blocks.forEach(({ attention }, number) => {
      for (let i = 0; i < last; i++) {
        const sum = new Int32Array(model.width);
        for (let t = 0; t < attention.nDetectors; t++) addRow(attention, t, this.cell(number, last, i, t), sum, 1);
        shares[i] += sum.reduce((total, each) => total + Math.abs(each), 0) * attention.unit;
      }
    });
    return shares;
  }

  embed(j) {
    const { embedding, embeddingUnit, width } = model, from = this.bytes[j] * width;
    for (let c = 0; c < width; c++) this.stream[j][c] = embedding[from + c] * embeddingUnit;
  }

  cell(number, j, i, t) {
    const { nAnchors, positionBits, positions, nDetectors } = model.blocks[number].attention;
    const keys = this.keys[number];
    return (((keys[j][t] << nAnchors) | keys[i][t]) << positionBits) | positions[(j - i - 1) * nDetectors + t];
  }

  attend(number, j) {
    const { attention } = model.blocks[number], sum = this.seen[number][j].fill(0);
    for (let i = 0; i < j; i++) {
      for (let t = 0; t < attention.nDetectors; t++) addRow(attention, t, this.cell(number, j, i, t), sum, 1);
    }
  }

  // The stream of position j behind a block, from what its attention saw.
  finish(number, j) {
    const { attention, feedForward } = model.blocks[number], stream = this.stream[j];
    const rows = new Uint32Array(feedForward.nDetectors), sum = new Int32Array(model.width);
    for (let c = 0; c < model.width; c++) stream[c] += this.seen[number][j][c] * attention.unit;
    detect(feedForward, stream, rows);
    for (let t = 0; t < rows.length; t++) addRow(feedForward, t, rows[t], sum, 1);
    for (let c = 0; c < model.width; c++) stream[c] += sum[c] * feedForward.unit;
  }

  step(j) {
    this.embed(j);
    model.blocks.forEach(({ attention }, number) => {
      detect(attention, this.stream[j], this.keys[number][j]);
      this.attend(number, j);
      this.finish(number, j);
    });
  }

  // The oldest byte leaves; all but the last block keep the sums of those that stay, less what they saw of it.
  slide() {
    const n = model.context - 1, last = model.blocks.length - 1;
    this.bytes.shift();
    for (let j = 0; j < n; j++) this.embed(j);
    model.blocks.forEach(({ attention }, number) => {
      const keys = this.keys[number], seen = this.seen[number], found = new Uint32Array(attention.nDetectors);
      if (number < last) {
        for (let j = 1; j <= n; j++) {
          for (let t = 0; t < found.length; t++) addRow(attention, t, this.cell(number, j, 0, t), seen[j], -1);
        }
      }
      keys.push(keys.shift());
      seen.push(seen.shift());
      for (let j = 0; j < n; j++) {
        detect(attention, this.stream[j], found);
        found.forEach((key, t) => {
          if (key === keys[j][t]) return;
          if (number < last) this.replace(number, j, t, key, n);
          keys[j][t] = key;
        });
      }
      for (let j = 0; j < n && number < last; j++) this.finish(number, j);
    });
  }

  // Position j has another key: what it saw, and what later positions saw of it, changes with it.
  replace(number, j, t, key, n) {
    const { attention } = model.blocks[number], keys = this.keys[number], seen = this.seen[number], old = keys[j][t];
    for (const [value, sign] of [[old, -1], [key, 1]]) {
      keys[j][t] = value;
      for (let i = 0; i < j; i++) addRow(attention, t, this.cell(number, j, i, t), seen[j], sign);
      for (let i = j + 1; i < n; i++) addRow(attention, t, this.cell(number, i, j, t), seen[i], sign);
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
  if (!(prompt instanceof Uint8Array)) refuse("the prompt is no Uint8Array");
  if (!prompt.length) refuse("the prompt is empty, expected at least one byte to go on from");
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

window.lutetia = { generate, classify: () => refuse("this page holds a language model, which classifies nothing") };
