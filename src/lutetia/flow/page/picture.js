// The picture: draws what the window shows of the scene, and nothing else.

const SVG = "http://www.w3.org/2000/svg";
// Elements a detailed drawing may take; beyond, or when small, boxes keep only their name and tensors lose it.
const BUDGET = 520;
// Boxes drawn as elements at all; the rest become one path.
const MOST_BOXES = 150;

function svg(tag, attributes = {}, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const canvas = byId("canvas");
const world = canvas.appendChild(svg("g"));
const layers = {};
for (const name of ["frames", "lines", "overwrites", "heads", "pills", "away", "crowd", "lit", "lit-heads", "lit-pills"])
  layers[name] = world.appendChild(svg("path", { class: name, d: "" }));
const labels = world.appendChild(svg("g", { class: "labels", "aria-hidden": "true" }));
const boxLayer = world.appendChild(svg("g"));

// The state: boxOf finds a node's box in the scene and drawn its element; selected is a step, hovered a node;
// matches holds the steps that the filter found; again is what set the view, while nobody has moved it since.
const picture = {
  scene: { boxes: [], pills: [], lines: [], w: 0, h: 0 },
  boxOf: new Map(),
  drawn: new Map(),
  open: new Set(),
  view: { x: 0, y: 0, k: 1 },
  selected: null,
  hovered: null,
  matches: null,
  again: null,
  size: null,
};

function arrange() {
  picture.scene = layoutFlow(root, picture.open);
  picture.boxOf = new Map(picture.scene.boxes.map((box) => [box.node, box]));
  for (const element of picture.drawn.values()) element.dataset.old = "1";
  redraw();
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function windowSize() {
  return { w: canvas.clientWidth || 1, h: canvas.clientHeight || 1 };
}

const joined = (list, path) => list.map(path).join("");

function draw() {
  const { scene, view } = picture;
  const { w, h } = windowSize();
  world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
  let dot = 24 * view.k;
  while (dot < 16) dot *= 2;
  Object.assign(canvas.style, { backgroundSize: `${dot}px ${dot}px`, backgroundPosition: `${view.x}px ${view.y}px` });
  const [left, top, right, bottom] = [-view.x, -view.y, w - view.x, h - view.y].map((edge) => edge / view.k);
  const inView = (item) => item.x < right && item.x + item.w > left && item.y < bottom && item.y + item.h > top;
  const boxes = scene.boxes.filter(inView);
  const pills = scene.pills.filter(inView);
  const lines = scene.lines.filter((line) => inView(line.bounds));
  const plain = view.k < 0.4 || sum(boxes, (b) => (b.node.kids.length ? 7 : 4)) + 2 * pills.length > BUDGET;
  drawBoxes(boxes.slice(0, MOST_BOXES), plain);
  sync(labels, new Map([...labels.children].map((e) => [e.item, e])), plain ? [] : pills, (pill) => pill, makeLabel);
  const away = (p) => p.again || p.pill.away;
  const paths = {
    frames: joined(boxes.filter((b) => b.inner), framePath),
    lines: joined(lines.filter((l) => !l.inPlace), linePath),
    overwrites: joined(lines.filter((l) => l.inPlace), linePath),
    heads: joined(lines.filter((l) => l.enters), headPath),
    pills: joined(pills.filter((p) => !away(p)), pillPath),
    away: joined(pills.filter(away), pillPath),
    crowd: joined(boxes.slice(MOST_BOXES).filter((b) => !b.inner), framePath),
    ...litPaths(),
  };
  for (const [name, d] of Object.entries(paths)) layers[name].setAttribute("d", d);
}

function roundRect({ x, y, w, h }, r) {
  const arc = (dx, dy) => `a${r} ${r} 0 0 1 ${dx} ${dy}`;
  return `M${x + r} ${y}h${w - 2 * r}${arc(r, r)}v${h - 2 * r}${arc(-r, r)}h${2 * r - w}${arc(-r, -r)}v${2 * r - h}${arc(r, -r)}z`;
}

const framePath = (box) => roundRect(box, 14);
const pillPath = (pill) => roundRect(pill, PILL_H / 2);

function curve([x, y], [u, v]) {
  return x === u ? `V${v}` : `C${x} ${(y + v) / 2} ${u} ${(y + v) / 2} ${u} ${v}`;
}

function linePath({ points, enters }) {
  const last = points.length - 1;
  // The line ends under its head.
  const to = (i) => (enters && i === last ? [points[i][0], points[i][1] - 6] : points[i]);
  return `M${points[0]}${joined(points.slice(1), (_, i) => curve(points[i], to(i + 1)))}`;
}

function headPath({ points }) {
  const [x, y] = points.at(-1);
  return `M${x} ${y - 1}l-4.5 -8h9z`;
}

// What belongs to the step under the pointer or selected: its tensors, and the lines to where they come from and go.
function litPaths() {
  const [lit, pills, jumps] = [new Set(), new Set(), new Set()];
  const nodes = [picture.hovered, picture.selected && shownNode(picture.selected)];
  const pillOf = (line) => (line.enters ? line.path[0] : line.path.at(-1));
  for (const line of picture.scene.lines) {
    if (!nodes.includes(line.unit.node)) continue;
    for (const other of picture.scene.lines) {
      if (other !== line && (other.pill !== line.pill || other.enters === line.enters)) continue;
      const pill = pillOf(other);
      lit.add(other);
      pills.add(pill);
      if (pill.origin) jumps.add(pill), pills.add(pill.origin);
    }
  }
  const jump = ({ origin, x, y, w }) => {
    const from = [origin.x + origin.w / 2, origin.y + origin.h];
    return `M${from}${curve(from, [x + w / 2, y])}`;
  };
  return {
    lit: joined([...lit], linePath) + joined([...jumps], jump),
    "lit-heads": joined([...lit].filter((l) => l.enters), headPath),
    "lit-pills": joined([...pills], pillPath),
  };
}

// Brings children into line with the items, in order, touching only what changed (focus survives).
function sync(parent, old, items, key, make) {
  const keep = new Map();
  for (const item of items) keep.set(key(item), item);
  for (const [k, element] of old) if (!keep.has(k) || element.dataset.old) element.remove(), old.delete(k);
  let next = parent.firstChild;
  for (const item of items) {
    let element = old.get(key(item));
    if (!element) {
      element = make(item);
      element.item = key(item);
      old.set(key(item), element);
    }
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
}

function makeLabel({ pill, x, y }) {
  const text = svg("text", { x: x + 11, y: y + 17.5 }, pill.name);
  text.append(svg("tspan", { dx: 8 }, pill.detail));
  return text;
}

function drawBoxes(boxes, plain) {
  const { scene, drawn } = picture;
  const focused = document.activeElement?.item;
  // The focused box and one further on either side, so that Tab goes on beyond the window.
  const some = new Set(boxes);
  for (const box of [boxes[0], boxes.at(-1), picture.boxOf.get(focused)]) {
    const i = scene.boxes.indexOf(box);
    for (const near of scene.boxes.slice(max(0, i - 1), i + 2)) some.add(near);
  }
  const list = scene.boxes.filter((box) => some.has(box));
  for (const element of drawn.values()) if (element.plain !== plain) element.dataset.old = "1";
  const back = drawn.get(focused)?.dataset.old ? focused : null;
  sync(boxLayer, drawn, list, (box) => box.node, (box) => makeBox(box, plain));
  const current = picture.selected && shownNode(picture.selected);
  for (const box of list) {
    const element = drawn.get(box.node);
    element.classList.toggle("selected", box.node === current);
    element.classList.toggle("dim", Boolean(picture.matches) && !hasMatch(box.node));
  }
  // The focus goes back to where it was: no reason to move the view.
  picture.returning = true;
  if (back) drawn.get(back)?.focus({ preventScroll: true });
  picture.returning = false;
}

function hasMatch(node) {
  for (const step of stepsOf(node)) if (picture.matches.has(step)) return true;
  return false;
}

function boxMeta({ kind, count, duration, bytes, period, failed }) {
  const parts = [showTime(duration), showBytes(bytes)];
  if (kind === "repeat" && period > 1) parts.unshift(`${period} steps each`);
  else if (kind !== "step" && kind !== "repeat") parts.unshift(showCount(count, "step"));
  if (failed) parts.unshift("failed");
  return parts.join(" · ");
}

function makeBox(box, plain) {
  const { node, w, h, inner } = box;
  const group = node.kids.length > 0;
  const g = svg("g", { class: `box ${partClass(node.part)}`, role: "button", tabindex: 0, transform: `translate(${box.x} ${box.y})` });
  g.plain = plain;
  if (node.failed) g.classList.add("failed");
  if (group) g.setAttribute("aria-expanded", Boolean(inner));
  const badge = node.kind === "repeat" ? `× ${node.times}` : "";
  g.setAttribute("aria-label", [node.label, boxMeta(node), badge, node.step ? `step ${node.step.id}` : ""].join(" "));
  if (group && !inner && !plain) g.append(svg("rect", { class: "stack", x: 5, y: 5, width: w, height: h, rx: 10 }));
  g.append(svg("rect", { width: w, height: inner ? FRAME.head - 2 : h, rx: inner ? 13 : 10 }));
  if (inner) g.classList.add("open");
  const left = group ? 32 : 14;
  const room = w - left - 14 - (badge ? textWidth(badge, FONT.name) + 12 : 0);
  // A name a little too long is set a little closer; a longer one is cut.
  const name = fitText(node.label, inner ? 420 : room * 1.15, FONT.name);
  const close = !inner && textWidth(name, FONT.name) > room ? { textLength: room, lengthAdjust: "spacingAndGlyphs" } : {};
  g.append(svg("text", { class: "name", x: left, y: inner ? 23 : plain ? 36 : 25, ...close }, name));
  if (plain) return g;
  if (!inner) g.append(" ", svg("text", { class: "meta", x: left, y: 45 }, fitText(boxMeta(node), w - left - 14, FONT.small)));
  const end = inner ? { x: left + textWidth(name, FONT.name) + 12, y: 23 } : { x: w - 14, y: 25, "text-anchor": "end" };
  if (badge) g.append(" ", svg("text", { class: "badge", ...end }, badge));
  if (group) g.append(svg("path", { class: "chevron", d: inner ? "M13 16.5l4.5 4.5l4.5 -4.5" : "M15 16l4.5 4.5l-4.5 4.5" }));
  return g;
}

// The box that stands for a step: its own, or that of the folded node it is in.
function shownNode(step) {
  let node = step.node;
  while (node && !picture.boxOf.has(node)) node = node.up;
  return node;
}

function openTo(step) {
  let changed = false;
  for (let node = step.node.up; node && node !== root; node = node.up) {
    if (!picture.open.has(node)) changed = true;
    picture.open.add(node);
  }
  if (changed) arrange();
}

// Opens or folds a node; its head stays where it is in the window.
function toggle(node) {
  const { x, y } = picture.boxOf.get(node);
  toggleNode(picture.open, node);
  arrange();
  const after = picture.boxOf.get(node);
  panBy((x - after.x) * picture.view.k, (y - after.y) * picture.view.k);
}

const still = matchMedia("(prefers-reduced-motion: reduce)");
let flight = 0;

function moveTo(x, y, k = picture.view.k) {
  picture.again = null;
  const from = { ...picture.view };
  const mine = ++flight;
  const begin = performance.now();
  const frame = (now) => {
    if (mine !== flight) return;
    const t = still.matches ? 1 : min(1, max(0, now - begin) / 180);
    const s = 1 - (1 - t) ** 3;
    picture.view = { x: from.x + (x - from.x) * s, y: from.y + (y - from.y) * s, k: from.k + (k - from.k) * s };
    draw();
    if (t < 1) requestAnimationFrame(frame);
  };
  frame(begin);
}

function zoomBy(factor, at) {
  flight++;
  picture.again = null;
  const { view } = picture;
  const { w, h } = windowSize();
  const [x, y] = at ?? [w / 2, h / 2];
  const k = min(2.5, max(0.03, view.k * factor));
  picture.view = { x: x - ((x - view.x) * k) / view.k, y: y - ((y - view.y) * k) / view.k, k };
  redraw();
}

function panBy(dx, dy) {
  flight++;
  picture.again = null;
  picture.view.x += dx;
  picture.view.y += dy;
  redraw();
}

function fit() {
  const { w, h } = windowSize();
  const { scene } = picture;
  const k = min(1.15, max(0.03, min((w - 48) / scene.w, (h - 96) / scene.h)));
  moveTo((w - scene.w * k) / 2, (h - scene.h * k) / 2, k);
  picture.again = fit;
}

// The first sight: all of it when it stays readable, otherwise the beginning.
function firstView() {
  const { w, h } = windowSize();
  const { scene } = picture;
  const whole = min((w - 48) / scene.w, (h - 96) / scene.h);
  const k = whole > 0.5 ? min(1, whole) : min(1, max(0.6, (w - 48) / scene.w));
  const top = scene.boxes[0];
  const x = scene.w * k <= w ? (w - scene.w * k) / 2 : w / 2 - (top.x + min(top.w, w / k) / 2) * k;
  picture.view = { x, y: whole > 0.5 ? (h - scene.h * k) / 2 : 28, k };
  picture.again = firstView;
  draw();
}

function resized() {
  const size = windowSize();
  const old = picture.size ?? size;
  picture.size = size;
  if (size.w === old.w && size.h === old.h) return;
  if (picture.again) picture.again();
  else panBy((size.w - old.w) / 2, (size.h - old.h) / 2);
}

// Shows an open node from its head down, as wide as stays readable.
function showFrame(node) {
  const { w } = windowSize();
  const box = picture.boxOf.get(node);
  const k = min(picture.view.k, max(0.6, (w - 48) / box.w));
  moveTo(max(24, (w - box.w * k) / 2) - box.x * k, 92 * k - box.y * k, k);
}

// Brings a node's box into the window with the least movement, or to its middle.
function bringIn(node, centred) {
  const box = picture.boxOf.get(node);
  if (!box) return;
  const { w, h } = windowSize();
  const { view } = picture;
  const k = centred ? max(view.k, 0.6) : view.k;
  const bw = min(box.w * k, w);
  const bh = min((box.inner ? FRAME.head : box.h) * k, h);
  if (centred) return moveTo(w / 2 - box.x * k - bw / 2, h / 2 - box.y * k - bh / 2, k);
  const clamp = (value, size, room) => min(max(value, 40), max(40, room - size - 40));
  const [left, top] = [view.x + box.x * k, view.y + box.y * k];
  const [x, y] = [clamp(left, bw, w), clamp(top, bh, h)];
  if (x !== left || y !== top) moveTo(view.x + x - left, view.y + y - top, k);
}
