// One slider for each input, and its value in the unit of the data where that is known; a list for a column of categories.

const list = byId("sliders");

function addChoice({ name, inputs, categories }) {
  const choice = html("select", { id: `input${inputs[0]}` }, ...categories.map(([category]) => html("option", {}, category)));
  const tell = () => categories[choice.selectedIndex][1].forEach((code, number) => (x[inputs[number]] = code));
  choice.addEventListener("change", () => {
    tell();
    answer();
  });
  choice.selectedIndex = 1;
  tell();
  list.append(html("li", {}, html("label", { htmlFor: choice.id }, name), choice));
}

function addSlider(at) {
  const top = model.tops[at] ?? model.largest, start = Math.floor(top / 2), shownValue = html("output", {});
  const slider = html("input", { type: "range", id: `input${at}`, min: 0, max: top, value: start });
  const tell = () => {
    x[at] = slider.valueAsNumber;
    shownValue.textContent = (model.labels[at] ?? model.labels.shared)?.[x[at]] ?? String(x[at]);
  };
  slider.addEventListener("input", () => {
    tell();
    answer();
  });
  tell();
  list.append(html("li", {}, html("label", { htmlFor: slider.id }, inputName(at)), slider, shownValue));
}

const columns = model.columns.length ? model.columns : Array.from(x, (_, at) => ({ inputs: [at], categories: [] }));
columns.forEach((column) => (column.categories.length ? addChoice(column) : addSlider(column.inputs[0])));
answer();
