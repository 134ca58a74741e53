// Where things stand: a layered drawing, top to bottom, of one scope at a time. An open node is laid out by itself
// and then takes part in its surroundings as one large box, so nothing ever crosses its frame.

const BOX = { w: 260, h: 60 };
const PILL_H = 26;
const GAP = { x: 26, y: 26, part: 64 };
const FRAME = { pad: 22, head: 38 };
// The most boxes in one rank.
const WIDE = 8;
// How many ranks a line may cross; beyond, the tensor is named again where it is used.
const REACH = 5;
// The width after which separate drawings go below instead of beside.
const SHELF = 1500;

const FONT = { name: "600 13px system-ui, sans-serif", small: "12px system-ui, sans-serif" };
const ruler = document.createElement("canvas").getContext("2d");
const widths = new Map();

function textWidth(text, font) {
  const key = font + text;
  if (!widths.has(key)) {
    ruler.font = font;
    widths.set(key, ruler.measureText(text).width);
  }
  return widths.get(key);
}

// Names differ at both ends, so the middle goes.
function fitText(text, width, font) {
  if (textWidth(text, font) <= width) return text;
  const chars = [...text].slice(0, 400);
  let [low, high] = [0, chars.length];
  const cut = (n) => `${chars.slice(0, ceil(n * 0.6)).join("")}…${n > 1 ? chars.slice(-floor(n * 0.4) || chars.length).join("") : ""}`;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(cut(middle), font) <= width) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}

// The tensors of one scope as pills between its boxes: { values, source, targets, away }, boxes by their place in
// scope.kids, source -1 when the tensor comes from outside the scope.
function findPills(scope) {
  const place = new Map(scope.kids.map((kid, i) => [kid, i]));
  const unitOf = (step) => {
    let node = step.node;
    while (node && node.up !== scope) node = node.up;
    return node ? place.get(node) : -1;
  };
  const seen = new Set();
  for (const kid of scope.kids) {
    for (const step of stepsOf(kid)) {
      for (const { value } of step.reads) seen.add(value);
      for (const tensor of step.outputs) seen.add(flow.values.get(tensor.value));
    }
  }
  const buckets = new Map();
  for (const value of seen) {
    if (!value.tensor) continue;
    const source = value.maker ? unitOf(value.maker) : -1;
    const users = [...value.users].map(unitOf);
    const targets = [...new Set(users)].filter((u) => u >= 0 && u !== source).sort((a, b) => a - b);
    const leaves = users.includes(-1);
    if (!targets.length && (source < 0 || (users.length && !leaves))) continue;
    const away = source < 0 ? value.maker !== null : leaves;
    const key = `${source}|${targets}|${away}`;
    if (!buckets.has(key)) buckets.set(key, { source, targets, away, values: [] });
    buckets.get(key).values.push(value);
  }
  const pills = [];
  for (const bucket of buckets.values()) {
    const coarse = [bucket.source, ...bucket.targets].some((u) => u >= 0 && scope.kids[u].kids.length);
    const together = bucket.values.length > (coarse ? 1 : 4);
    for (const values of together ? [bucket.values] : bucket.values.map((v) => [v])) {
      const overwriters = new Set(values.flatMap((v) => [...v.overwriters].map(unitOf)));
      pills.push({ ...bucket, values, overwriters, ...pillText(values) });
    }
  }
  return pills;
}

function pillText(values) {
  const one = values.length === 1 ? values[0].tensor : null;
  const name = fitText(one ? one.name : showCount(values.length, "tensor"), 172, FONT.small);
  const detail = fitText(one ? showShape(one.shape) || "scalar" : showBytes(sum(values, (v) => v.tensor.bytes)), 120, FONT.small);
  return { name, detail, w: ceil(textWidth(name, FONT.small) + textWidth(detail, FONT.small)) + 30, h: PILL_H };
}

// Boxes that hang together, each set in order.
function findPieces(count, pills) {
  const parent = Array.from({ length: count }, (_, i) => i);
  const find = (i) => (parent[i] === i ? i : (parent[i] = find(parent[i])));
  for (const { source, targets } of pills) {
    targets.forEach((t, i) => {
      if (source >= 0) parent[find(t)] = find(source);
      else if (i && t - targets[i - 1] <= 4) parent[find(t)] = find(targets[i - 1]);
    });
  }
  const pieces = new Map();
  for (let i = 0; i < count; i++) {
    if (!pieces.has(find(i))) pieces.set(find(i), []);
    pieces.get(find(i)).push(i);
  }
  return [...pieces.values()];
}

// Longest path from the top, in the order the steps ran, a few boxes to a rank.
function findRanks(units, pills) {
  const rank = new Map();
  const before = new Map(units.map((u) => [u, []]));
  const after = new Map(units.map((u) => [u, []]));
  for (const { source, targets } of pills) {
    for (const t of targets) if (source >= 0 && source < t) before.get(t).push(source), after.get(source).push(t);
  }
  const full = [];
  for (const u of units) {
    let r = max(0, ...before.get(u).map((s) => rank.get(s) + 1));
    while (full[r] >= WIDE) r++;
    full[r] = (full[r] ?? 0) + 1;
    rank.set(u, r);
  }
  // What nothing leads to stands just above its first use, not at the very top.
  for (const u of units.toReversed()) {
    if (!before.get(u).length && after.get(u).length) rank.set(u, min(...after.get(u).map((t) => rank.get(t))) - 1);
  }
  return rank;
}

// The ranks of one piece, filled with boxes, pills and the bends of long lines. Boxes stand in odd ranks, pills in even ones.
function buildRanks(units, pills, boxes) {
  const ranks = [];
  const lines = [];
  const trunks = [];
  const put = (item, rank) => {
    (ranks[rank] ??= []).push(Object.assign(item, { rank, up: [], down: [] }));
    return item;
  };
  const join = (a, b) => (a.down.push(b), b.up.push(a));
  // Lines from one pill share a trunk and part where they must.
  const connect = (trunk, b, extra) => {
    for (let r = trunk.at(-1).rank + 1; r < b.rank; r++) {
      const bend = put({ bend: true, w: 2, h: 0 }, r);
      join(trunk.at(-1), bend);
      trunk.push(bend);
    }
    const path = [...trunk.slice(0, b.rank - trunk[0].rank), b];
    join(path.at(-2), b);
    lines.push({ path, ...extra });
  };
  const rank = findRanks(units, pills);
  for (const u of units) put(boxes[u], 2 * rank.get(u) + 1);
  for (const pill of pills) {
    const outside = pill.source < 0;
    const own = outside ? 2 * min(...pill.targets.map((t) => rank.get(t))) : 2 * rank.get(pill.source) + 2;
    const first = put({ pill, w: pill.w, h: pill.h, again: outside && pill.away }, own);
    if (!outside) connect([boxes[pill.source]], first, { pill, unit: boxes[pill.source] });
    const trunk = [first];
    trunks.push(trunk);
    for (const t of pill.targets) {
      const extra = { pill, unit: boxes[t], enters: true, inPlace: pill.overwriters.has(t) };
      const span = 2 * rank.get(t) + 1 - own;
      const near = span > 0 && span <= 2 * (outside ? 1 : REACH);
      const from = near ? trunk : [put({ pill, w: pill.w, h: pill.h, again: true, origin: first }, 2 * rank.get(t))];
      connect(from, boxes[t], extra);
    }
  }
  // To begin with, what leads nowhere stands on the left and what comes from outside on the right of what goes on.
  const lean = (item) => (item.down.length > 0) + (item.up.length < 1);
  for (let r = 0; r < ranks.length; r++) r % 2 ? (ranks[r] ??= []) : (ranks[r] ??= []).sort((a, b) => lean(a) - lean(b));
  return { ranks, lines, trunks };
}

const mean = (items, of) => sum(items, of) / items.length;

function countCrossings(ranks) {
  let crossings = 0;
  for (const rank of ranks) {
    const ends = rank.flatMap((a) => a.down.map((b) => [a.at, b.at]));
    for (let i = 0; i < ends.length; i++) {
      for (let j = 0; j < i; j++) if ((ends[i][0] - ends[j][0]) * (ends[i][1] - ends[j][1]) < 0) crossings++;
    }
  }
  return crossings;
}

function swapNeighbours(rank) {
  const crossed = (a, b) => sum(a.up, (p) => sum(b.up, (q) => p.at > q.at)) + sum(a.down, (p) => sum(b.down, (q) => p.at > q.at));
  for (let i = 1; i < rank.length; i++) {
    const [a, b] = [rank[i - 1], rank[i]];
    if (crossed(a, b) > crossed(b, a)) [rank[i - 1], rank[i], a.at, b.at] = [b, a, i, i - 1];
  }
}

// Barycentres down and up a few times, keeping the order with the fewest crossings.
function orderRanks(ranks) {
  const number = () => ranks.forEach((rank) => rank.forEach((item, i) => (item.at = i)));
  number();
  let best = { crossings: countCrossings(ranks), order: ranks.map((rank) => [...rank]) };
  for (let sweep = 0; sweep < 8 && best.crossings; sweep++) {
    const side = sweep % 2 ? "down" : "up";
    for (const rank of sweep % 2 ? ranks.toReversed() : ranks) {
      for (const item of rank) item.key = item[side].length ? mean(item[side], (o) => o.at) : item.at;
      rank.sort((a, b) => a.key - b.key).forEach((item, i) => (item.at = i));
    }
    for (const rank of ranks) swapNeighbours(rank);
    const crossings = countCrossings(ranks);
    if (crossings < best.crossings) best = { crossings, order: ranks.map((rank) => [...rank]) };
  }
  best.order.forEach((rank, r) => (ranks[r] = rank));
  number();
}

const rankGap = (a, b) => (a.w + b.w) / 2 + (a.bend || b.bend ? GAP.x * 0.8 : GAP.x);

// The places nearest to the wished ones that keep the order and the distances (isotonic regression).
function settle(items, gap = rankGap) {
  const blocks = [];
  let offset = 0;
  items.forEach((item, i) => {
    if (i) offset += gap(items[i - 1], item);
    item.offset = offset;
    let block = { sum: (item.wish - offset) * item.pull, pull: item.pull, items: [item] };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).pull >= block.sum / block.pull) {
      const last = blocks.pop();
      block = { sum: last.sum + block.sum, pull: last.pull + block.pull, items: [...last.items, ...block.items] };
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const item of block.items) item.x = block.sum / block.pull + item.offset;
}

// Each item between those it is joined to, above and below in turn, then both. Long lines insist on being straight;
// tensors that come from nowhere or lead nowhere have little say.
function placeAcross(ranks) {
  const loose = (item) => item.pill && item.up.length + item.down.length < 2;
  const weight = (a, b) => (a.bend && b.bend ? 8 : a.bend || b.bend ? 2 : loose(a) || loose(b) ? 0.02 : 1);
  for (const rank of ranks) {
    for (const item of rank) (item.wish = 0), (item.pull = 1), (item.x = 0);
    settle(rank);
  }
  for (let sweep = 0; sweep < 24; sweep++) {
    for (const rank of sweep % 2 ? ranks.toReversed() : ranks) {
      for (const item of rank) {
        const others = sweep > 9 ? [...item.up, ...item.down] : sweep % 2 ? item.down : item.up;
        item.pull = sum(others, (o) => weight(item, o)) || 0.001;
        item.wish = others.length ? sum(others, (o) => weight(item, o) * o.x) / item.pull : item.x;
      }
      settle(rank);
    }
  }
}

// One place across for as much of a long line as its neighbours leave room for.
function straighten(bends, ranks) {
  const free = ({ rank, at }) => {
    const [a, b] = [ranks[rank][at - 1], ranks[rank][at + 1]];
    return [a ? a.x + a.w / 2 + GAP.x * 0.6 : -Infinity, b ? b.x - b.w / 2 - GAP.x * 0.6 : Infinity];
  };
  for (let start = 0, end; start < bends.length; start = end) {
    let [low, high] = free(bends[start]);
    for (end = start + 1; end < bends.length; end++) {
      const [l, h] = free(bends[end]);
      if (max(low, l) > min(high, h)) break;
      (low = max(low, l)), (high = min(high, h));
    }
    const run = bends.slice(start, end);
    const x = min(high, max(low, mean(run, (b) => b.x)));
    for (const bend of run) bend.x = x;
  }
}

// Ranks below each other; lines that go far across get more height to do so.
function placeDown(ranks) {
  let [y, gap] = [0, 0];
  for (const rank of ranks) {
    if (!rank.length) continue;
    y += gap;
    const height = max(...rank.map((item) => item.h));
    for (const item of rank) Object.assign(item, { y, bottom: item.bend ? y + height : y + item.h });
    const across = max(0, ...rank.flatMap((a) => a.down.map((b) => abs(a.x - b.x))));
    y += height;
    gap = GAP.y + min(34, across * 0.06);
  }
  return y;
}

// Lines enter and leave a box side by side, straight where they can.
function spreadPorts(lines) {
  const ports = new Map();
  for (const line of lines) {
    const key = line.enters ? "top" : "foot";
    if (!ports.has(line.unit)) ports.set(line.unit, { top: [], foot: [] });
    ports.get(line.unit)[key].push(line);
  }
  for (const [unit, sides] of ports) {
    for (const [side, list] of Object.entries(sides)) {
      const next = (line) => (side === "top" ? line.path.at(-2) : line.path[1]).x;
      list.sort((a, b) => next(a) - next(b));
      const gap = min(22, (unit.w - 36) / list.length);
      const edge = unit.w / 2 - 18;
      const ports = list.map((line) => ({ wish: min(unit.x + edge, max(unit.x - edge, next(line))), pull: 1 }));
      settle(ports, () => gap);
      list.forEach((line, i) => {
        const [low, high] = [unit.x - edge + i * gap, unit.x + edge - (list.length - 1 - i) * gap];
        line.port = min(high, max(low, ports[i].x));
      });
    }
  }
}

function linePoints({ path, port, enters }) {
  const points = [];
  path.forEach((item, i) => {
    const x = item.node ? port : item.x;
    if (i) points.push([x, item.y]);
    if (i < path.length - 1) points.push([x, item.bottom]);
  });
  return points;
}

function layoutPiece(units, pills, boxes) {
  const { ranks, lines, trunks } = buildRanks(units, pills, boxes);
  orderRanks(ranks);
  placeAcross(ranks);
  for (const trunk of trunks) straighten(trunk.slice(1), ranks);
  const h = placeDown(ranks);
  const items = ranks.flat();
  const left = min(...items.map((i) => i.x - i.w / 2));
  const right = max(...items.map((i) => i.x + i.w / 2));
  for (const item of items) item.x -= left;
  spreadPorts(lines);
  for (const line of lines) line.points = linePoints(line);
  return { w: right - left, h, items, lines };
}

function layoutScope(scope, open) {
  const pills = findPills(scope);
  const boxes = scope.kids.map((node) => {
    if (!open.has(node) || !node.kids.length) return { node, ...BOX };
    const inner = layoutScope(node, open);
    return { node, inner, w: max(BOX.w, inner.w + 2 * FRAME.pad), h: inner.h + FRAME.head + FRAME.pad };
  });
  const result = { w: 0, h: 0, boxes: [], pills: [], lines: [] };
  const pieces = findPieces(boxes.length, pills).map((units) => {
    const mine = new Set(units);
    return layoutPiece(units, pills.filter((p) => mine.has(p.source) || p.targets.some((t) => mine.has(t))).map((p) => narrowed(p, mine)), boxes);
  });
  // Separate drawings stand like words on lines.
  let [x, y, tallest] = [0, 0, 0];
  for (const piece of pieces) {
    if (x && x + piece.w > SHELF) (x = 0), (y += tallest + GAP.part), (tallest = 0);
    addPiece(result, piece, x, y);
    result.w = max(result.w, x + piece.w);
    tallest = max(tallest, piece.h);
    x += piece.w + GAP.part;
  }
  result.h = y + tallest;
  return result;
}

// A tensor from outside may feed several pieces: each names it for itself.
function narrowed(pill, mine) {
  return pill.source >= 0 ? pill : { ...pill, targets: pill.targets.filter((t) => mine.has(t)) };
}

function addPiece(result, piece, dx, dy) {
  for (const item of piece.items) {
    const box = Object.assign(item, { x: item.x - item.w / 2 + dx, y: item.y + dy });
    if (item.pill) result.pills.push(box);
    if (!item.node) continue;
    result.boxes.push(box);
    if (item.inner) addScene(result, item.inner, box.x + (box.w - item.inner.w) / 2, box.y + FRAME.head);
  }
  for (const line of piece.lines) {
    const points = line.points.map(([x, y]) => [x + dx, y + dy]);
    const xs = points.map(([x]) => x);
    const bounds = { x: min(...xs), y: points[0][1], w: max(...xs) - min(...xs), h: points.at(-1)[1] - points[0][1] };
    bounds.w ||= 1;
    result.lines.push({ ...line, points, bounds });
  }
}

function addScene(result, scene, dx, dy) {
  for (const item of [...scene.boxes, ...scene.pills, ...scene.lines.map((line) => line.bounds)]) (item.x += dx), (item.y += dy);
  for (const line of scene.lines) for (const point of line.points) (point[0] += dx), (point[1] += dy);
  result.boxes.push(...scene.boxes);
  result.pills.push(...scene.pills);
  result.lines.push(...scene.lines);
}

function layoutFlow(root, open) {
  const scene = layoutScope(root, open);
  const depth = (node) => (node.up ? 1 + depth(node.up) : 0);
  scene.boxes.sort((a, b) => a.node.first.id - b.node.first.id || depth(a.node) - depth(b.node));
  return scene;
}
