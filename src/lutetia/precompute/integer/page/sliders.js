// One slider for each input, and its value in the unit of the data where that is known; a list for a column of categories, a
// date for a column of dates, and a field for a column of text.

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

const LAST_SECOND = Date.UTC(9999, 11, 31, 23, 59, 59) / 1000;
const PARTS = {
  "": (seconds) => seconds,
  year: (_, date) => date.getUTCFullYear(),
  month: (_, date) => date.getUTCMonth() + 1,
  day: (_, date) => date.getUTCDate(),
  weekday: (_, date) => date.getUTCDay() || 7,
  hour: (_, date) => date.getUTCHours(),
};

// The codes of the inputs that are made of a date, in seconds; NaN is missing.
function dateCodes({ parts, edges }, seconds) {
  if (Number.isNaN(seconds)) return parts.map(() => 0);
  const known = Math.min(seconds, LAST_SECOND), date = new Date(known * 1000);
  return parts.map((part, number) => {
    const value = PARTS[part](known, date);
    return 1 + edges[number].filter((edge) => edge < value).length;
  });
}

function addDate({ name, inputs, dates }) {
  const edges = dates.edges[0], middle = edges[Math.floor(edges.length / 2)] ?? 0;
  const start = new Date(Math.floor(middle) * 1000).toISOString().slice(0, dates.times ? 19 : 10);
  const field = html("input", { type: dates.times ? "datetime-local" : "date", id: `input${inputs[0]}`, step: dates.times ? 1 : "any" });
  const tell = () => dateCodes(dates, field.valueAsNumber / 1000).forEach((code, number) => (x[inputs[number]] = code));
  field.addEventListener("input", () => {
    tell();
    answer();
  });
  field.value = start;
  tell();
  list.append(html("li", {}, html("label", { htmlFor: field.id }, name), field));
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

const BELOW_ALL = -1.7e308; // a cut below this is below every number

// One slider for a column of numbers that is several inputs, each with cuts of its own: it goes from one cut of any to the next.
function addNumber({ name, inputs, cuts }) {
  const all = [...new Set(cuts.flat())].filter((cut) => cut > BELOW_ALL).sort((a, b) => a - b);
  const start = Math.floor(all.length / 2) + 1, shownValue = html("output", {});
  const slider = html("input", { type: "range", id: `input${inputs[0]}`, min: 0, max: all.length + 1, value: start });
  const tell = () => {
    const at = slider.valueAsNumber, below = at > 1 ? all[at - 2] : BELOW_ALL;
    cuts.forEach((own, number) => (x[inputs[number]] = at ? 1 + own.filter((cut) => cut <= below).length : 0));
    const end = at > all.length ? `> ${shortNumber(all.at(-1) ?? 0)}` : at ? `≤ ${shortNumber(all[at - 1])}` : "missing";
    shownValue.textContent = all.length || !at ? end : "any";
  };
  slider.addEventListener("input", () => {
    tell();
    answer();
  });
  tell();
  list.append(html("li", {}, html("label", { htmlFor: slider.id }, name), slider, shownValue));
}

const columns = model.columns.length ? model.columns : Array.from(x, (_, at) => ({ inputs: [at], categories: [] }));
columns.forEach((column) => (column.text ? addText(column) : column.dates ? addDate(column) : column.categories.length ? addChoice(column) : column.cuts ? addNumber(column) : addSlider(column.inputs[0])));
answer();
