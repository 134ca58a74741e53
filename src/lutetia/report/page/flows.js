// The data flow of each part, in the drawing of lutetia.flow: a page of its own in a frame, made when it comes into sight.

function setFrameTheme(frame) {
  const inner = frame.contentDocument?.documentElement;
  if (inner) inner.dataset.theme = isDark() ? "dark" : "light";
}

function openFlow(place) {
  if (place.firstChild) return;
  const [title, data] = story.flows[place.dataset.flow];
  const frame = html("iframe", { title: `Data flow: ${title}`, inert: true });
  frame.srcdoc = story.shell[0] + data + story.shell[1];
  frame.addEventListener("load", () => setFrameTheme(frame));
  repaints.push(() => setFrameTheme(frame));
  // Until it is asked for, the drawing takes no wheel, touch or key: the page scrolls on over it.
  const explore = html("button", { type: "button" }, html("span", {}, "Explore the drawing"));
  explore.setAttribute("aria-label", `Explore the drawing of ${title}`);
  explore.addEventListener("click", () => {
    frame.inert = false;
    explore.remove();
    frame.focus();
  });
  place.append(frame, explore);
}

function buildFlows(root) {
  const tabs = [...root.querySelectorAll("[role=tab]")];
  const panels = [...root.querySelectorAll("[role=tabpanel]")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) openFlow(entry.target);
  }, { rootMargin: "300px" });
  for (const panel of panels) near.observe(panel.querySelector(".frame"));
  const select = (at, focus) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", i === at);
      tab.tabIndex = i === at ? 0 : -1;
      panels[i].hidden = i !== at;
    });
    if (focus) tabs[at].focus();
  };
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => select(at));
    tab.addEventListener("keydown", (event) => {
      const n = tabs.length;
      const to = { ArrowRight: (at + 1) % n, ArrowLeft: (at + n - 1) % n, Home: 0, End: n - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select(to, true);
    });
  });
}

if (byId("flows")) buildFlows(byId("flows"));
