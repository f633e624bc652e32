// The map of heads: a button per head, coloured by the chosen number or word.
const BLANK_MAP = { name: "none", title: "nothing", values: HEADS.map(() => null), signed: false };
const OTHERS = "other";
const ROWS = [...new Set(HEADS.map((head) => head.row))]; // a layer each

function buildHeadMap() {
  const width = 1 + Math.max(0, ...HEADS.map((head) => head.head));
  const size = Math.max(8, Math.min(22, Math.floor(300 / Math.max(width, 1))));
  const every = Math.max(1, Math.ceil(16 / size));
  const numbers = Array.from({ length: width }, (_, head) => {
    const cell = make("span", { text: head % every ? "" : String(head) });
    cell.style.width = `${size + 1}px`;
    return cell;
  });
  const top = make("div", { className: "layer numbers", "aria-hidden": "true" }, [
    make("span", { text: "" }), ...numbers,
  ]);
  top.firstChild.style.width = "2.2rem";
  const rows = ROWS.map((name) => {
    const row = make("div", { className: "layer", role: "row" }, [make("span", { text: name, role: "rowheader" })]);
    const own = new Map();
    HEADS.forEach((head, index) => head.row === name && own.set(head.head, index));
    for (let head = 0; head < width; head += 1) row.append(headButton(own.get(head), size));
    return row;
  });
  fill(byId("heads"), [top, ...rows]);
}

function headButton(index, size) {
  const button = make("button", { role: "gridcell", tabindex: "-1" });
  button.style.width = button.style.height = `${size}px`;
  if (index === undefined) {
    button.disabled = true;
    button.style.visibility = "hidden";
  } else {
    button.dataset.index = index;
    if (drawn.length && !drawn.includes(index)) button.classList.add("undrawn");
  }
  return button;
}

function currentMap() {
  return PAGE.maps[state.map] ?? BLANK_MAP;
}

function scaleOf(map) {
  const numbers = map.values.filter((value) => typeof value === "number");
  const largest = numbers.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return map.top ?? (largest || 1);
}

function wordsOf(map) {
  const counts = new Map();
  for (const value of map.values) {
    if (typeof value === "string") counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return [...counts].sort((one, other) => other[1] - one[1]).map(([word]) => word);
}

function colourHeads() {
  const map = currentMap();
  const words = wordsOf(map);
  const top = scaleOf(map);
  for (const button of byId("heads").querySelectorAll("button[data-index]")) {
    const index = Number(button.dataset.index);
    const value = map.values[index];
    button.style.backgroundColor =
      value === null ? "" : typeof value === "string" ? wordColour(words, value) : css(colour(value / top, map.signed));
    button.setAttribute("aria-label", describeHead(index));
  }
  drawLegend(map, words, top);
}

const wordColour = (words, word) => WORDS[words.indexOf(word)] ?? OTHER;

function describeHead(index) {
  const map = currentMap();
  const value = map.values[index];
  const told = value === null ? "none" : typeof value === "number" ? value.toFixed(3) : value;
  const grade = map.grades?.[index];
  return `${HEADS[index].name}: ${map.title} ${told}${grade ? ` (${grade})` : ""}`;
}

function drawLegend(map, words, top) {
  if (words.length) {
    const shown = words.slice(0, WORDS.length).map((word) => swatch(wordColour(words, word), word));
    if (words.length > WORDS.length) shown.push(swatch(OTHER, OTHERS));
    fill(byId("legend"), shown);
    return;
  }
  if (!map.values.some((value) => value !== null)) return fill(byId("legend"), []);
  const bar = make("canvas", { "aria-hidden": "true" });
  bar.width = 120;
  bar.height = 12;
  const pen = bar.getContext("2d");
  for (let x = 0; x < bar.width; x += 1) {
    const share = x / (bar.width - 1);
    pen.fillStyle = css(colour(map.signed ? 2 * share - 1 : share, map.signed));
    pen.fillRect(x, 0, 1, bar.height);
  }
  const low = map.signed ? -top : 0;
  const ends = [low, top].map((value) => make("span", { text: String(Number(value.toFixed(3))) }));
  fill(byId("legend"), [ends[0], bar, ends[1], swatch("var(--blank)", "no value")]);
}

function swatch(background, text) {
  const square = make("span", { className: "swatch" });
  square.style.background = background;
  return make("span", {}, [square, text]);
}

function markHeads(focus = false) {
  for (const button of byId("heads").querySelectorAll("button[data-index]")) {
    const index = Number(button.dataset.index);
    const chosen = index === state.head;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    button.classList.toggle("compared", index === state.compare);
    if (chosen && focus) button.focus();
    if (chosen) scrollTo(byId("heads"), button);
  }
}

// scrolls the box alone, where the page's own scrolling would jump
function scrollTo(box, element) {
  const [inner, outer] = [element.getBoundingClientRect(), box.getBoundingClientRect()];
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 8;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 8;
}

// the nearest head in a direction of the map, past gaps
function neighbour(index, down, right) {
  const here = HEADS[index];
  const ahead = HEADS.map((head, at) => ({ at, dy: ROWS.indexOf(head.row) - ROWS.indexOf(here.row), dx: head.head - here.head }));
  const on = ahead.filter(({ dy, dx }) =>
    down ? Math.sign(dy) === down : dy === 0 && Math.sign(dx) === right);
  on.sort((a, b) => Math.abs(a.dy) - Math.abs(b.dy) || Math.abs(a.dx) - Math.abs(b.dx));
  return on.length ? on[0].at : index;
}

function chooseHead(index) {
  if (drawn.length && !drawn.includes(index)) {
    say(`${HEADS[index].name} has no pattern on this page.`);
  } else {
    say("");
  }
  update({ head: index, view: -1 });
}

function listenToHeadMap() {
  const grid = byId("heads");
  grid.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-index]");
    if (button) chooseHead(Number(button.dataset.index));
  });
  grid.addEventListener("mouseover", (event) => {
    const button = event.target.closest("button[data-index]");
    byId("over").textContent = button ? describeHead(Number(button.dataset.index)) : "";
  });
  grid.addEventListener("mouseleave", () => (byId("over").textContent = ""));
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    chooseHead(neighbour(state.head, ...step));
    markHeads(true);
    byId("over").textContent = describeHead(state.head);
  });
}
