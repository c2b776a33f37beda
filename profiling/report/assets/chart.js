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
    on("pointerleave", (e) => { if (!this.drag && e.pointerType !== "touch") this.leave(); });
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
    this.drag = this.pointers.size > 1 ? { mode: "pinch" } : { mode, from: e.offsetX, to: e.offsetX, moved: false };
  }
  move(e) {
    if (!this.drag) { this.hover(e); return; }
    this.drag.moved ||= Math.abs(e.offsetX - this.drag.from) > 5;
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
    if (drag && drag.mode === "pan" && !drag.moved) this.hover(e); // a tap: there is no pointer to hover with
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
    this.tell(this.cursor, -1, box.left + this.place(x), box.top + this.top + 28); // below the peak's own words
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
    this.drops(pen, ink);
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
        pen.fillStyle = "#16181d";
        pen.fillText(name, (from + to) / 2, 24);
      }
    }
  }
  drops(pen, ink) {
    // Where a byte budget dropped values: a tick below the phases.
    let last = -9;
    this.ticks = 0;
    for (const time of this.tide.data.drops) {
      const at = Math.round(this.place(this.axisOf(time))) + 0.5;
      if (at < this.left || at > this.width || at - last < 2) continue;
      line(pen, ink, [at, this.top - 2], [at, this.top + 7]);
      last = at;
      this.ticks++;
    }
  }
  marks(pen, soft) {
    // Where there are more than can be told apart, only those with a name have a line: the tide shows.
    const shown = this.tide.run.marks.map(([time, name]) => [this.place(this.axisOf(time)), name])
      .filter(([at]) => at >= this.left && at <= this.width);
    const dense = shown.length * 12 > this.width - this.left;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.setLineDash([3, 3]);
    let free = this.left;
    this.lines = 0;
    for (const [at, name] of shown) {
      const half = pen.measureText(name).width / 2;
      const middle = Math.min(Math.max(at, this.left + half), this.width - half), fits = middle - half >= free;
      if (fits || !dense) { line(pen, soft, [at, this.top], [at, this.bottom]); this.lines++; }
      if (!fits) continue;
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
