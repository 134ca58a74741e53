// Choose a token of an answer: what stands before it takes the colours of its row.
const told = JSON.parse(document.getElementById("answer-data").textContent);
const pieces = [...document.querySelectorAll("[data-at]")];
const said = document.getElementById("said");
const whole = document.getElementById("whole");
let chosen = -1;

// The colour of a share, between the anchors of the scale from -1 to 1; a special token may have more.
function colour(share) {
  const place = (Math.max(-1, Math.min(1, share)) + 1) / 2 * (told.scale.length - 1);
  const first = Math.min(Math.floor(place), told.scale.length - 2);
  return told.scale[first].map((from, channel) => Math.round(from + (told.scale[first + 1][channel] - from) * (place - first)));
}

function number(value) {
  return (value > 0 ? "+" : "") + String(Number(value.toPrecision(3)));
}

// Row -1 is the whole answer.
function show(row) {
  const shares = row < 0 ? told.total.shares : told.rows[row].shares;
  const most = row < 0 ? told.total.most : told.rows[row].most;
  pieces.forEach((piece, at) => {
    const share = (shares[at] || 0) / told.steps;
    const [red, green, blue] = colour(share);
    piece.style.background = at < shares.length ? `rgb(${red},${green},${blue})` : "";
    piece.style.color = at >= shares.length ? "" : 0.299 * red + 0.587 * green + 0.114 * blue > told.dark ? "black" : "white";
    piece.title = at < shares.length ? number(share * most) : "";
    const beside = piece.querySelector("small");
    if (beside) beside.textContent = piece.title && ` ${piece.title}`;
    if (piece.dataset.row) piece.setAttribute("aria-pressed", Number(piece.dataset.row) === chosen);
  });
  whole.setAttribute("aria-pressed", chosen < 0);
  said.textContent = row < 0 ? told.total.note : told.rows[row].note;
}

for (const piece of pieces.filter((each) => each.dataset.row)) {
  const row = Number(piece.dataset.row);
  piece.addEventListener("mouseenter", () => show(row));
  piece.addEventListener("mouseleave", () => show(chosen));
  piece.addEventListener("click", () => {
    chosen = chosen === row ? -1 : row;
    show(chosen);
  });
}
whole.addEventListener("click", () => show(chosen = -1));
whole.hidden = false;
show(-1);
