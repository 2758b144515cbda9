// Reads and enlarges the charts of report.html: a line under the pointer through all of them, with the values there;
// dragging chooses a stretch of time. The page says everything without this script, which asks nobody for anything.
(() => {
  "use strict";
  const home = document.querySelector(".times");
  if (!home) return;
  const [from, to, width] = ["from", "to", "width"].map((k) => Number(home.dataset[k]));
  const all = (css, within = home) => [...within.querySelectorAll(css)];
  const plots = all(".plot"), places = all(".plot,.lane"), axes = all(".axis");
  const placed = all(".bar,.shade,.mark").map((e) => ({ e, left: parseFloat(e.style.left), width: parseFloat(e.style.width) || 0 }));
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400];
  const share = (s) => ((s - from) / (to - from)) * 100;
  let low = from, high = to, chosen = null, began = null;

  const made = (tag, css, parent) => {
    const e = document.createElement(tag);
    e.className = css;
    parent.append(e);
    return e;
  };
  const lines = places.map((p) => made("span", "cross", p));
  const stretch = plots.map((p) => made("span", "stretch", p));
  const keys = all(".key[data-v]").map((e) => ({
    value: made("b", "value", e),
    unit: e.dataset.unit,
    of: e.dataset.v.split(",").map((v) => (v === "" ? null : Number(v))),
  }));
  const now = document.getElementById("now"), whole = document.getElementById("whole");
  document.getElementById("hint").hidden = false;

  const clock = (s) => {
    if (s < 0) return `-${Math.round(-s)} s`;
    const t = Math.floor(s), two = (n) => String(n).padStart(2, "0");
    return t < 3600 ? `${Math.floor(t / 60)}:${two(t % 60)}` : `${Math.floor(t / 3600)}:${two(Math.floor(t / 60) % 60)}:${two(t % 60)}`;
  };
  const short = (v) => (v >= 100 ? Math.round(v).toLocaleString("en-US") : String(Number(v.toPrecision(3))));
  const words = (v, unit) => {
    if (v === null || v === undefined) return "–";
    if (unit === "%") return `${short(v * 100)} %`;
    if (unit !== "s") return short(v);
    return v < 0.001 ? `${short(v * 1e6)} µs` : v < 1 ? `${short(v * 1000)} ms` : v < 120 ? `${short(v)} s` : `${short(v / 60)} min`;
  };

  function draw() {
    const a = share(low), b = share(high), k = 100 / (b - a);
    for (const p of placed) {
      const right = Math.min(100, (p.left + p.width - a) * k), left = Math.max(0, (p.left - a) * k);
      p.e.hidden = right < 0 || left > 100;
      p.e.style.left = `${left}%`;
      if (p.width) p.e.style.width = `${Math.max(0, right - left)}%`;
    }
    for (const p of plots) p.querySelector("svg").setAttribute("viewBox", `${a * 10} 0 ${(b - a) * 10} 100`);
    const step = STEPS.find((s) => (high - low) / s <= 7) || 86400 * Math.ceil((high - low) / 86400 / 7);
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high; t += step) ticks.push(t);
    for (const axis of axes) {
      axis.replaceChildren();
      for (const t of ticks) {
        const e = made("span", "", axis);
        e.textContent = clock(t);
        e.style.left = `${(share(t) - a) * k}%`;
      }
    }
    whole.hidden = low === from && high === to;
    show(null);
  }

  // The point that `s` lies in; null takes the line and the values away.
  function show(s) {
    chosen = s;
    const i = s === null ? -1 : Math.floor((s - from) / width);
    const middle = Math.min(high, Math.max(low, from + (i + 0.5) * width)); // where its points are drawn
    for (const e of lines) {
      e.style.display = s === null ? "none" : "block";
      e.style.left = `${((middle - low) / (high - low)) * 100}%`;
    }
    for (const k of keys) k.value.textContent = s === null ? "" : words(k.of[i], k.unit);
    now.textContent = s === null ? "" : `at ${clock(from + i * width)}`;
  }

  function choose(a, b) {
    const [s, e] = [Math.max(from, Math.min(a, b)), Math.min(to, Math.max(a, b))];
    if (e - s < 2 * width) return;
    [low, high] = [s, e];
    draw();
  }

  const under = (event, plot) => {
    const box = plot.getBoundingClientRect();
    return low + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (high - low);
  };
  const mark = (a, b) => {
    for (const e of stretch) {
      e.style.display = b === null ? "none" : "block";
      if (b === null) continue;
      e.style.left = `${((Math.min(a, b) - low) / (high - low)) * 100}%`;
      e.style.width = `${(Math.abs(b - a) / (high - low)) * 100}%`;
    }
  };
  for (const plot of plots) {
    plot.tabIndex = 0;
    plot.addEventListener("pointermove", (event) => {
      const s = under(event, plot);
      show(Math.min(s, to - 1e-9));
      if (began !== null) mark(began, s);
    });
    plot.addEventListener("pointerleave", () => began === null && show(null));
    plot.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      began = under(event, plot);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointerup", (event) => {
      const a = began;
      began = null;
      mark(0, null);
      if (a !== null) choose(a, under(event, plot));
    });
    plot.addEventListener("pointercancel", () => {
      began = null;
      mark(0, null);
    });
    plot.addEventListener("dblclick", () => choose(from, to));
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -width, ArrowRight: width }[event.key];
      if (by) {
        event.preventDefault();
        show(Math.min(high - 1e-9, Math.max(low, (chosen === null ? (low + high) / 2 : chosen) + by)));
      } else if (event.key === "Escape") choose(from, to);
    });
  }
  whole.addEventListener("click", () => choose(from, to));
})();
