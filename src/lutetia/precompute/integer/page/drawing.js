// An image to draw on, with a pointer or with the keyboard, and the anchors of the loudest detectors on it.

const canvas = byId("image"), [height, width] = model.shape.slice(-2);
const CELL = Math.max(8, Math.floor(560 / Math.max(height, width)));
const shade = new Float64Array(nPixels); // of each input, from 0 to 1
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
  if (model.patches) return; // then all inputs are made at once
  x[at] = model.edges.length ? 1 + model.edges[at].filter((edge) => edge < low + value * (high - low)).length : Math.round(model.largest * value);
}

// Answer for what is drawn now.
function answerDrawn() {
  if (model.patches) x.set(encode(levels()));
  answer();
}

const levels = () => shade.map((value) => Math.round(255 * value));

function clear() {
  for (let at = 0; at < shade.length; at++) set(at, 0);
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
      for (let plane = 0; plane * height * width < shade.length; plane++) {
        const input = at + plane * height * width;
        const drawn = colours ? shade[input] + (tint[plane] - shade[input]) * value : Math.max(shade[input], value);
        set(input, ink ? drawn : 0);
      }
    }
  }
  paint();
  answerDrawn();
}

function paint() {
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour("--well");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = colour("--ink");
  for (let at = 0; at < height * width; at++) {
    if (colours) pen.fillStyle = `rgb(${[0, 1, 2].map((plane) => Math.round(255 * shade[at + plane * height * width]))})`;
    else pen.globalAlpha = Math.min(1, Math.max(0, shade[at]));
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

// A box around the pixels that a pattern compares, at each place where it was found.
function markPattern(pen, number) {
  const { pairs, nPairs, counted } = model.patches, detector = counted[number * 3];
  const own = Array.from(pairs.slice(detector * nPairs * 4, (detector + 1) * nPairs * 4));
  const [rows, columns] = [0, 1].map((first) => own.filter((_, at) => at % 2 === first));
  const [top, left] = [rows, columns].map((each) => Math.min(...each));
  const [high, wide] = [Math.max(...rows) - top + 1, Math.max(...columns) - left + 1];
  pen.lineWidth = 1;
  for (const [row, column] of positions(levels(), number)) pen.strokeRect((column + left) * CELL, (row + top) * CELL, wide * CELL, high * CELL);
}

// A line from the darker to the lighter input of each comparison; a ring where an input is compared with a number.
function mark(pen, { u, loss }) {
  pen.strokeStyle = pen.fillStyle = colour(loss > 0 ? "--for" : "--against");
  const asked = comparisons(x, u), counts = new Set(asked.flatMap(({ left, right }) => [left, right]).filter((input) => input >= nPixels));
  if (picked >= 0) counts.forEach((input) => markPattern(pen, input - nPixels)); // of all tables at once they would hide the image
  pen.lineWidth = 2;
  for (const { left, right, answer: yes } of asked.filter((each) => each.left < nPixels)) {
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

// The shade of a level of an image file: its value where the model was fitted to values of files, from 0 to 1.
function shadeOf(level) {
  const [low, high] = model.span;
  return model.span.length && !model.patches && low >= 0 && high <= 1 && low < high ? (level / 255 - low) / (high - low) : level / 255;
}

// Read an image file, resized to that of the model, on white where it is transparent; grey as pillow makes it.
async function open(file) {
  const pen = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
  try {
    const bitmap = await createImageBitmap(file);
    pen.fillStyle = "white";
    pen.fillRect(0, 0, width, height);
    pen.imageSmoothingQuality = "high";
    pen.drawImage(bitmap, 0, 0, width, height);
  } catch {
    byId("opened").textContent = `${file.name} is not an image that this browser can read.`;
    return;
  }
  const { data } = pen.getImageData(0, 0, width, height);
  for (let at = 0; at < height * width; at++) {
    const [red, green, blue] = data.slice(at * 4, at * 4 + 3);
    const levels = colours ? [red, green, blue] : [(red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16];
    for (let plane = 0; plane * height * width < shade.length; plane++) set(at + plane * height * width, shadeOf(levels[plane] ?? levels[0]));
  }
  byId("opened").textContent = `${file.name}, as the model sees it.`;
  paint();
  answerDrawn();
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
byId("file").addEventListener("change", ({ target }) => target.files.length && open(target.files[0]));
byId("erase").addEventListener("change", (event) => (ink = !event.target.checked));
byId("clear").addEventListener("click", () => {
  clear();
  paint();
  answerDrawn();
});
document.addEventListener("loud", paint);
repaints.push(paint);
clear();
paint();
answerDrawn();
