// The panel: everything recorded about one step.

const panel = byId("panel");
const MOST_LINKS = 12;

function stepLink(step, go) {
  const button = html("button", { type: "button", className: "link" }, html("span", {}, step.name), html("small", {}, ` #${step.id}`));
  on(button, "click", (event) => go(step, event));
  return button;
}

function linksTo(steps, go) {
  const links = steps.slice(0, MOST_LINKS).map((step) => stepLink(step, go));
  if (steps.length > MOST_LINKS) links.push(html("span", {}, `and ${steps.length - MOST_LINKS} more`));
  return links;
}

function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== null);
  return html("dl", {}, ...rows.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function tensorItem(tensor, word, ends, note) {
  return html("li", {},
    html("div", { className: "tensor" }, html("strong", {}, tensor.name), html("span", { className: "mono" }, showKind(tensor))),
    html("div", { className: "small" }, `${showBytes(tensor.bytes)} · ${tensor.device}`),
    html("div", { className: "small ends" }, html("span", {}, word), html("div", {}, ...ends, note)));
}

function inputItem(step, tensor, go) {
  const values = step.reads.filter((read) => read.input === tensor.name).map((read) => read.value);
  const makers = [...new Set(values.map((value) => value.maker))].filter(Boolean);
  const note = values.some((value) => value.overwriters.has(step)) ? html("em", {}, "overwritten in place") : "";
  return tensorItem(tensor, makers.length ? "from" : "from outside", linksTo(makers, go), note);
}

function outputItem(step, tensor, go) {
  const { users } = flow.values.get(tensor.value);
  const others = [...users].filter((user) => user !== step && !isInside(user, step)).sort((a, b) => a.id - b.id);
  if (!others.length) return tensorItem(tensor, "not used by a later step", [], "");
  return tensorItem(tensor, "to", linksTo(others, go), "");
}

function section(title, count, items, none) {
  const head = html("h3", {}, title, html("small", {}, ` ${count}`));
  return html("section", {}, head, count ? html("ul", {}, ...items) : html("p", { className: "small" }, none));
}

function fillPanel(step, go, close) {
  const shut = html("button", { type: "button", className: "close", ariaLabel: "Close", title: "Close (Escape)" }, "×");
  on(shut, "click", close);
  const name = html("h2", { id: "panel-name", tabIndex: -1 }, step.name);
  const tags = html("p", { className: "tags" }, html("span", { className: `tag ${partClass(step.part)}` }, step.part), html("span", {}, `step ${step.id}`));
  if (step.failed) tags.append(html("span", { className: "flag" }, "failed"));
  const body = [
    facts([
      ["Time", showTime(step.duration)],
      ["Start", step.start === null ? null : showTime(step.start)],
      ["Bytes in", showBytes(step.bytesIn)],
      ["Bytes out", showBytes(step.bytesOut)],
      ["Device", step.device],
      ["Thread", String(step.thread)],
      ["Inside", step.parent && stepLink(step.parent, go)],
      ["Contains", step.node.count > 1 ? showCount(step.node.count - 1, "step") : null],
    ]),
  ];
  if (step.attributes.length) body.push(html("section", {}, html("h3", {}, "Attributes"), facts(step.attributes)));
  body.push(section("Inputs", step.inputs.length, step.inputs.map((t) => inputItem(step, t, go)), "This step takes no tensor."));
  body.push(section("Outputs", step.outputs.length, step.outputs.map((t) => outputItem(step, t, go)), "This step makes no tensor."));
  const walk = html("nav", { ariaLabel: "Neighbouring steps" });
  for (const [id, text, other] of [["previous", "← Previous", flow.steps[step.id - 1]], ["next", "Next →", flow.steps[step.id + 1]]]) {
    const button = html("button", { type: "button", id, disabled: !other }, text);
    on(button, "click", (event) => go(other, event));
    walk.append(button);
  }
  panel.replaceChildren(html("div", { className: "head" }, html("div", {}, name, tags), shut), html("div", { className: "scroll", tabIndex: 0, role: "group", ariaLabel: "Details" }, ...body), walk);
}

