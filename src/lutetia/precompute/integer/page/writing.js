// The model writes while you type; choose a byte to see what the model looked at before it wrote it.

const LENGTH = 240;
const AT_ONCE = 8;
const shown = byId("text"), promptBox = byId("prompt"), said = byId("said"), looked = byId("looked");
let text = [], begun = 0, chosen = -1, run = 0, seed = 1;

function letter(byte) {
  if (byte === 10) return "↵\n";
  if (byte === 9) return "→\t";
  return byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·";
}

function named(byte) {
  if (byte === 32) return "the space";
  if (byte === 10) return "the line break";
  return byte >= 33 && byte < 127 ? `“${String.fromCharCode(byte)}”` : `byte ${byte}`;
}

function restart() {
  const prompt = new TextEncoder().encode(promptBox.value);
  const outside = prompt.find((byte) => byte >= model.vocab);
  run++;
  shown.replaceChildren();
  text = [];
  choosePlace(-1);
  said.textContent = "";
  said.classList.toggle("bad", outside !== undefined);
  if (!prompt.length) said.textContent = "Type something for the model to continue from.";
  else if (outside !== undefined) said.textContent = `The model knows the bytes 0 to ${model.vocab - 1} only, and the text has ${outside}.`;
  else write(prompt, run);
}

function write(prompt, own) {
  const drawn = byId("drawn").checked, draws = drawn ? new Draws(seed) : null, reader = read(prompt);
  text = Array.from(prompt);
  begun = prompt.length;
  text.forEach((byte) => shown.append(html("span", { className: "given" }, letter(byte))));
  let spent = 0;
  const more = () => {
    if (own !== run) return;
    const from = performance.now();
    for (let n = 0; n < AT_ONCE && text.length < begun + LENGTH; n++) {
      const byte = choose(reader.scores(), draws);
      reader.put(byte);
      text.push(byte);
      shown.append(html("span", {}, letter(byte)));
    }
    spent += performance.now() - from;
    if (text.length < begun + LENGTH) requestAnimationFrame(more);
    else {
      said.textContent = `${LENGTH} bytes, ${Math.round((LENGTH / spent) * 1000).toLocaleString("en")} bytes per second.`;
      if (chosen < 0) choosePlace(begun); // an example
    }
  };
  more();
}

// What the model had looked at before it wrote the byte at this place.
function choosePlace(place) {
  chosen = place;
  for (const each of shown.children) {
    each.classList.remove("chosen");
    each.style.removeProperty("--share");
  }
  looked.textContent = "";
  if (place < 1) return;
  const from = Math.max(0, place - model.context), reader = read(Uint8Array.from(text.slice(from, place)));
  const shares = reader.looked(), most = Math.max(...shares, 1);
  shares.forEach((share, i) => shown.children[from + i].style.setProperty("--share", `${Math.round((90 * share) / most)}%`));
  shown.children[place].classList.add("chosen");
  const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, 3);
  const names = order.map((i, n) => `${named(text[from + i])} (${place - from - i}${n ? "" : " bytes earlier"})`);
  const before = `To write ${named(text[place])} the model read ${named(text[place - 1])} before it`;
  looked.textContent = names.length ? `${before} and looked back most at ${names.join(", ")}.` : `${before}, and had nothing to look back at.`;
}

shown.addEventListener("pointerdown", (event) => {
  const place = Array.prototype.indexOf.call(shown.children, event.target);
  if (place > 0) choosePlace(place);
});
shown.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -text.length, End: text.length };
  if (!(event.key in steps) || text.length < 2) return;
  event.preventDefault();
  const start = chosen < 0 ? begun - 1 : chosen;
  choosePlace(Math.min(Math.max(start + steps[event.key], 1), text.length - 1));
});
promptBox.addEventListener("input", restart);
for (const name of ["best", "drawn"]) byId(name).addEventListener("change", restart);
byId("again").addEventListener("click", () => {
  seed = (seed + 1) % 2 ** 32;
  byId("drawn").checked = true;
  restart();
});
restart();
