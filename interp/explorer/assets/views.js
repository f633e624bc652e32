// Parts of patterns to draw: {title, of, first: [query, key], cell, height, width, values, signed,
// masks}. values are weights, row by row; a cell stands for `cell` queries and as many keys.
const POOLED = PAGE.cell > 1;
const LARGEST = POOLED ? `the largest weight of each ${PAGE.cell} × ${PAGE.cell} cell` : "";

function view(title, index, values, rest = {}) {
  return {
    title, values, of: LARGEST, first: [0, 0], cell: PAGE.cell, height: side, width: side,
    signed: false, masks: [HEADS[index].mask], ...rest,
  };
}

async function wholeView(index) {
  return view(HEADS[index].name, index, (await load(index)).cells);
}

async function windowView(index, place) {
  const { windows } = await load(index);
  const { rows, keys } = HEADS[index].windows[place];
  return view(`${HEADS[index].name}, all weights`, index, windows[place], {
    of: "", first: [rows[0], keys[0]], cell: 1, height: rows[1] - rows[0], width: keys[1] - keys[0],
  });
}

let lastMean = { name: "" };

// `wanted` says whether it is still asked for: many heads take their time
async function meanView(indices, title, wanted) {
  if (lastMean.name === title) return lastMean.view;
  const sum = new Float32Array(side * side);
  let done = 0;
  for (const index of indices) {
    const cells = await loadCells(index);
    if (!wanted()) return undefined;
    for (let i = 0; i < sum.length; i += 1) sum[i] += cells[i];
    done += 1;
    if (done % KEPT === 0) say(`${done} of ${indices.length} heads …`);
  }
  if (done >= KEPT) say("");
  for (let i = 0; i < sum.length; i += 1) sum[i] /= indices.length;
  const masks = [...new Set(indices.map((index) => HEADS[index].mask))];
  const of = POOLED ? `the mean of ${LARGEST}` : "";
  lastMean = { name: title, view: view(title, indices[0], sum, { of, masks }) };
  return lastMean.view;
}

function difference(one, other) {
  return {
    ...one,
    title: `${one.title} minus ${other.title}`,
    of: POOLED ? `the difference of ${LARGEST}` : "",
    values: one.values.map((value, i) => value - other.values[i]),
    signed: true,
    masks: [...new Set([...one.masks, ...other.masks])],
  };
}

const heads = (n) => `${n} head${n === 1 ? "" : "s"}`;

// the views of the present state, in the order in which they are drawn
async function currentViews(wanted) {
  const { head, compare, mean } = state;
  if (mean === "all") return [await meanView(drawn, `mean of ${heads(drawn.length)}`, wanted)];
  if (mean === "layer") {
    const own = drawn.filter((index) => HEADS[index].row === HEADS[head].row);
    return [await meanView(own, `mean of ${heads(own.length)} of layer ${HEADS[head].layer}`, wanted)];
  }
  if (state.view >= 0) return [await windowView(head, state.view)];
  const one = await wholeView(head);
  if (compare < 0) return [one];
  const other = await wholeView(compare);
  return [one, other, difference(one, other)];
}

// where a query and a key are in a view; undefined outside of it
function placeIn(shown, q, k) {
  const row = Math.floor((q - shown.first[0]) / shown.cell);
  const column = Math.floor((k - shown.first[1]) / shown.cell);
  const inside = q >= 0 && k >= 0 && row >= 0 && column >= 0 && row < shown.height && column < shown.width;
  return inside ? { row, column } : undefined;
}

// whether no query of the cell sees a key of it
function isBlank(shown, row, column) {
  const [query, key] = [shown.first[0] + row * shown.cell, shown.first[1] + column * shown.cell];
  const last = Math.min(query + shown.cell, N);
  for (let at = query; at < last; at += 1) {
    if (shown.masks.some((mask) => sees(mask, at, key, key + shown.cell))) return false;
  }
  return true;
}

const valueAt = (shown, { row, column }) => shown.values[row * shown.width + column];

function describeCell(shown, q, k) {
  const place = placeIn(shown, q, k);
  if (!place) return `${shown.title}: not in this part`;
  if (isBlank(shown, place.row, place.column)) return `${shown.title}: masked`;
  const number = valueAt(shown, place);
  const sign = shown.signed && number > 0 ? "+" : "";
  const of = shown.of ? `, ${shown.of.replace("each", "this")}` : "";
  return `${shown.title}${of}: ${sign}${number.toFixed(3)}`;
}
