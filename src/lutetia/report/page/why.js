// Why it decided: pick an input, choose a rule, point at a detector.

const why = { item: 0, rule: 0, detector: 0, preview: null };

function buildWhy(place) {
  const { shape, items, labels, rules } = story.why;
  why.flat = shape.length === 1;
  why.canvas = html("canvas", { role: "img" });
  why.overlay = svg("svg", { "aria-hidden": "true" });
  why.about = html("p", { className: "small" });
  why.side = html("div");
  why.scores = html("ul", { className: "bars" });
  why.detail = html("div");
  why.features = html("ul", { className: "bars features" });
  const thumbs = items.map((item) => ({ item, canvas: html("canvas", { "aria-hidden": "true" }) }));
  const choices = thumbs.map(({ item, canvas }, at) => {
    const read = labels[item.prediction];
    const wrong = item.label !== null && item.label !== item.prediction;
    const caption = wrong ? html("span", { className: "wrong" }, `${read}, not ${labels[item.label]}`) : html("span", {}, read);
    return { title: `input ${at + 1}, read as ${caption.textContent}`, content: why.flat ? [caption] : [canvas, caption] };
  });
  const pickItem = (at) => Object.assign(why, { item: at, detector: 0, preview: null }) && drawWhy();
  const modes = [["input", "The input alone."], ...rules];
  why.modes = modes;
  why.rule = min(1, modes.length - 1);
  const segments = radios("rule", "Rule", modes.map(([name]) => ({ title: name, content: [name] })), why.rule, (at) => {
    why.rule = at;
    drawWhy();
  }, "segments");
  const scale = html("p", { className: "scale" }, "against", html("i"), "for");
  const picture = why.flat ? why.features : html("div", { className: "picture" }, why.canvas, why.overlay);
  const scores = [html("h3", { className: "sub" }, "Lead of each class: its score less the mean"), why.scores];
  const look = html("div", {}, segments, picture, scale, why.about, ...scores);
  if (items.length > 1) place.append(radios("item", "Input", choices, 0, pickItem, "picker"));
  place.append(html("div", { className: "looking" }, look, why.side, why.detail));
  const all = () => {
    for (const { item, canvas } of thumbs) if (!why.flat) paint(canvas, shape, item.values);
    drawWhy();
  };
  repaints.push(all);
  all();
}

function drawWhy() {
  const { shape, items, labels } = story.why;
  const item = items[why.item];
  const [name, about] = why.modes[why.rule];
  const heat = item.heat[name];
  why.about.textContent = about;
  if (!why.flat) {
    paint(why.canvas, shape, item.values, heat);
    why.canvas.setAttribute("aria-label", `input ${why.item + 1}, ${name}${heat ? ` heat map for ${labels[item.target]}` : ""}`);
  }
  drawSide(item);
  drawDetector();
}

function drawSide(item) {
  const { labels } = story.why;
  const known = item.label === null ? "" : item.label === item.prediction ? "which is right" : `but it is ${labels[item.label]}`;
  const other = item.target === item.prediction ? "" : `explained: ${labels[item.target]}`;
  const verdict = html("h3", { className: "verdict" }, `Read as ${labels[item.prediction]}`);
  const note = [known, other].filter(Boolean).join("; ");
  if (note) verdict.append(html("small", {}, note));
  const mean = item.scores.reduce((total, score) => total + score, 0) / item.scores.length;
  const leads = item.scores.map((score) => score - mean);
  const order = leads.map((_, at) => at);
  if (order.length > 12) order.sort((a, b) => leads[b] - leads[a]).splice(12);
  const bars = order.map((at) => barItem(labels[at], leads[at], largest(leads), true, at === item.target ? "target" : ""));
  why.scores.replaceChildren(...bars);
  const parts = [verdict];
  why.buttons = [];
  if (item.detectors.length) {
    const list = html("ul", { className: "detectors" });
    const top = largest(item.detectors.map((each) => each.contribution));
    item.detectors.forEach((each, at) => list.append(html("li", {}, detectorButton(each, at, top))));
    parts.push(html("h3", { className: "sub" }, "Detectors that counted most"), list);
  }
  why.side.replaceChildren(...parts);
}

function detectorButton(detector, at, most) {
  const { number, bits, contribution } = detector;
  const [label, bar, value] = barItem(`#${number}`, contribution, most, true).children;
  const name = `detector ${number}, answers ${bits.join("")}, contribution ${show(contribution)}`;
  const button = html("button", { type: "button", "aria-pressed": at === why.detector, "aria-label": name });
  button.append(label, html("code", {}, bits.join("")), bar, value);
  const preview = (to) => () => {
    why.preview = to;
    drawDetector();
  };
  button.addEventListener("mouseenter", preview(at));
  button.addEventListener("focus", preview(at));
  button.addEventListener("mouseleave", preview(null));
  button.addEventListener("blur", preview(null));
  button.addEventListener("click", () => {
    why.detector = at;
    drawDetector();
  });
  why.buttons.push(button);
  return button;
}
