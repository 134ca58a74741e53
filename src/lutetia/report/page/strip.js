// A text token by token: point at one, or click it, to see which of those before it led the model to it.

const quoted = (token) => `"${{ "\n": "\\n", "\t": "\\t", "\r": "\\r" }[token] ?? token}"`;

function buildStrip(place, { tokens, relevance, opened }) {
  const line = html("div", { className: "tokens", role: "group", "aria-label": "Tokens; the arrow keys go from one to the next" });
  const note = html("p", { className: "small", role: "status" });
  const explained = Object.keys(relevance).map(Number).sort((a, b) => a - b);
  const elements = tokens.map((token, at) => {
    const shown = token === "\n" ? "↵" : token === " " ? "·" : token === "\t" ? "→" : token;
    const element = relevance[at] ? html("button", { type: "button", tabIndex: -1 }, shown) : html("span", {}, shown);
    line.append(element);
    if (token === "\n") line.append(html("br"));
    return element;
  });
  let chosen = opened ?? explained.at(-1);
  let seen = null;
  const draw = () => {
    const at = seen ?? chosen;
    const row = relevance[at] ?? [];
    const most = largest(row);
    elements.forEach((element, i) => {
      const value = i < at ? row[i] : 0;
      // One byte often outweighs all others: the root lets these be seen too.
      const strength = Math.round(55 * (abs(value) / most) ** 0.6);
      element.style.background = strength && i !== at ? `color-mix(in srgb, var(${value < 0 ? "--cold" : "--warm"}) ${strength}%, transparent)` : "";
      element.classList.toggle("later", i > at);
      if (relevance[i]) element.setAttribute("aria-pressed", i === at);
      if (relevance[i]) element.tabIndex = i === chosen ? 0 : -1;
    });
    const best = row.map((value, i) => [value, i]).sort(([a], [b]) => abs(b) - abs(a)).slice(0, 3);
    const parts = best.map(([value, i]) => `${quoted(tokens[i])} ${at - i === 1 ? "just" : at - i} before (${show(value)})`);
    note.textContent = at === undefined ? "" : `${quoted(tokens[at])} was predicted mostly from ${parts.join(", ")}.`;
  };
  const choose = (at) => {
    if (at === undefined) return;
    chosen = at;
    elements[at].focus();
    draw();
  };
  for (const at of explained) {
    const element = elements[at];
    element.addEventListener("mouseenter", () => ((seen = at), draw()));
    element.addEventListener("focus", () => ((chosen = at), draw()));
    element.addEventListener("click", () => choose(at));
  }
  line.addEventListener("mouseleave", () => ((seen = null), draw()));
  line.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = event.key === "Home" ? explained[0] : event.key === "End" ? explained.at(-1) : step && explained[explained.indexOf(chosen) + step];
    if (to === undefined && !step) return;
    event.preventDefault();
    seen = null;
    choose(to);
  });
  place.append(line, html("p", { className: "scale" }, "against", html("i"), "for"), note);
  draw();
}

document.querySelectorAll("[data-strip]").forEach((place) => buildStrip(place, story.strips[place.dataset.strip]));
