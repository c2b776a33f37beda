"use strict";
/* The page of a memory profile. Reads the data once, then draws on demand; loads nothing. */

const data = JSON.parse(document.getElementById("data").textContent);
document.documentElement.classList.remove("no-script");
const $ = (id) => document.getElementById(id);
const BINS = ["B", "KiB", "MiB", "GiB", "TiB"];
// Ties go to the even digit, as in the figures that Python wrote into the page.
const hundredths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2, roundingMode: "halfEven", useGrouping: false });

function bytes(n) {
  let size = Math.abs(n), unit = 0;
  while (size >= 1024 && unit < BINS.length - 1) { size /= 1024; unit++; }
  return (n < 0 ? "−" : "") + (unit ? hundredths.format(size) : size) + " " + BINS[unit];
}
const duration = (ns) => (ns >= 1e9 ? (ns / 1e9).toFixed(3) + " s" : (ns / 1e6).toFixed(2) + " ms");
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) : "0.0") + " %";
function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}
function swatch(color) {
  const made = element("span", "", { class: "swatch" });
  made.style.background = color;
  return made;
}

/* One device of one run: moments as typed columns, and stacks by group as they are asked for. */
class Tide {
  constructor(run, device) {
    this.run = run;
    const d = (this.data = run.devices[device]);
    const count = d.times.length;
    this.time = new Float64Array(count);
    this.first = new Int32Array(count + 1); // where the changes of a moment begin
    this.live = new Float64Array(count);
    let time = 0, first = 0, live = 0;
    for (let m = 0; m < count; m++) {
      this.time[m] = time += d.times[m];
      for (const end = first + d.counts[m]; first < end; first++) live += d.change[first];
      this.first[m + 1] = first;
      this.live[m] = live;
    }
    this.order = Float64Array.from({ length: count }, (_, m) => m);
    this.end = d.end;
    this.cache = {};
  }
  groups(by) {
    if (by === "role") {
      const names = data.roles.map((r) => r.words);
      return { names, colors: data.roles.map((r) => r.color), of: this.data.cells.role, stack: data.stack };
    }
    const g = this.data.groups[by];
    return { ...g, stack: g.names.map((_, k) => k) };
  }
  /* Bytes of each group at each moment: one column a group. */
  stacks(by) {
    if (!this.cache[by]) {
      const { names, of } = this.groups(by);
      const rows = names.map(() => new Float64Array(this.time.length));
      const now = new Float64Array(names.length);
      for (let m = 0; m < this.time.length; m++) {
        for (let k = this.first[m]; k < this.first[m + 1]; k++) now[of[this.data.changed[k]]] += this.data.change[k];
        for (let g = 0; g < now.length; g++) rows[g][m] = now[g];
      }
      this.cache[by] = rows;
    }
    return this.cache[by];
  }
  /* Bytes of each (owner, role) at one moment. */
  cells(moment) {
    if (this.cached !== moment) {
      this.held = new Float64Array(this.data.cells.role.length);
      for (let k = 0; k < this.first[moment + 1]; k++) this.held[this.data.changed[k]] += this.data.change[k];
      this.cached = moment;
    }
    return this.held;
  }
  phase(time) {
    const spans = this.run.phases;
    let low = 0, high = spans.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (spans[middle][1] <= time) low = middle + 1;
      else if (spans[middle][0] > time) high = middle - 1;
      else return data.phases[spans[middle][2]].name;
    }
    return "";
  }
  owner(cell) {
    const o = this.data.cells.owner[cell], r = this.run.owners;
    return { module: r.modules[r.module[o]], op: r.ops[r.op[o]], phase: data.phases[r.phase[o]].name, line: r.lines[r.line[o]] };
  }
}

const state = { by: "role", axis: "time", device: data.device, hidden: new Set(), path: "" };
let charts = [];

/* The stacked timeline of one run, on a canvas. */
class Chart {
  constructor(tide, place, name) {
    this.tide = tide;
    const box = element("div", undefined, { class: "run" });
    if (data.runs.length > 1) box.append(element("h3", name));
    this.canvas = element("canvas", undefined, {
      tabindex: "0", role: "img",
      "aria-label": `Live bytes over time, ${name}. ${tide.data.sentences.join(" ")}`,
    });
    box.append(this.canvas);
    place.append(box);
    this.cursor = -1;
    this.drag = null;
    this.pointers = new Map();
    this.reset();
    const on = (what, then, options) => this.canvas.addEventListener(what, then, options);
    on("wheel", (e) => this.wheel(e), { passive: false });
    on("pointerdown", (e) => this.down(e));
    on("pointermove", (e) => this.move(e));
    on("pointerup", (e) => this.up(e));
    on("pointercancel", (e) => this.up(e));
    on("pointerleave", () => { if (!this.drag) this.leave(); });
    on("dblclick", () => this.reset(true));
    on("keydown", (e) => this.key(e));
    on("blur", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }
  get x() { return state.axis === "time" ? this.tide.time : this.tide.order; }
  full() {
    const x = this.x;
    return [x[0], state.axis === "time" ? Math.max(this.tide.end, x[0] + 1) : Math.max(x.length, 1)];
  }
  reset(draw) {
    [this.low, this.high] = this.full();
    if (draw) this.draw();
  }
  clamp() {
    const [first, last] = this.full();
    const least = state.axis === "time" ? Math.min((last - first) / 2, 1000) : 4;
    const width = Math.min(Math.max(this.high - this.low, least), last - first);
    this.low = Math.min(Math.max(this.low, first), last - width);
    this.high = this.low + width;
  }
  zoom(factor, at) {
    this.low = at - (at - this.low) * factor;
    this.high = at + (this.high - at) * factor;
    this.clamp();
    this.draw();
  }
  shift(by) {
    this.low += by;
    this.high += by;
    this.clamp();
    this.draw();
  }
  value(px) { return this.low + ((px - this.left) / (this.width - this.left)) * (this.high - this.low); }
  place(value) { return this.left + ((value - this.low) / (this.high - this.low)) * (this.width - this.left); }
  at(value) { // the last moment not after a value on the axis
    const x = this.x;
    let low = 0, high = x.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (x[middle] <= value) low = middle; else high = middle - 1;
    }
    return low;
  }
  wheel(e) {
    const [first, last] = this.full();
    if (e.deltaY > 0 && this.high - this.low >= last - first) return; // all is shown: scroll the page
    e.preventDefault();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.shift((e.deltaX / this.width) * (this.high - this.low));
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 300))), this.value(e.offsetX));
    this.hover(e);
  }
  down(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, e.offsetX);
    const mode = e.pointerType === "touch" || e.shiftKey || e.button === 1 ? "pan" : "select";
    this.drag = this.pointers.size > 1 ? { mode: "pinch" } : { mode, from: e.offsetX, to: e.offsetX };
  }
  move(e) {
    if (!this.drag) { this.hover(e); return; }
    const before = [...this.pointers.values()];
    this.pointers.set(e.pointerId, e.offsetX);
    if (this.drag.mode === "pinch") {
      const after = [...this.pointers.values()];
      const was = Math.abs(before[0] - before[1]), is = Math.abs(after[0] - after[1]);
      if (was > 8 && is > 8) this.zoom(was / is, this.value((after[0] + after[1]) / 2));
    } else if (this.drag.mode === "pan") {
      this.shift(((this.drag.to - e.offsetX) / (this.width - this.left)) * (this.high - this.low));
      this.drag.to = e.offsetX;
      this.hover(e);
    } else {
      this.drag.to = e.offsetX;
      this.hover(e);
      this.draw();
    }
  }
  up(e) {
    const drag = this.drag;
    this.pointers.delete(e.pointerId);
    this.drag = null;
    if (drag && drag.mode === "select" && Math.abs(drag.to - drag.from) > 5) {
      const ends = [this.value(drag.from), this.value(drag.to)];
      this.low = Math.min(...ends);
      this.high = Math.max(...ends);
      this.clamp();
    }
    this.draw();
  }
  key(e) {
    const width = this.high - this.low, middle = (this.low + this.high) / 2;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (e.key in steps && e.shiftKey) this.shift(steps[e.key] * width * 0.2);
    else if (e.key in steps) this.step((this.cursor < 0 ? this.at(middle) : this.cursor) + steps[e.key]);
    else if (e.key === "Home") this.step(0);
    else if (e.key === "End") this.step(this.x.length - 1);
    else if (e.key === "+" || e.key === "=") this.zoom(0.6, this.cursor < 0 ? middle : this.x[this.cursor]);
    else if (e.key === "-") this.zoom(1 / 0.6, this.cursor < 0 ? middle : this.x[this.cursor]);
    else if (e.key === "p" || e.key === "P") this.toPeak();
    else if (e.key === "Escape") { this.leave(); this.reset(true); }
    else return;
    e.preventDefault();
  }
  step(moment) {
    this.cursor = Math.min(Math.max(moment, 0), this.x.length - 1);
    const x = this.x[this.cursor];
    if (x < this.low || x > this.high) this.shift(x - (this.low + this.high) / 2);
    this.draw();
    const box = this.canvas.getBoundingClientRect();
    this.tell(this.cursor, -1, box.left + this.place(x), box.top + this.top);
  }
  toPeak() {
    const [first, last] = this.full(), x = this.x[this.tide.data.moment];
    const width = (last - first) / 12;
    this.low = x - width / 2;
    this.high = x + width / 2;
    this.clamp();
    this.step(this.tide.data.moment);
  }
  hover(e) {
    const column = Math.floor(e.offsetX - this.left);
    if (column < 0 || !this.shown || column >= this.shown.length) { this.leave(); return; }
    this.cursor = this.shown[column];
    this.draw();
    this.tell(this.cursor, e.offsetY, e.clientX, e.clientY);
  }
  leave() {
    this.cursor = -1;
    $("tip").hidden = true;
    this.draw();
  }
  tell(moment, y, clientX, clientY) {
    const tide = this.tide, groups = tide.groups(state.by), stacks = tide.stacks(state.by);
    const tip = $("tip"), live = tide.live[moment], time = tide.time[moment];
    let chosen = -1, below = 0, largest = 0;
    for (const g of groups.stack) {
      if (state.hidden.has(groups.names[g])) continue;
      const n = stacks[g][moment];
      if (y >= 0) {
        if (n && y <= this.height(below) && y >= this.height(below + n)) chosen = g;
        below += n;
      } else if (n > largest) { largest = n; chosen = g; }
    }
    const phase = tide.phase(time);
    tip.replaceChildren(element("div", `${duration(time)}${phase ? " · " + phase : ""} · ${bytes(live)} live`));
    const held = tide.cells(moment);
    const found = [];
    for (let c = 0; c < held.length; c++) if (held[c] && (chosen < 0 || groups.of[c] === chosen)) found.push(c);
    found.sort((a, b) => held[b] - held[a]);
    if (chosen >= 0) {
      const n = stacks[chosen][moment], what = element("div", undefined, { class: "what" });
      what.append(swatch(groups.colors[chosen]), ` ${groups.names[chosen]}: ${bytes(n)} (${percent(n, live)})`);
      tip.append(what);
    }
    const list = element("ul");
    for (const c of found.slice(0, 4)) {
      const o = tide.owner(c);
      const words = [o.module, o.op, o.line, state.by === "role" ? "" : data.roles[tide.data.cells.role[c]].words];
      list.append(element("li", `${bytes(held[c])} ${words.filter(Boolean).join(" · ")}`));
    }
    if (found.length > 4) list.append(element("li", `and ${found.length - 4} more owners`));
    tip.append(list);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, clientX + 16 + box.width > innerWidth ? clientX - box.width - 16 : clientX + 16) + "px";
    tip.style.top = Math.max(8, Math.min(clientY + 14, innerHeight - box.height - 8)) + "px";
  }
  height(n) { return this.bottom - (n / this.most) * (this.bottom - this.top); }

  draw() {
    const canvas = this.canvas, ratio = devicePixelRatio || 1;
    const width = (this.width = canvas.clientWidth), height = canvas.clientHeight;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    this.left = 62; this.top = 34; this.bottom = height - 24;
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--ink"), soft = css.getPropertyValue("--soft"), grid = css.getPropertyValue("--grid");
    const tide = this.tide, groups = tide.groups(state.by), stacks = tide.stacks(state.by);
    const order = groups.stack.filter((g) => !state.hidden.has(groups.names[g]));

    // For each column the moment of most live bytes in it, or what still holds from before.
    const columns = Math.max(1, Math.floor(width - this.left)), x = this.x;
    const shown = (this.shown = new Int32Array(columns));
    let next = this.at(this.low);
    for (let c = 0; c < columns; c++) {
      const end = this.low + ((c + 1) / columns) * (this.high - this.low);
      let best = next;
      while (next + 1 < x.length && x[next + 1] <= end) { next++; if (tide.live[next] > tide.live[best]) best = next; }
      shown[c] = best;
    }
    this.most = Math.max(1, ...charts.map((chart) => chart.tide.data.peak.bytes), tide.data.peak.bytes) * 1.1;

    this.phases(pen, width);
    const scale = 2 ** (10 * Math.min(4, Math.floor(Math.log2(this.most) / 10)));
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of ticks(this.most / scale, 5)) {
      const y = Math.round(this.height(tick * scale)) + 0.5;
      line(pen, grid, [this.left, y], [width, y]);
      pen.fillStyle = soft;
      pen.fillText(`${tick} ${tick ? BINS[Math.round(Math.log2(scale) / 10)] : ""}`, this.left - 7, y);
    }
    const below = new Float64Array(columns);
    for (const g of order) {
      const row = stacks[g];
      pen.beginPath();
      pen.moveTo(this.left, this.height(below[0]));
      for (let c = 0; c < columns; c++) {
        const y = this.height(below[c] + row[shown[c]]);
        pen.lineTo(this.left + c, y);
        pen.lineTo(this.left + c + 1, y);
      }
      for (let c = columns - 1; c >= 0; c--) {
        const y = this.height(below[c]);
        pen.lineTo(this.left + c + 1, y);
        pen.lineTo(this.left + c, y);
        below[c] += row[shown[c]];
      }
      pen.fillStyle = groups.colors[g];
      pen.fill();
    }
    this.marks(pen, soft);
    this.times(pen, soft, width);
    this.peak(pen, ink, css.getPropertyValue("--ground"), width);
    if (this.cursor >= 0) {
      const at = Math.round(this.place(x[this.cursor])) + 0.5;
      if (at >= this.left) line(pen, ink, [at, this.top], [at, this.bottom]);
    }
    if (this.drag && this.drag.mode === "select") {
      pen.fillStyle = "rgb(90 150 255 / 0.25)";
      pen.fillRect(Math.min(this.drag.from, this.drag.to), this.top, Math.abs(this.drag.to - this.drag.from), this.bottom - this.top);
    }
  }
  axisOf(time) { return state.axis === "time" ? time : this.timeToOrder(time); }
  timeToOrder(time) {
    const t = this.tide.time;
    let low = 0, high = t.length - 1;
    if (time > t[high]) return t.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (t[middle] < time) low = middle + 1; else high = middle;
    }
    return low;
  }
  phases(pen, width) {
    // Stretches too narrow to be seen are drawn as one with their neighbor.
    const tint = Number(getComputedStyle(document.documentElement).getPropertyValue("--tint"));
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    let drawn = -1;
    for (const [start, end, phase] of this.tide.run.phases) {
      const to = Math.min(width, this.place(this.axisOf(end)));
      let from = Math.max(this.left, drawn, this.place(this.axisOf(start)));
      if (drawn >= 0 && from - drawn < 2) from = drawn;
      if (to - from < 1 || to < this.left || from > width) continue;
      drawn = to;
      const { name, color } = data.phases[phase];
      pen.fillStyle = color;
      pen.fillRect(from, 16, to - from, 15);
      if (name !== "other") {
        pen.globalAlpha = tint;
        pen.fillRect(from, this.top, to - from, this.bottom - this.top);
        pen.globalAlpha = 1;
      }
      if (pen.measureText(name).width + 8 < to - from) {
        pen.fillStyle = "#fff";
        pen.fillText(name, (from + to) / 2, 24);
      }
    }
  }
  marks(pen, soft) {
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.setLineDash([3, 3]);
    let free = this.left, last = -9;
    for (const [time, name] of this.tide.run.marks) {
      const at = this.place(this.axisOf(time));
      if (at < this.left || at > this.width) continue;
      if (at - last > 3) { line(pen, soft, [at, this.top], [at, this.bottom]); last = at; }
      const half = pen.measureText(name).width / 2;
      const middle = Math.min(Math.max(at, this.left + half), this.width - half);
      if (middle - half < free) continue;
      pen.fillStyle = soft;
      pen.fillText(name, middle, 7);
      free = middle + half + 8;
    }
    pen.setLineDash([]);
  }
  times(pen, soft, width) {
    const timed = state.axis === "time", scale = timed ? (this.high - this.low >= 5e8 ? 1e9 : 1e6) : 1;
    const low = this.low / scale, high = this.high / scale;
    pen.fillStyle = soft;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    for (const tick of ticks(high, Math.max(2, width / 130), low)) {
      const at = this.place(tick * scale);
      const text = timed ? `${tick} ${scale === 1e9 ? "s" : "ms"}` : `${tick}`;
      const half = pen.measureText(text).width / 2;
      if (at - half < this.left - 20 || at + half > width) continue;
      pen.fillText(text, at, this.bottom + 17);
    }
  }
  peak(pen, ink, ground, width) {
    const moment = this.tide.data.moment, at = this.place(this.x[moment]);
    if (!this.tide.data.peak.bytes || at < this.left - 1 || at > width) return;
    const y = this.height(this.tide.live[moment]), text = `peak ${bytes(this.tide.data.peak.bytes)}`;
    pen.font = "bold 13px system-ui, sans-serif";
    const wide = pen.measureText(text).width + 12;
    const from = at > (this.left + width) / 2 ? Math.max(this.left, at - wide - 10) : Math.min(at + 10, width - wide);
    pen.fillStyle = ground;
    pen.strokeStyle = ink;
    pen.beginPath();
    pen.roundRect(from, Math.max(this.top + 2, y - 26), wide, 20, 5);
    pen.fill();
    pen.lineWidth = 0.7;
    pen.stroke();
    pen.fillStyle = ink;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(text, from + 6, Math.max(this.top + 2, y - 26) + 10.5);
    pen.beginPath();
    pen.arc(at, y, 4, 0, 7);
    pen.fill();
    pen.strokeStyle = ground;
    pen.stroke();
    pen.font = "12px system-ui, sans-serif";
  }
}

function line(pen, color, from, to) {
  pen.strokeStyle = color;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}
function ticks(high, count, low = 0) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12); k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/* The tree of modules at the peak, as nested rectangles. */
function tree(tide) {
  const root = { name: "all", path: "", bytes: 0, roles: {}, children: new Map() };
  const peak = tide.data.peak, r = tide.run.owners;
  for (let k = 0; k < peak.owner.length; k++) {
    const path = r.modules[r.module[peak.owner[k]]], n = peak.size[k], role = peak.role[k];
    let node = root, walked = "";
    const parts = path ? path.split(".") : [data.outside];
    for (const part of [null, ...parts]) {
      if (part !== null) {
        walked = walked ? `${walked}.${part}` : part;
        if (!node.children.has(part)) node.children.set(part, { name: part, path: walked, bytes: 0, roles: {}, children: new Map() });
        node = node.children.get(part);
      }
      node.bytes += n;
      node.roles[role] = (node.roles[role] || 0) + n;
    }
    node.own = (node.own || 0) + n;
    node.ownRoles = node.ownRoles || {};
    node.ownRoles[role] = (node.ownRoles[role] || 0) + n;
  }
  return root;
}
function childrenOf(node) {
  const found = [...node.children.values()];
  if (node.own && found.length) found.push({ name: "itself", path: node.path, bytes: node.own, roles: node.ownRoles, children: new Map() });
  return found.sort((a, b) => b.bytes - a.bytes);
}
/* Squarified rows (Bruls, Huizing and van Wijk 2000): each row as near to squares as it gets. */
function squares(nodes, x, y, w, h) {
  const placed = [];
  let left = nodes.filter((n) => n.bytes > 0), total = left.reduce((s, n) => s + n.bytes, 0);
  while (left.length && w > 0 && h > 0) {
    const side = Math.min(w, h), scale = (w * h) / total;
    const worst = (row, sum) => Math.max(...row.map((n) => Math.max((side * side * n.bytes) / (sum * sum * scale), (sum * sum * scale) / (side * side * n.bytes))));
    let row = [left[0]], sum = left[0].bytes, k = 1;
    while (k < left.length && worst([...row, left[k]], sum + left[k].bytes) <= worst(row, sum)) { row.push(left[k]); sum += left[k++].bytes; }
    const thick = (sum * scale) / side;
    let at = 0;
    for (const n of row) {
      const long = (n.bytes / sum) * side;
      placed.push(w >= h ? [n, x, y + at, thick, long] : [n, x + at, y, long, thick]);
      at += long;
    }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    total -= sum;
    left = left.slice(k);
  }
  return placed;
}
function paint(roles, total) {
  const parts = [];
  let at = 0;
  for (const role of data.stack) {
    if (!roles[role]) continue;
    const to = at + (100 * roles[role]) / total;
    parts.push(`${data.roles[role].color} ${at}% ${to}%`);
    at = to;
  }
  return `linear-gradient(90deg, ${parts.join(", ")})`;
}
function drawMaps() {
  const places = $("treemaps");
  places.replaceChildren();
  for (const chart of charts) {
    const box = element("div", undefined, { class: "run" }), map = element("div", undefined, { class: "map" });
    if (data.runs.length > 1) box.append(element("h3", `${chart.tide.run.name}: ${bytes(chart.tide.data.peak.bytes)}`));
    box.append(map);
    places.append(box);
    let node = tree(chart.tide);
    const whole = node.bytes;
    for (const part of state.path ? state.path.split(".") : []) node = (node && node.children.get(part)) || null;
    if (!node) { map.append(element("p", "Nothing of this module at the peak.", { class: "hint" })); continue; }
    const leaf = (n, x, y, w, h) => tile(map, n, x, y, w, h, true, whole);
    const inside = (nodes, x, y, w, h, depth) => {
      for (const [n, a, b, c, d] of squares(nodes, x, y, w, h)) {
        const below = childrenOf(n);
        if (below.length && c > 54 && d > 46 && depth < 6) {
          tile(map, n, a, b, c, d, false, whole);
          inside(below, a + 3, b + 19, c - 6, d - 22, depth + 1);
        } else if (c > 2 && d > 2) leaf(n, a, b, c, d);
      }
    };
    const below = childrenOf(node);
    inside(below.length ? below : [node], 0, 0, map.clientWidth, map.clientHeight, 0);
  }
  const crumbs = $("crumbs");
  crumbs.replaceChildren();
  const parts = state.path ? state.path.split(".") : [];
  for (let k = 0; k <= parts.length; k++) {
    const button = element("button", k ? parts[k - 1] : "all modules", { type: "button" });
    if (k === parts.length) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => look(parts.slice(0, k).join(".")));
    crumbs.append(button);
  }
}
function tile(map, n, x, y, w, h, leaf, whole) {
  const title = `${n.path}: ${bytes(n.bytes)}, ${percent(n.bytes, whole)} of the peak`;
  const button = element("button", undefined, { type: "button", class: leaf ? "leaf" : "branch", title, "aria-label": title });
  Object.assign(button.style, { left: x + "px", top: y + "px", width: w + "px", height: h + "px" });
  if (leaf) button.style.background = paint(n.roles, n.bytes);
  if (!leaf || (w > 26 && h > 18)) button.append(element("span", n.name, { class: "name" }));
  if (!leaf || (h > 36 && w > 62)) button.append(element("span", bytes(n.bytes), { class: "number" }));
  button.addEventListener("click", () => look(n.path));
  map.append(button);
}
function look(path) {
  state.path = path;
  drawMaps();
  const field = document.querySelector("[data-table=owners]:not([hidden]) input");
  if (field) {
    field.value = path;
    field.dispatchEvent(new Event("input"));
  }
  const current = document.querySelector("#crumbs [aria-current]");
  if (current) current.focus({ preventScroll: true });
}

/* Controls and legend */
function choice(label, options, key, then) {
  const box = element("div", undefined, { class: "choice", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = element("button", text, { type: "button", "aria-pressed": String(state[key] === value) });
    button.addEventListener("click", () => {
      state[key] = value;
      for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
      then();
    });
    box.append(button);
  }
  return box;
}
function controls() {
  const place = $("controls");
  const names = [...new Set(data.runs.flatMap((run) => run.devices.map((d) => d.name)))];
  if (names.length > 1) {
    const select = element("select", undefined, { "aria-label": "device" });
    for (const name of names) {
      const option = element("option", name, { value: name });
      option.selected = name === state.device;
      select.append(option);
    }
    select.addEventListener("change", () => { state.device = select.value; state.path = ""; build(); });
    place.append(select);
  }
  place.append(
    choice("areas are", [["role", "by role"], ["module", "by module"], ["line", "by line"]], "by", () => { state.hidden.clear(); refresh(); }),
    choice("horizontal axis", [["time", "time"], ["order", "events"]], "axis", () => { charts.forEach((c) => c.reset()); refresh(); }),
  );
  const peak = element("button", "Go to the peak", { type: "button" });
  peak.addEventListener("click", () => charts.forEach((c) => c.toPeak()));
  const all = element("button", "Show all", { type: "button" });
  all.addEventListener("click", () => charts.forEach((c) => { c.leave(); c.reset(true); }));
  place.append(peak, all);
}
function legend() {
  const place = $("legend"), totals = new Map(), colors = new Map();
  place.replaceChildren();
  for (const { tide } of charts) {
    const groups = tide.groups(state.by), stacks = tide.stacks(state.by);
    for (const g of [...groups.stack].reverse()) {
      if (!stacks[g].some((n) => n)) continue;
      const name = groups.names[g];
      colors.set(name, groups.colors[g]);
      totals.set(name, [...(totals.get(name) || []), stacks[g][tide.data.moment]]);
    }
  }
  for (const [name, held] of totals) {
    const button = element("button", undefined, { type: "button", "aria-pressed": "true", title: `${name}: at the peak ${held.map(bytes).join(" and ")}` });
    button.append(swatch(colors.get(name)), element("span", name, { class: "name" }), element("span", held.map(bytes).join(" | "), { class: "number" }));
    button.addEventListener("click", () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      button.setAttribute("aria-pressed", String(!state.hidden.has(name)));
      charts.forEach((c) => c.draw());
    });
    place.append(button);
  }
  const seen = new Set(charts.flatMap((c) => c.tide.run.phases.map((span) => span[2])));
  const phases = element("span", undefined, { class: "phases number" });
  data.phases.forEach(({ name, color }, k) => { if (seen.has(k)) phases.append(swatch(color), ` ${name} `); });
  place.append(phases);
}
function refresh() {
  legend();
  charts.forEach((c) => c.draw());
}
function build() {
  const place = $("timelines");
  place.replaceChildren();
  charts = [];
  for (const run of data.runs) {
    const index = run.devices.findIndex((d) => d.name === state.device);
    if (index >= 0) charts.push(new Chart(new Tide(run, index), place, run.name));
  }
  for (const id of ["timelines", "treemaps"]) $(id).classList.toggle("two", charts.length > 1);
  for (const section of document.querySelectorAll("section[data-device]")) section.hidden = section.dataset.device !== state.device;
  refresh();
  drawMaps();
}

/* Tables: the rows are in the page; here they learn to sort and to filter. */
function enliven(section) {
  const table = section.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
  const bar = section.querySelector(".bar"), tools = element("div", undefined, { class: "controls" });
  const field = element("input", undefined, { type: "search", placeholder: "filter", "aria-label": `filter ${section.querySelector("h2").textContent}` });
  const count = element("span", "", { class: "count", role: "status" });
  const sized = table.tHead.querySelector("[data-sum]");
  tools.append(count, field);
  bar.append(tools);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, sum = 0;
    rows.forEach((row, k) => {
      row.hidden = !words.every((word) => texts[k].includes(word));
      if (row.hidden) return;
      shown++;
      if (sized) sum += Number(row.cells[sized.cellIndex].dataset.value);
    });
    count.textContent = `${shown} of ${rows.length} rows` + (sized ? `, ${bytes(sum)}` : "");
  };
  field.addEventListener("input", filter);
  filter();
  for (const head of table.tHead.rows[0].cells) {
    const button = element("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("number");
      const down = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : number;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[head.cellIndex];
        return number ? Number(cell.dataset.value) : cell.textContent;
      };
      const compare = number ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
      body.append(...[...rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))));
    });
  }
}

controls();
build();
document.querySelectorAll("section.table").forEach(enliven);
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawMaps, 120); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((c) => c.draw()));
document.documentElement.dataset.ready = "yes";
