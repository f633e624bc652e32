// What the page holds. A head's numbers are inflated when it is first looked at.
const PAGE = JSON.parse(byId("data").textContent);
const N = PAGE.tokens.length;
const HEADS = PAGE.heads;
const STRONGEST = 4;
const NO_KEY = 0xffff;
const KEPT = 32; // heads whose numbers stay inflated

const headByName = new Map(HEADS.map((head, index) => [head.name.toLowerCase(), index]));
const drawn = HEADS.map((head, index) => index).filter((index) => "mask" in HEADS[index]);
const side = Math.ceil(N / PAGE.cell);

async function inflate(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// numbers of two bytes, the low one first, whatever the machine does
function shorts(bytes) {
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
}

// weights are kept as their roots, so that small ones keep their size
const weightOf = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);
const weights = (bytes) => Float32Array.from(bytes, (byte) => weightOf[byte]);

const loadCells = async (index) => weights(await inflate(`b${index}-0`));

const loaded = new Map(); // the head looked at last stands last

function load(index) {
  const found = loaded.get(index) ?? read(index);
  loaded.delete(index);
  loaded.set(index, found);
  if (loaded.size > KEPT) loaded.delete(loaded.keys().next().value);
  found.catch(() => loaded.delete(index));
  return found;
}

async function read(index) {
  const part = (place) => inflate(`b${index}-${place}`);
  const [cells, keys, strongest] = await Promise.all([loadCells(index), part(1), part(2)]);
  const windows = await Promise.all(HEADS[index].windows.map((_, place) => part(3 + place)));
  const data = {
    cells, keys: shorts(keys), strongest: Float32Array.from(shorts(strongest), (n) => n / 65535),
    windows: windows.map(weights),
  };
  sharpen(data, index);
  return data;
}

// large weights are known better from the strongest keys than from the cells
function sharpen({ cells, keys, strongest, windows }, index) {
  const best = new Map();
  keys.forEach((key, place) => {
    if (key === NO_KEY) return;
    const query = Math.floor(place / STRONGEST);
    const at = Math.floor(query / PAGE.cell) * side + Math.floor(key / PAGE.cell);
    best.set(at, Math.max(best.get(at) ?? 0, strongest[place]));
    HEADS[index].windows.forEach(({ rows, keys: [from, to] }, number) => {
      const inside = query >= rows[0] && query < rows[1] && key >= from && key < to;
      if (inside) windows[number][(query - rows[0]) * (to - from) + key - from] = strongest[place];
    });
  });
  for (const [at, weight] of best) {
    // of a cell it is the largest, unless what is kept says that another is larger
    const off = 2 * Math.sqrt(cells[at]) / 255 + 1e-4;
    if (PAGE.cell === 1 || weight > cells[at] - off) cells[at] = weight;
  }
}

// the strongest keys of a query, as {token, weight}
function looksAt(data, query) {
  const found = [];
  for (let place = 0; place < STRONGEST; place += 1) {
    const key = data.keys[query * STRONGEST + place];
    if (key !== NO_KEY) found.push({ token: key, weight: data.strongest[query * STRONGEST + place] });
  }
  return found;
}

// the queries among whose strongest keys a token is, strongest first
function lookedAtBy(data, token) {
  const found = [];
  for (let place = 0; place < data.keys.length; place += 1) {
    if (data.keys[place] === token) {
      found.push({ token: Math.floor(place / STRONGEST), weight: data.strongest[place] });
    }
  }
  return found.sort((one, other) => other.weight - one.weight || one.token - other.token);
}

const tokenText = (place) => `${place} “${PAGE.tokens[place]}”`;

// whether a query sees a key of [from, to)
function sees(mask, query, from, to) {
  const [low, high] = PAGE.masks[mask];
  return low[query] < to && high[query] > from;
}
