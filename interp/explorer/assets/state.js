// What is looked at. Every change goes through `update`, and the page's address keeps it.
const START = {
  head: drawn.length ? drawn[0] : 0, compare: -1, mean: "head", map: 0, view: -1, q: -1, k: -1,
  lock: false, direction: "out", top: 1, find: "", theme: "",
};
const state = { ...START };
const watchers = [];

function watch(names, act) {
  watchers.push({ names, act });
}

function update(changes) {
  const next = sensible({ ...state, ...changes }, changes);
  const changed = Object.keys(START).filter((name) => state[name] !== next[name]);
  if (!changed.length) return;
  Object.assign(state, next);
  for (const { names, act } of watchers) {
    if (names.some((name) => changed.includes(name))) act();
  }
  keepAddress();
}

// a mean, a part and a comparison exclude one another: what was asked for last holds
function sensible(next, changes) {
  const last = ["compare", "view"].find((name) => (changes[name] ?? -1) >= 0);
  if (last || changes.mean === "head") next.mean = last ? "head" : next.mean;
  if (next.mean !== "head") next.compare = next.view = -1;
  if (last === "compare") next.view = -1;
  if (next.view >= 0) next.compare = -1;
  if (next.q < 0 && next.k < 0) next.lock = false;
  return next;
}

const WRITTEN = {
  head: (value) => HEADS[value].name,
  compare: (value) => HEADS[value].name,
  map: (value) => PAGE.maps[value].name,
  lock: (value) => (value ? "1" : ""),
};

let lastAddress = "#";

function keepAddress() {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const fleeting = (name === "q" || name === "k") && !state.lock;
    if (value !== START[name] && !fleeting) words.set(name, (WRITTEN[name] ?? String)(value));
  }
  if (`#${words}` === lastAddress) return;
  lastAddress = `#${words}`;
  try {
    history.replaceState(null, "", lastAddress);
  } catch {
    // a frame in a notebook has no address of its own
  }
}

const whole = (low, high) => (text) => {
  const value = /^-?\d{1,9}$/.test(text) ? Number(text) : NaN;
  return value >= low && value <= high ? value : undefined;
};
const oneOf = (...words) => (text) => (words.includes(text) ? text : undefined);
const aDrawnHead = (text) => {
  const index = headByName.get(text.trim().toLowerCase());
  return index !== undefined && (drawn.includes(index) || !drawn.length) ? index : undefined;
};
const READ = {
  head: aDrawnHead,
  compare: aDrawnHead,
  mean: oneOf("head", "layer", "all"),
  map: (text) => {
    const place = PAGE.maps.findIndex((map) => map.name === text);
    return place < 0 ? undefined : place;
  },
  view: whole(-1, 999),
  q: whole(-1, N - 1),
  k: whole(-1, N - 1),
  lock: (text) => text === "1",
  direction: oneOf("out", "in"),
  top: (text) => (["1", "0.5", "0.2", "0.1", "0.05"].includes(text) ? Number(text) : undefined),
  find: (text) => text.slice(0, 200),
  theme: oneOf("light", "dark"),
};

// take over what the address says; what it cannot mean is told and left out
function followAddress() {
  const wanted = { ...START };
  const strange = [];
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    const value = Object.hasOwn(READ, name) ? READ[name](text) : undefined;
    if (value === undefined) strange.push(`${name}=${text}`);
    else wanted[name] = value;
  }
  if (wanted.view >= (HEADS[wanted.head]?.windows?.length ?? 0)) {
    strange.push(`view=${wanted.view}`);
    wanted.view = -1;
  }
  update(wanted);
  say(strange.length ? `The address asks for what this page does not have: ${strange.join(", ").slice(0, 200)}.` : "");
}

function say(text) {
  byId("status").textContent = text;
}
