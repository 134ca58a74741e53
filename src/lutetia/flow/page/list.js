// The list of all steps: the same flow as a table. Only the rows in the window exist.

const ROW = 34;
const scroller = byId("rows");
const tbody = scroller.querySelector("tbody");
const filterBox = byId("filter");
const list = { steps: [], sort: "id", rising: true, active: 0, drawn: "" };

function matchesWords(step, words) {
  step.text ??= [step.name, step.part, step.device, step.failed ? "failed" : "", ...[...step.inputs, ...step.outputs].map((t) => t.name)]
    .join("\n").toLowerCase();
  return words.every((word) => step.text.includes(word));
}

function fillList() {
  const words = filterBox.value.toLowerCase().split(/\s+/).filter(Boolean);
  const { sort, rising } = list;
  list.steps = flow.steps.filter((step) => matchesWords(step, words));
  const key = (step) => step[sort] ?? -1;
  list.steps.sort((a, b) => (rising ? 1 : -1) * (key(a) - key(b)) || a.id - b.id);
  list.active = 0;
  const all = flow.steps.length;
  const text = words.length ? `${list.steps.length.toLocaleString("en")} of ${showCount(all, "step")}` : showCount(all, "step");
  byId("found").textContent = text;
  for (const head of scroller.querySelectorAll("th")) {
    if (head.firstChild.dataset?.sort === sort) head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  scroller.querySelector("table").setAttribute("aria-rowcount", list.steps.length + 1);
  scroller.scrollTop = 0;
  picture.matches = words.length ? new Set(list.steps) : null;
  list.drawn = "";
  drawList();
  redraw();
}

function drawList() {
  const first = max(0, floor(scroller.scrollTop / ROW) - 6);
  const last = min(list.steps.length, ceil((scroller.scrollTop + scroller.clientHeight) / ROW) + 6);
  const state = [first, last, list.active, picture.selected?.id].join();
  if (state === list.drawn) return;
  list.drawn = state;
  const focused = tbody.contains(document.activeElement);
  const rows = list.steps.slice(first, last).map((step, i) => makeRow(step, first + i));
  tbody.replaceChildren(spacer(first), ...rows, spacer(list.steps.length - last));
  if (focused) tbody.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}

function spacer(rows) {
  const row = html("tr", { hidden: !rows, ariaHidden: "true" });
  row.style.height = `${rows * ROW}px`;
  return row;
}

const longest = () => (list.longest ??= flow.steps.reduce((most, s) => max(most, s.duration ?? 0), 0) || 1);

function makeRow(step, at) {
  const selected = step === picture.selected;
  const button = html("button", { type: "button", className: "step", tabIndex: at === list.active ? 0 : -1, title: step.name }, step.name);
  if (selected) button.setAttribute("aria-current", "true");
  if (list.sort === "id") button.style.paddingInlineStart = `${min(step.depth, 6) * 14}px`;
  const time = html("td", { className: "number time" }, step.duration === null ? "–" : showTime(step.duration));
  time.style.setProperty("--share", (step.duration ?? 0) / longest());
  const name = html("td", {}, html("span", { className: `dot ${partClass(step.part)}`, title: step.part }), button);
  if (step.failed) name.append(html("span", { className: "flag" }, "failed"));
  const row = html("tr", { className: selected ? "selected" : "" }, html("td", { className: "number" }, String(step.id)), name, time,
    html("td", { className: "number" }, showBytes(step.bytes)));
  row.setAttribute("aria-rowindex", at + 2);
  row.step = step;
  return row;
}

function activate(at) {
  list.active = min(max(at, 0), list.steps.length - 1);
  const top = list.active * ROW;
  const room = scroller.clientHeight - 2 * ROW;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
  drawList();
}

// Shows a step's row when it is listed.
function listStep(step) {
  const at = list.steps.indexOf(step);
  if (at >= 0) activate(at);
  drawList();
}

function startList(choose) {
  let frame = 0;
  const later = () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(drawList);
  };
  on(scroller, "scroll", later, { passive: true });
  new ResizeObserver(later).observe(scroller);
  on(filterBox, "input", fillList);
  on(scroller.querySelector("thead"), "click", ({ target }) => {
    const { sort } = target.dataset;
    if (!sort) return;
    // Order starts with the first, time and bytes with the largest.
    list.rising = sort === list.sort ? !list.rising : sort === "id";
    list.sort = sort;
    fillList();
  });
  on(tbody, "click", (event) => {
    const row = event.target.closest("tr");
    if (row?.step) choose(row.step, event);
  });
  on(tbody, "keydown", (event) => {
    const page = max(1, floor(scroller.clientHeight / ROW) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    activate(list.active + moves[event.key]);
    tbody.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  });
  fillList();
}
