// The recorded flow: read, linked, and how its numbers are written.

const { min, max, floor, ceil, round, hypot, abs, exp } = Math;
const byId = (id) => document.getElementById(id);
const on = (element, event, action, options) => element.addEventListener(event, action, options);

function readTensor([name, shape, dtype, bytes, device, value, producer]) {
  return { name, shape, dtype, bytes, device, value, producer };
}

function readStep([name, part, inputs, outputs, parent, device, start, duration, thread, failed, attributes], id) {
  const step = { id, name, part, parent: null, device, start, duration, thread, failed, attributes, children: [], reads: [], depth: 0 };
  step.inputs = inputs.map(readTensor);
  step.outputs = outputs.map(readTensor);
  step.bytesIn = sum(step.inputs, (t) => t.bytes);
  step.bytesOut = sum(step.outputs, (t) => t.bytes);
  step.bytes = step.bytesIn + step.bytesOut;
  step.inside = parent;
  return step;
}

// Every value with the step that made it (null: it came from outside) and the steps that used or overwrote it.
function readFlow(raw) {
  const steps = raw.steps.map(readStep);
  const values = new Map();
  const at = (number) => {
    if (!values.has(number)) values.set(number, { tensor: null, maker: null, users: new Set(), overwriters: new Set() });
    return values.get(number);
  };
  for (const step of steps) {
    // A parent begins before what runs inside it; anything else would make a circle.
    if (step.inside !== null && step.inside < step.id) {
      step.parent = steps[step.inside];
      step.parent.children.push(step);
      step.depth = step.parent.depth + 1;
    }
  }
  for (const step of steps) {
    for (const tensor of step.outputs) {
      const value = at(tensor.value);
      value.maker ??= steps[tensor.producer] ?? step;
      if (value.maker === step) value.tensor = tensor;
    }
  }
  // One input may hold several values: a buffer that several steps wrote.
  for (const [source, target, number, inPlace, input] of raw.edges) {
    if (!steps[source] || !steps[target]) continue;
    const [value, user] = [at(number), steps[target]];
    value.maker ??= steps[source];
    value.users.add(user);
    user.reads.push({ value, input });
    if (inPlace) value.overwriters.add(user);
  }
  for (const step of steps) {
    for (const tensor of step.inputs) {
      const value = at(tensor.value);
      value.tensor ??= tensor;
      value.maker ??= steps[tensor.producer] ?? null;
      value.users.add(step);
      if (!step.reads.some((read) => read.value === value)) step.reads.push({ value, input: tensor.name });
    }
  }
  for (const step of steps) for (const { value, input } of step.reads) value.tensor ??= step.inputs.find((t) => t.name === input);
  return { steps, values };
}

function isInside(step, outer) {
  for (let s = step.parent; s; s = s.parent) if (s === outer) return true;
  return false;
}

function sum(list, of) {
  let total = 0;
  for (const item of list) total += of(item);
  return total;
}

// Three digits say enough: 1.23 ms, 12.3 ms, 123 ms.
function digits(number) {
  return number >= 100 ? round(number).toString() : Number(number.toPrecision(3)).toString();
}

function showTime(seconds) {
  if (seconds === null) return "not timed";
  if (seconds === 0) return "0 s";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (seconds >= size) return `${digits(seconds / size)} ${unit}`;
  return `${digits(seconds * 1e9)} ns`;
}

function showBytes(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 5) (bytes /= 1024), unit++;
  return `${digits(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

// A size that was not known when the step was recorded is negative.
function showShape(shape) {
  return shape.map((size) => (size < 0 ? "?" : size)).join(" × ");
}

function showKind({ dtype, shape }) {
  return `${dtype} [${showShape(shape)}]`;
}

function showCount(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

const PARTS = ["lut", "attention", "relevance", "precompute", "user"];

function partClass(part) {
  return `part-${PARTS.includes(part) ? part : "other"}`;
}
