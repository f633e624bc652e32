// The text, token by token: where a token looks, or who looks at it.
const LISTED = 8;
const PAGE_STEP = 100; // tokens
let coloured = [];
let over = -1;
let stripTurn = 0;

function buildStrip() {
  fill(byId("strip"), PAGE.tokens.map((text, place) =>
    make("span", { text, role: "option", id: `t${place}`, "data-place": String(place), "aria-selected": "false" })));
}

// the token whose looks are shown: the locked one, else the one under the pointer
const shownToken = () => (state.direction === "out" ? state.q : state.k);

async function showStrip() {
  stripTurn += 1;
  const mine = stripTurn;
  const { head, direction } = state;
  const token = shownToken();
  let data;
  if (state.mean === "head" && drawn.includes(head)) {
    try {
      data = await load(head);
    } catch {
      // the pattern's own view tells it
    }
  }
  if (mine !== stripTurn) return;
  byId("strip").removeAttribute("aria-activedescendant");
  for (const span of coloured) {
    span.style.backgroundColor = span.style.color = "";
    span.classList.remove("here");
    span.setAttribute("aria-selected", "false");
  }
  coloured = [];
  if (token >= 0) markToken(token);
  const links = token >= 0 && data ? linksOf(data, token, direction) : [];
  for (const { token: place, weight } of links) colourToken(place, weight);
  showLists(data, token);
}

function markToken(token) {
  const span = byId(`t${token}`);
  span.classList.add("here");
  span.setAttribute("aria-selected", "true");
  byId("strip").setAttribute("aria-activedescendant", span.id);
  coloured.push(span);
}

function colourToken(place, weight) {
  const span = byId(`t${place}`);
  const shade = colour(weight / state.top);
  span.style.backgroundColor = css(shade);
  span.style.color = ink(shade);
  coloured.push(span);
}

// all links of a token where every weight is on the page, else the strongest
function linksOf(data, token, direction) {
  if (PAGE.cell > 1) return direction === "out" ? looksAt(data, token) : lookedAtBy(data, token);
  const at = (other) => (direction === "out" ? token * N + other : other * N + token);
  return PAGE.tokens.map((_, other) => ({ token: other, weight: data.cells[at(other)] })).filter(({ weight }) => weight > 0);
}

function showLists(data, token) {
  if (!data || token < 0) {
    return fill(byId("lists"), state.mean !== "head" && drawn.length ? [make("p", { className: "quiet", text: "Choose one head to see where its tokens look." })] : []);
  }
  const out = looksAt(data, token);
  const back = lookedAtBy(data, token);
  const some = back.length > LISTED ? ` ${back.length} queries, the strongest ${LISTED} of them` : "";
  fill(byId("lists"), [
    linkList(`${tokenText(token)} looks most at`, out),
    linkList(`${tokenText(token)} is among the ${STRONGEST} strongest keys of${some}`, back.slice(0, LISTED)),
  ]);
}

function linkList(title, links) {
  const lines = links.map(({ token, weight }) => {
    const button = make("button", { text: tokenText(token), "data-place": String(token) });
    button.addEventListener("click", () => {
      lockToken(token);
      byId("strip").focus(); // this list is made anew
    });
    return make("li", {}, [make("span", { text: `${weight.toFixed(4)} ` }), button]);
  });
  const empty = links.length ? [] : [make("p", { className: "quiet", text: "none" })];
  return make("div", {}, [make("strong", { text: title }), ...empty, make("ol", {}, lines)]);
}

const pointAt = (place) => (state.direction === "out" ? { q: place } : { k: place });

function lockToken(place) {
  update({ q: -1, k: -1, lock: true, ...pointAt(place) });
  showToken(place);
}

function showToken(place) {
  const strip = byId("strip");
  const span = byId(`t${place}`);
  const [top, bottom] = [span.offsetTop, span.offsetTop + span.offsetHeight];
  if (top < strip.scrollTop) strip.scrollTop = top - 8;
  else if (bottom > strip.scrollTop + strip.clientHeight) strip.scrollTop = bottom - strip.clientHeight + 8;
}

// while a token is locked, another under the pointer tells the weight between the two
async function tellPair() {
  const { head, direction, lock } = state;
  const [locked, place] = [shownToken(), over];
  if (!lock || locked < 0 || place < 0 || state.mean !== "head" || !drawn.includes(head)) return;
  const data = await load(head).catch(() => undefined);
  const same = state.head === head && state.direction === direction && state.lock && shownToken() === locked;
  if (!data || place !== over || !same) return;
  const [from, to] = direction === "out" ? [locked, place] : [place, locked];
  byId("readout").textContent = `${HEADS[head].name}: query ${tokenText(from)} → key ${tokenText(to)}: ${pairText(data, head, from, to)} (locked)`;
}

// the weight of a key, as well as the page knows it
function pairText(data, head, query, key) {
  if (!sees(HEADS[head].mask, query, key, key + 1)) return "masked";
  const strongest = looksAt(data, query).find(({ token }) => token === key);
  if (strongest) return strongest.weight.toFixed(4);
  if (!POOLED) return data.cells[query * N + key].toFixed(3);
  const inside = ({ rows, keys }) => query >= rows[0] && query < rows[1] && key >= keys[0] && key < keys[1];
  const number = HEADS[head].windows.findIndex(inside);
  if (number < 0) return `not among the ${STRONGEST} strongest`;
  const { rows, keys } = HEADS[head].windows[number];
  return data.windows[number][(query - rows[0]) * (keys[1] - keys[0]) + key - keys[0]].toFixed(3);
}

function listenToStrip() {
  const strip = byId("strip");
  const placeOf = (event) => Number(event.target.dataset?.place ?? -1);
  strip.addEventListener("mouseover", (event) => {
    over = placeOf(event);
    if (over < 0) return;
    if (state.lock) tellPair();
    else update({ q: -1, k: -1, ...pointAt(over) });
  });
  strip.addEventListener("mouseleave", () => {
    over = -1;
    if (state.lock) showReadout();
    else update({ q: -1, k: -1 });
  });
  strip.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place < 0) return;
    if (state.lock && shownToken() === place) update({ lock: false });
    else lockToken(place);
  });
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -N, End: N,
      PageUp: -PAGE_STEP, PageDown: PAGE_STEP }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = Math.min(Math.max(shownToken() + step, 0), N - 1);
    update({ q: -1, k: -1, ...pointAt(place) });
    showToken(place);
  });
}
