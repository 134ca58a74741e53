// An image to draw on, with a pointer or with the keyboard, and the anchors of the loudest detectors on it.

const canvas = byId("image"), [height, width] = model.shape.slice(-2);
const CELL = Math.max(8, Math.floor(560 / Math.max(height, width)));
const shade = new Float64Array(x.length); // of each input, from 0 to 1
const cursor = { row: Math.floor(height / 2), column: Math.floor(width / 2), shown: false };
const colours = CHANNELS.length > 0;
let drawing = false, ink = true, tint = [1, 1, 1];

canvas.width = width * CELL;
canvas.height = height * CELL;

// What a colour of the theme is now.
function colour(name) {
  canvas.style.color = `var(${name})`;
  return getComputedStyle(canvas).color;
}

// What the model is given for a shade: a level, or the rank of the value among the edges of that input.
function set(at, value) {
  const [low, high] = model.span;
  shade[at] = value;
  x[at] = model.edges.length ? 1 + model.edges[at].filter((edge) => edge < low + value * (high - low)).length : Math.round(model.largest * value);
}

function clear() {
  for (let at = 0; at < x.length; at++) set(at, 0);
}

// Full ink on the pixel below the pen and near it, less further off, and never less than there was.
function put(row, column) {
  const reach = Math.max(0.6, Math.min(height, width) / 16);
  for (let r = 0; r < height; r++) {
    for (let c = 0; c < width; c++) {
      const below = r === Math.floor(row) && c === Math.floor(column);
      const far = below ? 0 : Math.hypot(r + 0.5 - row, c + 0.5 - column) / reach;
      const at = r * width + c;
      if (far >= 1.5) continue;
      const value = Math.min(1, 1.5 - far);
      for (let plane = 0; plane * height * width < x.length; plane++) {
        const input = at + plane * height * width;
        const drawn = colours ? shade[input] + (tint[plane] - shade[input]) * value : Math.max(shade[input], value);
        set(input, ink ? drawn : 0);
      }
    }
  }
  paint();
  answer();
}

function paint() {
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour("--well");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = colour("--ink");
  for (let at = 0; at < height * width; at++) {
    if (colours) pen.fillStyle = `rgb(${[0, 1, 2].map((plane) => Math.round(255 * shade[at + plane * height * width]))})`;
    else pen.globalAlpha = shade[at];
    pen.fillRect((at % width) * CELL, Math.floor(at / width) * CELL, CELL, CELL);
  }
  pen.globalAlpha = 1;
  loud.forEach((each, at) => (picked < 0 || picked === at) && mark(pen, each));
  if (cursor.shown) {
    pen.strokeStyle = colour("--accent");
    pen.lineWidth = 3;
    pen.strokeRect(cursor.column * CELL + 1.5, cursor.row * CELL + 1.5, CELL - 3, CELL - 3);
  }
}

// A line from the darker to the lighter input of each comparison; a ring where an input is compared with a number.
function mark(pen, { u, loss }) {
  pen.strokeStyle = pen.fillStyle = colour(loss > 0 ? "--for" : "--against");
  pen.lineWidth = 2;
  for (const { left, right, answer: yes } of comparisons(x, u)) {
    const [a, b] = [left, right].map((at) => [((at % width) + 0.5) * CELL, (Math.floor(at / width) % height + 0.5) * CELL]);
    pen.beginPath();
    pen.arc(...a, CELL / 3, 0, 7);
    if (yes) pen.fill();
    else pen.stroke();
    if (right < 0) continue;
    pen.beginPath();
    pen.moveTo(...a);
    pen.lineTo(...b);
    pen.stroke();
  }
}

function spot(event) {
  const box = canvas.getBoundingClientRect();
  return [((event.clientY - box.top) / box.height) * height, ((event.clientX - box.left) / box.width) * width];
}

canvas.addEventListener("pointerdown", (event) => {
  drawing = true;
  cursor.shown = false;
  canvas.setPointerCapture(event.pointerId);
  put(...spot(event));
});
canvas.addEventListener("pointermove", (event) => drawing && put(...spot(event)));
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (drawing = false));
canvas.addEventListener("keydown", (event) => {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (event.key in steps) {
    const [down, right] = steps[event.key];
    cursor.row = Math.min(Math.max(cursor.row + down, 0), height - 1);
    cursor.column = Math.min(Math.max(cursor.column + right, 0), width - 1);
    cursor.shown = true;
    if (event.shiftKey) put(cursor.row + 0.5, cursor.column + 0.5);
    else paint();
  } else if (event.key === " ") put(cursor.row + 0.5, cursor.column + 0.5);
  else return;
  event.preventDefault();
});
canvas.addEventListener("blur", () => {
  cursor.shown = false;
  paint();
});
if (colours) byId("tint").addEventListener("input", ({ target }) => (tint = [1, 3, 5].map((at) => parseInt(target.value.slice(at, at + 2), 16) / 255)));
byId("erase").addEventListener("change", (event) => (ink = !event.target.checked));
byId("clear").addEventListener("click", () => {
  clear();
  paint();
  answer();
});
document.addEventListener("loud", paint);
repaints.push(paint);
clear();
paint();
answer();
