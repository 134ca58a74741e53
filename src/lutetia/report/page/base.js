// What all parts of the page use: the story's data, elements, and the theme.

const byId = (id) => document.getElementById(id);
const story = JSON.parse(byId("story").textContent);
const { max, min } = Math;

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const largest = (values) => values.reduce((most, value) => max(most, abs(value)), 0) || 1;

// A name and a bar from the middle, or from the left where nothing is negative.
function barItem(name, value, most, signed, kind = "") {
  const bar = html("span", { className: value < 0 ? "bar minus" : "bar" });
  const size = (signed ? 50 : 100) * min(1, abs(value) / most);
  bar.style.setProperty("--from", `${!signed ? 0 : value < 0 ? 50 - size : 50}%`);
  bar.style.setProperty("--size", `${size}%`);
  return html("li", { className: kind }, html("span", { title: name }, name), bar, html("span", {}, show(value)));
}

// One of several choices: native radio buttons, so that the arrow keys work as everywhere.
function radios(name, label, choices, chosen, pick, className) {
  const group = html("div", { className, role: "radiogroup", "aria-label": label });
  choices.forEach(({ title, content }, at) => {
    const input = html("input", { type: "radio", name, checked: at === chosen, "aria-label": title });
    input.addEventListener("change", () => pick(at));
    group.append(html("label", {}, input, ...content));
  });
  return group;
}
