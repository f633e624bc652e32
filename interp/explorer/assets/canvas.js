// Patterns on canvases: queries down, keys across, masked cells blank.
const SIDE = { most: 760, compared: 420, least: 200 }; // pixels of a pattern
const LABELLED = 11; // from this many pixels per cell on every token has its label
const ROOM = { labels: 104, numbers: 44 };
const LETTER = 7; // pixels
const LONGEST = 16000; // pixels of a canvas's side: browsers draw none of a longer one
const panels = [];

function scaleFor(shown, several) {
  const width = byId("canvases").clientWidth;
  const fits = several ? Math.min(SIDE.compared, width / 2 - ROOM.labels) : Math.min(SIDE.most, width - ROOM.labels);
  const most = Math.max(SIDE.least, fits);
  return Math.max(1, Math.min(28, Math.floor(most / Math.max(shown.height, shown.width))));
}

function makePanel(shown, several) {
  const scale = scaleFor(shown, several);
  const labelled = shown.cell === 1 && scale >= LABELLED;
  const room = labelled ? labelRoom(shown) : ROOM.numbers;
  const canvas = make("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label": `Pattern of ${shown.title}: queries down, keys across. Arrow keys move, Enter locks.`,
  });
  const panel = { shown, scale, room, labelled, canvas, picture: paint(shown) };
  sizeCanvas(panel);
  listenToPanel(panel);
  panel.figure = make("figure", {}, [make("figcaption", { text: caption(shown) }), canvas]);
  return panel;
}

function labelRoom({ first, height, width }) {
  const along = (from, count) => PAGE.tokens.slice(from, from + count).map((text) => [...text].length);
  const longest = Math.max(2, ...along(first[0], height), ...along(first[1], width));
  return Math.min(ROOM.labels, 12 + LETTER * longest);
}

function caption(shown) {
  return `${shown.title}${shown.of ? `: ${shown.of}` : ""}. Query (destination) down, key (source) across.${shown.signed ? " Orange: more; blue: less." : ""}`;
}

function sizeCanvas(panel) {
  const { shown, scale, room, canvas } = panel;
  const [width, height] = [room + shown.width * scale + 2, room + shown.height * scale + 2];
  const dense = Math.min(window.devicePixelRatio || 1, LONGEST / Math.max(width, height));
  panel.dense = dense;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

// the weights as a picture of one pixel per cell
function paint(shown) {
  const picture = make("canvas");
  picture.width = shown.width;
  picture.height = shown.height;
  const pen = picture.getContext("2d");
  const image = pen.createImageData(shown.width, shown.height);
  const blank = cssColour("--blank");
  // of 256 steps, for 4,096 × 4,096 cells would ask for as many colours one by one
  const steps = Array.from({ length: 513 }, (_, i) => colour(shown.signed ? i / 256 - 1 : i / 512, shown.signed));
  for (let row = 0, at = 0; row < shown.height; row += 1) {
    for (let column = 0; column < shown.width; column += 1, at += 1) {
      const share = Math.max(-1, Math.min(1, shown.values[at] / state.top));
      const step = Math.round(shown.signed ? (share + 1) * 256 : Math.max(0, share) * 512);
      const rgb = isBlank(shown, row, column) ? blank : steps[step];
      image.data.set(rgb, 4 * at);
      image.data[4 * at + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
  return picture;
}

function drawPanel({ shown, scale, room, labelled, canvas, picture, dense }) {
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture, room, room, shown.width * scale, shown.height * scale);
  pen.strokeStyle = css(cssColour("--line"));
  pen.strokeRect(room - 0.5, room - 0.5, shown.width * scale + 1, shown.height * scale + 1);
  drawLabels(pen, { shown, scale, room, labelled });
  drawCross(pen, { shown, scale, room });
}

function drawLabels(pen, { shown, scale, room, labelled }) {
  pen.font = `${labelled ? 11 : 10}px ui-monospace, monospace`;
  pen.fillStyle = css(cssColour("--text"));
  pen.direction = "ltr";
  pen.textBaseline = "middle";
  const every = labelled ? 1 : Math.ceil(40 / scale);
  const label = (place) => (labelled ? clipped(pen, PAGE.tokens[place], room - 8) : String(place));
  pen.textAlign = "right";
  for (let row = 0; row < shown.height; row += every) {
    pen.fillText(label(shown.first[0] + row * shown.cell), room - 5, room + (row + 0.5) * scale);
  }
  pen.textAlign = "left";
  for (let column = 0; column < shown.width; column += every) {
    pen.save();
    pen.translate(room + (column + 0.5) * scale, room - 5);
    pen.rotate(-Math.PI / 2);
    pen.fillText(label(shown.first[1] + column * shown.cell), 0, 0);
    pen.restore();
  }
}

function clipped(pen, text, room) {
  const signs = [...text];
  if (pen.measureText(text).width <= room) return text;
  while (signs.length && pen.measureText(`${signs.join("")}…`).width > room) signs.pop();
  return `${signs.join("")}…`;
}

function drawCross(pen, { shown, scale, room }) {
  const place = placeIn(shown, state.q, state.k);
  if (!place) return;
  const [x, y] = [room + place.column * scale, room + place.row * scale];
  pen.strokeStyle = css(cssColour("--mark"));
  pen.lineWidth = 1;
  pen.globalAlpha = 0.6;
  pen.strokeRect(room, y - 0.5, shown.width * scale, scale + 1);
  pen.strokeRect(x - 0.5, room, scale + 1, shown.height * scale);
  pen.globalAlpha = 1;
  pen.strokeRect(x - 1, y - 1, scale + 2, scale + 2);
  pen.lineWidth = 1;
}

// the middle of the cell under the pointer, as a query and a key
function cellUnder({ shown, scale, room, canvas }, event) {
  const box = canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - room) / scale);
  const column = Math.floor((event.clientX - box.left - room) / scale);
  if (row < 0 || column < 0 || row >= shown.height || column >= shown.width) return undefined;
  return cellTokens(shown, row, column);
}

function cellTokens(shown, row, column) {
  const token = (first, place) => Math.min(first + place * shown.cell + Math.floor(shown.cell / 2), N - 1);
  return { q: token(shown.first[0], row), k: token(shown.first[1], column) };
}

function listenToPanel(panel) {
  const { canvas, shown } = panel;
  canvas.addEventListener("mousemove", (event) => {
    const cell = cellUnder(panel, event);
    if (cell && !state.lock) update(cell);
  });
  canvas.addEventListener("mouseleave", () => !state.lock && update({ q: -1, k: -1 }));
  canvas.addEventListener("click", (event) => {
    const cell = cellUnder(panel, event);
    if (!cell) return;
    const again = state.lock && cell.q === state.q && cell.k === state.k;
    update(again ? { lock: false } : { ...cell, lock: true });
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = placeIn(shown, state.q, state.k) ?? { row: 0, column: 0 };
    const start = placeIn(shown, state.q, state.k) ? step : [0, 0];
    const row = Math.min(Math.max(here.row + start[0], 0), shown.height - 1);
    const column = Math.min(Math.max(here.column + start[1], 0), shown.width - 1);
    update(cellTokens(shown, row, column));
  });
}

let turn = 0;
let views = [];

// a later call wins: a head that was slow to inflate must not draw over the one after it
async function showViews() {
  turn += 1;
  const mine = turn;
  let found = [];
  if (drawn.includes(state.head)) {
    try {
      found = await currentViews(() => mine === turn);
    } catch (error) {
      say(`This browser could not unpack the pattern (${error.name}); a newer one can.`);
      found = [];
    }
  }
  if (mine !== turn) return;
  views = found;
  showPanels();
}

// the views at hand, at the size that there is room for
function showPanels() {
  const focused = panels.findIndex((panel) => panel.canvas === document.activeElement);
  panels.length = 0;
  panels.push(...views.map((shown) => makePanel(shown, views.length > 1)));
  fill(byId("canvases"), panels.map((panel) => panel.figure));
  if (focused >= 0) panels[Math.min(focused, panels.length - 1)]?.canvas.focus({ preventScroll: true });
  showReadout();
}

// another window, screen or magnification
function watchSize() {
  let last = [window.innerWidth, window.devicePixelRatio].join();
  window.addEventListener("resize", () => {
    const size = [window.innerWidth, window.devicePixelRatio].join();
    if (size !== last) showPanels();
    last = size;
  });
}

function showReadout() {
  panels.forEach(drawPanel);
  if (state.lock && over >= 0) return tellPair();
  const { q, k } = state;
  const lines = [];
  if (q >= 0 && k >= 0 && panels.length) {
    lines.push(`query ${tokenText(q)} → key ${tokenText(k)}${state.lock ? " (locked)" : ""}`);
    lines.push(...panels.map(({ shown }) => describeCell(shown, q, k)));
  }
  byId("readout").textContent = lines.join("\n");
  return undefined;
}
