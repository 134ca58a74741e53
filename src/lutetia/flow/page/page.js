// Everything together: totals, selection, keys, pointers, theme.

const flow = readFlow(JSON.parse(byId("flow").textContent));
const root = foldFlow(flow.steps);
// Finds what had the focus before the panel opened.
let cameFrom = null;

function showTotals() {
  const leaves = flow.steps.filter((step) => !step.children.length);
  const timed = flow.steps.filter((step) => !step.parent && step.duration !== null);
  const devices = [...new Set(flow.steps.map((step) => step.device))];
  const totals = [
    ["Steps", flow.steps.length.toLocaleString("en")],
    ["Bytes read and written", showBytes(sum(leaves, (step) => step.bytes))],
    ["Total time", timed.length ? showTime(sum(timed, (step) => step.duration)) : "not timed"],
    [devices.length === 1 ? "Device" : "Devices", devices.join(", ") || "none"],
  ];
  const failed = flow.steps.filter((step) => step.failed).length;
  if (failed) totals.push(["Failed", String(failed)]);
  byId("totals").replaceChildren(...totals.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
  const parts = [...new Set(flow.steps.map((step) => step.part))];
  const keys = parts.map((part) => [`dot ${partClass(part)}`, part]);
  if (keys.length) keys.push(["key", "tensor"], ["key dashed", "from or to elsewhere"]);
  byId("legend").replaceChildren(...keys.map(([className, text]) => html("li", {}, html("span", { className }), text)));
}

function rememberFocus() {
  const active = document.activeElement;
  if (active.item) cameFrom = () => picture.drawn.get(active.item);
  else if (tbody.contains(active)) cameFrom = () => tbody.querySelector("[tabindex='0']");
  else cameFrom = () => active;
}

function select(step, event, centred = true) {
  const pressed = event.currentTarget;
  const inPanel = panel.contains(pressed);
  if (panel.hidden) rememberFocus();
  picture.selected = step;
  panel.hidden = false;
  openTo(step);
  fillPanel(step, select, closePanel);
  listStep(step);
  resized();
  draw();
  bringIn(shownNode(step), centred);
  // After a key, or a press within the panel, the focus goes to the panel: to the same button if it is still there.
  if (inPanel || !event.detail) (panel.querySelector(`#${pressed.id || "panel-name"}:enabled`) ?? byId("panel-name")).focus();
}

function closePanel() {
  if (panel.hidden) return;
  const focusInside = panel.contains(document.activeElement);
  panel.hidden = true;
  picture.selected = null;
  drawList();
  resized();
  draw();
  if (focusInside) (cameFrom() ?? canvas).focus({ preventScroll: true });
}

// A step is chosen; a group, which is nothing but its steps, opens or folds.
function press(node, event, onChevron) {
  if (!node.step || onChevron) {
    toggle(node);
    draw();
    if (picture.open.has(node)) showFrame(node);
    else bringIn(node);
  } else select(node.step, event, false);
}

const PAN = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
const KEYS = { "+": () => zoomBy(1.25), "=": () => zoomBy(1.25), "-": () => zoomBy(0.8), 0: fit };

function startKeys() {
  on(canvas, "keydown", (event) => {
    const node = event.target.item;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (PAN[event.key]) panBy(...PAN[event.key]);
    else if (KEYS[event.key]) KEYS[event.key]();
    else if (node && event.key === "Enter") press(node, event);
    else if (node && event.key === " ") press(node, event, node.kids.length > 0);
    else return;
    event.preventDefault();
  });
  on(canvas, "focusin", ({ target }) => {
    if (!target.item || picture.returning || !target.matches(":focus-visible")) return;
    bringIn(target.item);
    redraw();
  });
  on(document, "keydown", ({ key }) => key === "Escape" && closePanel());
}

// One finger or the mouse pans, two fingers zoom; a press that does not move is a click.
function startPointers() {
  const down = new Map();
  let moved = false;
  const at = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  const spread = ([a, b]) => hypot(a[0] - b[0], a[1] - b[1]);
  on(canvas, "pointerdown", (event) => {
    if (event.button) return;
    if (!down.size) moved = false;
    down.set(event.pointerId, at(event));
  });
  on(canvas, "pointermove", (event) => {
    if (!down.has(event.pointerId)) return hover(at(event), event.target);
    const before = [...down.values()];
    const now = at(event);
    const [x, y] = down.get(event.pointerId);
    if (!moved && hypot(now[0] - x, now[1] - y) < 5) return;
    moved = true;
    canvas.setPointerCapture(event.pointerId);
    hover(null);
    down.set(event.pointerId, now);
    const after = [...down.values()];
    if (after.length === 1) return panBy(now[0] - x, now[1] - y);
    panBy((now[0] - x) / 2, (now[1] - y) / 2);
    zoomBy(spread(after) / (spread(before) || 1), [(after[0][0] + after[1][0]) / 2, (after[0][1] + after[1][1]) / 2]);
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) on(canvas, name, (event) => {
    if (name !== "pointerleave" || !canvas.hasPointerCapture(event.pointerId)) down.delete(event.pointerId);
    if (name === "pointerleave") hover(null);
  });
  on(canvas, "click", (event) => {
    const box = event.target.closest(".box");
    if (moved || !box) return;
    const onChevron = event.detail && event.clientX - box.getBoundingClientRect().left < 30 * picture.view.k;
    press(box.item, event, onChevron && box.item.kids.length > 0);
  });
  on(canvas, "wheel", (event) => {
    event.preventDefault();
    zoomBy(exp(-event.deltaY * (event.deltaMode ? 0.05 : event.ctrlKey ? 0.01 : 0.0016)), at(event));
  }, { passive: false });
}

function hover(point, target) {
  const tip = byId("tip");
  const { view, scene } = picture;
  const [x, y] = point ? [(point[0] - view.x) / view.k, (point[1] - view.y) / view.k] : [];
  const pill = point && scene.pills.find((p) => x > p.x && x < p.x + p.w && y > p.y && y < p.y + p.h);
  const node = (point && target.closest(".box")?.item) ?? null;
  if (node !== picture.hovered) (picture.hovered = node), redraw();
  tip.hidden = !pill;
  if (!pill) return;
  tip.replaceChildren(...tipLines(pill));
  tip.style.left = `${max(8, min(point[0] + 14, canvas.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${max(8, min(point[1] + 18, canvas.clientHeight - tip.offsetHeight - 8))}px`;
}

function tipLines({ pill }) {
  const called = (steps, none) => [...steps].slice(0, 3).map((s) => `${s.name} #${s.id}`).join(", ") + (steps.size > 3 ? ", …" : "") || none;
  return pill.values.slice(0, 6).flatMap(({ tensor, maker, users }) => [
    html("div", {}, html("strong", {}, tensor.name), ` ${showKind(tensor)} · ${showBytes(tensor.bytes)}`),
    html("div", { className: "small" }, `${called(new Set(maker && [maker]), "outside")} → ${called(users, "not used again")}`),
  ]);
}

function startButtons() {
  on(byId("zoom-in"), "click", () => zoomBy(1.25));
  on(byId("zoom-out"), "click", () => zoomBy(0.8));
  on(byId("zoom-fit"), "click", fit);
  on(byId("fold-all"), "click", () => {
    picture.open = firstOpen(root);
    arrange();
    firstView();
  });
  on(byId("theme"), "click", () => {
    const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
  for (const view of ["picture", "list"]) on(byId(`show-${view}`), "click", () => {
    document.body.dataset.view = view;
    for (const other of ["picture", "list"]) byId(`show-${other}`).setAttribute("aria-pressed", other === view);
    drawList();
    redraw();
  });
}

showTotals();
startButtons();
startKeys();
if (flow.steps.length) {
  picture.open = firstOpen(root);
  byId("fold-all").hidden = !root.folding;
  arrange();
  firstView();
  startPointers();
  new ResizeObserver(resized).observe(canvas);
} else byId("empty").hidden = false;
startList(select);
