// What a reader does: open a recording, look at it, choose a window, and see its answer and the reasons.

const MOST_LANES = 6, MOST_BARS = 8, MOST_PARTS = 500, FAR = 1, SLICE = 25; // widths of the training range, milliseconds
const state = { recording: null, starts: [], answers: [], view: [0, 1], shown: [], start: undefined, at: 0, reasons: [], picked: 0, run: 0 };

// The signals that most comparisons are of, in their order.
function mostAsked() {
  const counts = signals.map(() => 0), [stage] = model.stages;
  for (const input of [...stage.left, ...stage.right]) if (input >= 0) counts[signalOf(input)]++;
  return [...signals.keys()].sort((a, b) => counts[b] - counts[a]).slice(0, MOST_LANES).sort((a, b) => a - b);
}

// ---- recordings ---------------------------------------------------------------------------------------------------

function exampleRecording() {
  const { example } = model.windows;
  if (!example) return madeUp();
  const { said, samples, begins, names } = example;
  return { title: said, samples: samples.map((own) => Int32Array.from(own)), begins, names, nRows: samples[0].length };
}

// Waves between the usual ends of each signal, slow ones and fast ones in turn.
function madeUp() {
  const nRows = 6 * length, samples = signals.map(({ ends: [low, high], scale }, signal) => Int32Array.from({ length: nRows }, (_, t) => {
    const pace = Math.min((2 + (signal % 5)) * 2 ** (2 * Math.floor(t / (2 * length))), length / 4), wave = Math.sin((2 * Math.PI * pace * t) / length);
    return sampleOf((low + high) / 2 + ((high - low) / 2) * wave, scale);
  }));
  return { title: "Waves that are made up, as none of the model's data is here", samples, begins: [0], names: [""], nRows, isMadeUp: true };
}

function say(text, isBad = false) {
  byId("opened").textContent = text;
  byId("opened").classList.toggle("bad", isBad);
}

// As `lutetia predict` warns, of the inputs that tables ask for.
function warn({ windows, input, start, value }, count) {
  if (!windows.size || state.recording.isMadeUp) return byId("warned").replaceChildren();
  const [low, high] = model.windows.trained[input].map(shortNumber), rows = `rows ${start.toLocaleString("en")} to ${(start + length - 1).toLocaleString("en")}`;
  byId("warned").textContent = `${windows.size.toLocaleString("en")} of ${count.toLocaleString("en")} windows lie far outside the training data: ${titleOf(input)} is ${shortNumber(value)} in ${rows}, trained on ${low} to ${high}.`;
}

async function open(file) {
  if (!file) return;
  try {
    if (file.size > LARGEST_FILE) refuse(`the file has ${Math.round(file.size / 2 ** 20).toLocaleString("en")} MB, expected ${LARGEST_FILE / 2 ** 20} at most`);
    const bytes = new Uint8Array(await file.arrayBuffer());
    show(readRecording(bytes, file.name));
    byId("example").hidden = false;
  } catch (error) {
    say(`${file.name}: ${error.message}`, true);
  }
}

// Show a recording, and answer its windows, some at a time.
function show(recording) {
  const starts = startsOf(recording), own = ++state.run, answers = [], far = { windows: new Set(), most: FAR };
  Object.assign(state, { recording, starts, answers, view: [0, recording.nRows], at: 0 });
  const parts = recording.names.length > 1 ? recording.names.slice(0, MOST_PARTS) : [];
  byId("part").parentNode.hidden = !parts.length;
  byId("part").replaceChildren(html("option", {}, "all"), ...parts.map((name) => html("option", {}, name)));
  const more = () => {
    if (own !== state.run) return;
    for (const until = performance.now() + SLICE; answers.length < starts.length && performance.now() < until; ) {
      const start = starts[answers.length], { best, value, ends } = answerOf(inputsAt(recording, start, (input, number) => {
        const most = beyond(input, number);
        if (most > FAR) far.windows.add(start);
        if (most > far.most) Object.assign(far, { most, input, start, value: inUnit(input, number) });
      }));
      answers.push({ start, best, value, ends });
    }
    const count = starts.length === 1 ? "1 window" : `${starts.length.toLocaleString("en")} windows`, isDone = answers.length === starts.length;
    say(`${recording.title}: ${recording.nRows.toLocaleString("en")} rows, ${isDone ? count : `${answers.length.toLocaleString("en")} of ${count} answered`}.`);
    warn(far, starts.length);
    if (!isDone) setTimeout(more);
    listClasses();
    draw();
  };
  choose(0);
  more();
}

// ---- the picture --------------------------------------------------------------------------------------------------

function draw() {
  const { view, recording } = state, width = Math.max(240, byId("chart").clientWidth), span = view[1] - view[0], room = recording.nRows - span;
  byId("chart").replaceChildren(chart(state, width));
  byId("place").parentNode.hidden = room <= 0;
  byId("place").value = room > 0 ? (1000 * view[0]) / room : 0;
  byId("closer").disabled = span <= length;
  byId("wider").disabled = byId("whole").disabled = room <= 0;
  byId("before").disabled = state.at === 0;
  byId("after").disabled = state.at === state.starts.length - 1;
}

function listClasses() {
  const counts = new Map();
  for (const { best } of state.answers) if (best !== undefined) counts.set(best, (counts.get(best) ?? 0) + 1);
  const found = [...counts].sort(([a], [b]) => a - b);
  byId("legend").replaceChildren(...found.map(([best, count]) => html("li", {}, html("span", { className: `swatch ${colourOf(best)}` }), `${className(best)}: ${count.toLocaleString("en")} window${count > 1 ? "s" : ""}`)));
}

// Look at so many rows from one on, as far as there are.
function look(from, span) {
  const { nRows } = state.recording, wide = Math.round(Math.min(nRows, Math.max(length, span))), first = Math.round(Math.min(Math.max(0, from), nRows - wide));
  state.view = [first, first + wide];
  draw();
}

function zoom(times) {
  const span = (state.view[1] - state.view[0]) * times;
  look(state.start + (length - span) / 2, span);
}

// ---- a window -----------------------------------------------------------------------------------------------------

function choose(number) {
  const { recording, starts } = state, at = Math.min(Math.max(0, number), starts.length - 1), start = starts[at], inputs = inputsAt(recording, start);
  const answer = answerOf(inputs), name = recording.names[recording.begins.findLastIndex((begin) => begin <= start)];
  Object.assign(state, { at, start, reasons: windowReasons(inputs).slice(0, MOST_REASONS) });
  byId("which").textContent = `Window ${at.toLocaleString("en")}: rows ${start.toLocaleString("en")} to ${(start + length - 1).toLocaleString("en")}${name ? `, in ${name}` : ""}`;
  if (answer.best === undefined) {
    const [low, high] = answer.ends.map(shortNumber), unit = model.windows.unit ? ` ${model.windows.unit}` : "";
    byId("answer").textContent = shortNumber(answer.value) + unit;
    byId("interval").textContent = low === undefined ? "" : `${low} to ${high}${unit} in 9 of 10 cases`;
  } else {
    const order = [...answer.chances.keys()].sort((a, b) => answer.chances[b] - answer.chances[a]);
    const bars = order.slice(0, MOST_BARS).map((c) => bar(className(c), 100 * answer.chances[c], percent(answer.chances[c]), c === answer.best));
    byId("answer").textContent = className(answer.best);
    byId("scores").replaceChildren(...bars, ...(order.length > MOST_BARS ? [html("li", {}, html("span", {}, `and ${order.length - MOST_BARS} more`))] : []));
  }
  const [from, to] = state.view;
  if (start < from || start + length > to) look(start + length / 2 - (to - from) / 2, to - from);
  else draw();
  listReasons();
}

function listReasons() {
  const { reasons, recording, start } = state, most = Math.max(...reasons.map(({ effect }) => Math.abs(effect)), 1e-300);
  byId("loud").replaceChildren(...reasons.map((each, at) => {
    const text = reasonText(each, recording, start);
    const button = html("button", { type: "button", title: text }, html("span", {}, text), effectBar(each.effect, most), html("span", {}, told(each.effect, { maximumSignificantDigits: 3 })));
    button.addEventListener("click", () => pick(at));
    return html("li", {}, button);
  }));
  byId("quiet").hidden = reasons.length > 0;
  pick(0);
}

// Mark what a reason looks at.
function pick(at) {
  const { reasons, recording, start } = state;
  state.picked = at;
  byId("loud").querySelectorAll("button").forEach((button, number) => button.setAttribute("aria-pressed", String(number === at)));
  const inputs = reasons[at] ? [reasons[at].left, reasons[at].right].filter((input) => input >= 0) : [];
  byId("looked").textContent = inputs.map((input) => `${titleOf(input)} is ${shortNumber(valueOf(recording, start, input))} here`).join(", ");
  byId("detail").replaceChildren(...(reasons[at] ? [detail(recording, start, reasons[at], Math.max(200, byId("detail").clientWidth))] : []));
}

// The window whose middle is nearest to a row.
function nearestTo(row) {
  const { starts } = state;
  let low = 0, high = starts.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (Math.abs(starts[middle] + length / 2 - row) <= Math.abs(starts[middle + 1] + length / 2 - row)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// ---- what is pressed ----------------------------------------------------------------------------------------------

const PRESSED = {
  before: () => choose(state.at - 1),
  after: () => choose(state.at + 1),
  closer: () => zoom(0.5),
  wider: () => zoom(2),
  whole: () => look(0, state.recording.nRows),
};
const KEYS = { ArrowLeft: "before", ArrowRight: "after", "+": "closer", "-": "wider", 0: "whole" };

function listen() {
  for (const [name, press] of Object.entries(PRESSED)) byId(name).addEventListener("click", press);
  byId("chart").addEventListener("click", ({ clientX }) => {
    const { left, width } = byId("chart").firstChild.getBoundingClientRect(), [from, to] = state.view;
    choose(nearestTo(from + ((clientX - left) / width) * (to - from)));
  });
  byId("chart").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    if (!byId(KEYS[event.key]).disabled) PRESSED[KEYS[event.key]]();
  });
  byId("place").addEventListener("input", ({ target }) => {
    const span = state.view[1] - state.view[0];
    look(((state.recording.nRows - span) * target.valueAsNumber) / 1000, span);
  });
  byId("part").addEventListener("change", ({ target }) => {
    const { begins, nRows } = state.recording, at = target.selectedIndex - 1, begin = begins[at] ?? 0, first = state.starts.findIndex((start) => start >= begin);
    look(begin, at < 0 ? nRows : (begins[at + 1] ?? nRows) - begin);
    if (at >= 0 && first >= 0) choose(first);
  });
  byId("file").addEventListener("change", ({ target }) => open(target.files[0]));
  byId("example").addEventListener("click", () => {
    byId("file").value = "";
    byId("example").hidden = true;
    show(exampleRecording());
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    open(event.dataTransfer.files[0]);
  });
  let wide = 0;
  new ResizeObserver(() => {
    if (byId("chart").clientWidth === wide) return;
    wide = byId("chart").clientWidth;
    draw();
    pick(state.picked);
  }).observe(byId("chart"));
}

function listLanes() {
  const tell = () => (byId("shown").textContent = `Signals that are drawn: ${state.shown.length} of ${signals.length}`);
  byId("lanes").replaceChildren(...signals.map(({ name }, signal) => {
    const input = html("input", { type: "checkbox", checked: state.shown.includes(signal) });
    input.addEventListener("change", () => {
      state.shown = [...signals.keys()].filter((each) => (each === signal ? input.checked : state.shown.includes(each)));
      tell();
      draw();
    });
    return html("li", {}, html("label", {}, input, name));
  }));
  byId("lanes").parentNode.hidden = signals.length < 2;
  tell();
}

state.shown = mostAsked();
listLanes();
listen();
show(exampleRecording());
