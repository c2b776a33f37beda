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
