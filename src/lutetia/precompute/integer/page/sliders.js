// One slider for each input, and its value in the unit of the data where that is known.

const list = byId("sliders");
for (let at = 0; at < model.nInputs; at++) {
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
answer();
