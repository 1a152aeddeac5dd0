// Tabs, and what the pointer shows over a plot. Asks nobody for anything; without it the page can still be read.
"use strict";
(() => {
  const read = (element) => (element ? JSON.parse(element.textContent) : null);
  const times = read(document.getElementById("times"));
  const box = document.getElementById("readout");
  const sections = [...document.querySelectorAll("section")];
  const tabs = [...document.querySelectorAll(".tabs a")];
  const MOST = 16;

  const show = () => {
    if (tabs.length === 0) return;
    const name = location.hash.slice(1);
    const chosen = sections.find((s) => s.id === name) || sections[0];
    for (const s of sections) s.style.display = s === chosen ? "" : "none";
    for (const t of tabs) {
      if (t.hash === "#" + chosen.id) t.setAttribute("aria-current", "page");
      else t.removeAttribute("aria-current");
    }
  };
  addEventListener("hashchange", () => { show(); scrollTo(0, 0); });
  if (tabs.length > 0) {
    // The browser scrolls to the address's section by itself; in tabs its top is the page's.
    document.documentElement.classList.add("tabbed");
    show();
  }

  // The same as units.py: the last rung that the value reaches, three digits.
  const text = (value, unit) => {
    if (unit.t) return new Date(value).toISOString().slice(0, 19).replace("T", " ") + " UTC";
    const size = Math.abs(value);
    let rung = unit.l[0];
    for (const r of unit.l) if (size ? size >= r[0] * (1 - 5e-4) : r[0] <= 1) rung = r;
    const v = value / rung[1], s = Math.abs(v);
    const digits = s >= 100 ? 0 : s >= 10 ? 1 : s >= 1 ? 2 : 3;
    const shown = s > 0 && s < 1e-3 ? v.toExponential(1).replace(".0e", "e") : v.toLocaleString("en-US", { maximumFractionDigits: digits });
    return unit.p + (shown === "-0" ? "0" : shown) + rung[2];
  };

  const row = (colour, name, value) => {
    const line = document.createElement("div"), left = document.createElement("span"), mark = document.createElement("i");
    mark.className = "swatch";
    mark.style.setProperty("--c", colour);
    left.append(mark, name);
    const right = document.createElement("b");
    right.textContent = value;
    line.append(left, right);
    return line;
  };

  const cache = new WeakMap();
  const data = (element, of) => {
    if (!cache.has(element)) cache.set(element, of());
    return cache.get(element);
  };
  let pointed = null;
  const leave = () => {
    box.hidden = true;
    if (pointed) pointed.classList.remove("pointed");
    pointed = null;
  };

  const point = (event) => {
    const area = event.target.closest ? event.target.closest(".area") : null;
    if (!area) return leave();
    const edges = area.getBoundingClientRect();
    const share = (event.clientX - edges.left) / edges.width;
    if (share < -0.01 || share > 1.01) return leave();
    const index = Math.min(times.length - 1, Math.max(0, Math.round(share * (times.length - 1))));
    const section = area.closest("section");
    if (pointed !== section) leave();
    pointed = section;
    section.classList.add("pointed");
    section.style.setProperty("--at", (index / Math.max(1, times.length - 1)) * 100 + "%");
    const d = data(area, () => read(area.parentElement.querySelector("script")));
    const bands = data(section, () => read(section.querySelector("script.bands")) || []);
    let rows = d.n.map((name, i) => ({ name, colour: d.c[i], value: d.v[i][index], unit: d.u[d.s[i]] }));
    rows = rows.filter((r) => r.value !== null && (d.d || r.value !== 0));
    if (d.d) rows.sort((a, b) => b.value - a.value);
    const head = document.createElement("strong");
    head.textContent = times[index];
    box.replaceChildren(head);
    for (const b of bands) if (b.f <= index && index <= b.l) box.append(row(b.c, b.n, ""));
    for (const r of rows.slice(0, MOST)) box.append(row(r.colour, r.name, text(r.value, r.unit)));
    if (rows.length > MOST) box.append(row("transparent", "and " + (rows.length - MOST) + " more", ""));
    if (rows.length === 0) box.append(row("transparent", "nothing", ""));
    box.hidden = false;
    const x = event.clientX + 16, y = event.clientY + 16;
    box.style.left = Math.max(4, x + box.offsetWidth > innerWidth ? event.clientX - 12 - box.offsetWidth : x) + "px";
    box.style.top = Math.max(4, Math.min(y, innerHeight - box.offsetHeight - 4)) + "px";
  };
  addEventListener("pointermove", point);
  addEventListener("pointerdown", point);
  document.addEventListener("pointerleave", leave);
  addEventListener("scroll", leave, { passive: true });
})();
