// Thousands of steps as a tree of a few dozen nodes: steps fold into the step they ran inside, repeated runs into
// one node "× 128", and what is still too long into stretches of consecutive steps.

// Steps up to which nothing is folded.
const FEW = 40;
const LONGEST_PERIOD = 32;
// Siblings beyond which stretches are made.
const CROWD = 120;

const signatures = new Map();

function signature(...what) {
  const key = JSON.stringify(what);
  if (!signatures.has(key)) signatures.set(key, signatures.size);
  return signatures.get(key);
}

function makeNode(kind, kids, fields) {
  const node = { kind, kids, up: null, step: null, ...fields };
  for (const kid of kids) kid.up = node;
  if (node.step) return Object.assign(node, { count: 1 + sum(kids, (k) => k.count), first: node.step });
  const timed = kids.filter((k) => k.duration !== null);
  return Object.assign(node, {
    count: sum(kids, (k) => k.count),
    first: kids[0]?.first,
    duration: timed.length ? sum(timed, (k) => k.duration) : null,
    bytes: sum(kids, (k) => k.bytes),
    part: kids.every((k) => k.part === kids[0].part) ? kids[0]?.part : "several",
    failed: kids.some((k) => k.failed),
  });
}

function stepNode(step, folding) {
  const kids = foldList(step.children.map((child) => child.node), folding);
  const shapes = (tensors) => tensors.map((t) => [t.shape, t.dtype]);
  const { name, part, device, failed, duration, bytes } = step;
  const sig = folding ? signature(name, part, device, failed, shapes(step.inputs), shapes(step.outputs), kids.map((k) => k.sig)) : 0;
  return makeNode("step", kids, { step, label: name, part, failed, duration, bytes, sig });
}

function foldList(items, folding) {
  if (!folding) return items;
  for (;;) {
    const shorter = foldRuns(items);
    if (shorter.length === items.length) return stretches(items);
    // Once more: a run of runs is a run.
    items = shorter;
  }
}

// One pass from the left: at each place take the period that covers most.
function foldRuns(items) {
  const n = items.length;
  const most = min(LONGEST_PERIOD, n >> 1);
  // In matches[p][i], for how long the items from i on equal those p further.
  const matches = [];
  for (let p = 1; p <= most; p++) {
    const run = new Int32Array(n + 1);
    for (let i = n - p - 1; i >= 0; i--) run[i] = items[i].sig === items[i + p].sig ? run[i + 1] + 1 : 0;
    matches[p] = run;
  }
  const out = [];
  for (let i = 0; i < n; ) {
    let period = 0;
    let count = 1;
    for (let p = 1; p <= most; p++) {
      const times = floor(matches[p][i] / p) + 1;
      if ((times >= 3 || (times === 2 && p >= 3)) && times * p > count * period) (period = p), (count = times);
    }
    if (period) out.push(repeatNode(items.slice(i, i + period * count), period, count));
    else out.push(items[i]);
    i += period ? period * count : 1;
  }
  return out;
}

function repeatNode(items, period, times) {
  const sig = signature("repeat", times, items.slice(0, period).map((k) => k.sig));
  const label = period === 1 ? items[0].label : `${items[0].label} → …`;
  let rounds = items;
  if (period > 1) {
    rounds = Array.from({ length: times }, (_, i) => {
      const kids = foldList(items.slice(i * period, (i + 1) * period), true);
      return makeNode("round", kids, { label: `round ${i + 1} of ${times}`, number: i + 1, sig });
    });
  }
  return makeNode("repeat", stretches(rounds), { label, times, period, sig });
}

function stretches(items) {
  if (items.length <= CROWD) return items;
  let size = 10;
  for (let i = 1; items.length / size > 50; i++) size *= [2, 2.5, 2][(i - 1) % 3];
  const out = [];
  for (let i = 0; i < items.length; i += size) {
    const some = items.slice(i, i + size);
    const [a, b] = [some[0], some.at(-1)];
    const label = a.kind === "round" ? `rounds ${a.number} – ${b.number}` : `steps ${a.first.id} – ${lastStep(b).id}`;
    out.push(makeNode("stretch", stretches(some), { label, sig: signature("stretch", some.map((k) => k.sig)) }));
  }
  return out;
}

function lastStep(node) {
  return node.kids.length ? lastStep(node.kids.at(-1)) : node.step;
}

function foldFlow(steps) {
  const folding = steps.length > FEW;
  // From the last step to the first: what ran inside a step is folded before the step itself.
  for (const step of steps.toReversed()) step.node = stepNode(step, folding);
  const top = steps.filter((s) => !s.parent).map((s) => s.node);
  return makeNode("root", foldList(top, folding), { label: "", folding });
}

function* stepsOf(node) {
  if (node.step) yield node.step;
  for (const kid of node.kids) yield* stepsOf(kid);
}

// What is open at first: everything when there is little, nothing when there is much.
function firstOpen(root) {
  const open = new Set();
  const visit = (node) => {
    if (node.kids.length) open.add(node);
    node.kids.forEach(visit);
  };
  if (!root.folding) visit(root);
  return open;
}

function toggleNode(open, node) {
  if (open.delete(node)) return;
  open.add(node);
  // The first round shows the pattern; the others stay folded beside it.
  for (let inner = node.kids[0]; node.kind === "repeat" && inner && inner.kind !== "step"; inner = inner.kids[0]) {
    open.add(inner);
    if (inner.kind === "round") break;
  }
}
