// Names, numbers and bars, as every page of a classifier shows them.

const className = (number) => model.classes[number] ?? String(number);

const percent = (share) => `${(100 * share).toFixed(1)}%`;

function told(number, digits) {
  return (number > 0 ? "+" : "−") + Math.abs(number).toLocaleString("en", digits);
}

// A number of six digits, as `lutetia predict` writes it: large ones written out, tiny ones with an exponent.
function shortNumber(value) {
  const rounded = Number(value.toPrecision(6)), size = Math.abs(value);
  if (size >= 1e6 && size < 1e15) return rounded.toLocaleString("en");
  if (rounded === 0 || (Math.abs(rounded) >= 1e-4 && Math.abs(rounded) < 1e6)) return String(rounded);
  const [digits, exponent] = value.toExponential(5).split("e");
  return `${Number(digits)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

function bar(name, size, value, best) {
  const filled = html("span", { className: "bar" });
  filled.style.setProperty("--size", `${size}%`);
  return html("li", { className: best ? "best" : "" }, html("span", { title: name }, name), filled, html("span", {}, value));
}

// The bar of a reason: for the answer, or against it.
function effectBar(effect, most) {
  const filled = html("span", { className: effect < 0 ? "bar minus" : "bar" });
  filled.style.setProperty("--size", `${(100 * Math.abs(effect)) / most}%`);
  return filled;
}
