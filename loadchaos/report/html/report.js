// Replaces report.html's static charts by interactive ones (uPlot): a cursor line through all charts with the values
// under it; dragging zooms all charts, the timeline and the heatmaps. Without this script only cursor and zoom are
// missing. The static charts are printed.
(() => {
  "use strict";
  const home = document.querySelector(".times");
  if (!home) return;
  const { from, to, width, utc, start, points, shades, charts } = JSON.parse(document.getElementById("numbers").textContent);
  const HEIGHT = 120, AXIS = 22, ABOVE = 7;
  const LAST = 0.05; // of the width: a label there would stick out
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
  const all = (css, within = home) => [...within.querySelectorAll(css)];
  const times = Array.from({ length: points }, (_, i) => start + (i + 0.5) * width);
  const now = document.getElementById("now"), whole = document.getElementById("whole");
  let low = from, high = to, pointed = null, colours = {};

  const addElement = (tag, css, parent) => {
    const e = document.createElement(tag);
    e.className = css;
    parent.append(e);
    return e;
  };
  const two = (n) => String(n).padStart(2, "0");
  const clock = (s) => {
    if (s < 0) return `-${Math.round(-s)} s`;
    const t = Math.floor(s);
    return t < 3600 ? `${Math.floor(t / 60)}:${two(t % 60)}` : `${Math.floor(t / 3600)}:${two(Math.floor(t / 60) % 60)}:${two(t % 60)}`;
  };
  const utcClock = (s) => {
    const d = new Date((utc + s) * 1000);
    return `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())} UTC`;
  };
  const short = (v) => (v >= 100 ? Math.round(v).toLocaleString("en-US") : String(Number(v.toPrecision(3))));
  const format = (v, unit) => {
    if (v === null || v === undefined) return "–";
    if (unit === "%") return `${short(v * 100)} %`;
    if (unit !== "s" || v === 0) return short(v);
    return v < 0.001 ? `${short(v * 1e6)} µs` : v < 1 ? `${short(v * 1000)} ms` : v < 120 ? `${v >= 100 ? Math.round(v) : v.toFixed(1)} s` : `${short(v / 60)} min`;
  };

  const ticks = () => {
    const step = STEPS.find((x) => (high - low) / x <= 7) || 604800 * Math.ceil((high - low) / 604800 / 7);
    const first = Math.ceil(low / step), last = Math.floor((high - (high - low) * LAST) / step);
    return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
  };

  // Colours of the page by class and variable name; they change with light and dark mode.
  const probe = addElement("span", "", home);
  probe.hidden = true;
  const colour = (name, css = "") => {
    probe.className = css;
    return (colours[name + css] ||= getComputedStyle(probe).getPropertyValue(name));
  };
  const of = (css) => () => colour("--c", css);

  // The top of each curve of a stack; the highest is drawn first, the lower ones over it.
  const stacked = (curves) => {
    const sum = new Array(points).fill(0);
    return curves.map((c) => c.values.map((v, i) => (sum[i] += v || 0)));
  };
  // A logarithmic scale has no place for 0: draw it at the lowest value.
  const clampToLeast = (curves) => {
    const least = curves.reduce((low, c) => c.values.reduce((a, v) => (v > 0 && v < a ? v : a), low), Infinity);
    return curves.map((c) => c.values.map((v) => (v === null ? null : Math.max(v, least))));
  };
  const isolated = (values) => values.flatMap((v, i) => (v !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? [i] : []));

  function series(chart, curve, values) {
    if (chart.stacked) {
      return { fill: of(curve.css), width: 0, paths: uPlot.paths.bars({ size: [1, Infinity], gap: 0 }), points: { show: false } };
    }
    const lone = isolated(values);
    return { stroke: of(curve.css), width: 1.6, spanGaps: false, points: { show: true, size: 5, width: 0, fill: of(curve.css), filter: () => lone } };
  }

  function drawShades(u) {
    const { ctx, bbox } = u;
    const x = (s) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, u.valToPos(s, "x", true)));
    ctx.save();
    ctx.fillStyle = colour("--soft");
    ctx.fillRect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.globalAlpha = 0.13;
    for (const shade of shades) {
      ctx.fillStyle = colour("--c", shade.css);
      for (const [a, b] of shade.spans) {
        if (b >= low && a <= high) ctx.fillRect(x(a), bbox.top, Math.max(1, x(b) - x(a)), bbox.height);
      }
    }
    ctx.restore();
  }

  function plotted(figure, i) {
    const chart = charts[i], place = figure.querySelector(".plot");
    if (!place) return null;
    const left = parseFloat(getComputedStyle(figure).paddingLeft);
    const tops = chart.stacked ? stacked(chart.curves) : chart.log ? clampToLeast(chart.curves) : chart.curves.map((c) => c.values);
    const order = tops.map((_, k) => (chart.stacked ? tops.length - 1 - k : k));
    const keys = all(".key", figure).map((e, k) => ({ e: addElement("b", "value", e), values: chart.curves[k].values }));
    const axis = { stroke: () => colour("--dim"), font: "11px system-ui", ticks: { show: false } };
    const decade = (v) => (Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9 ? v : null);
    const grid = { stroke: () => colour("--edge"), width: 1, ...(chart.log && { filter: (_, splits) => splits.map(decade) }) };
    const range = chart.log ? undefined : (_, __, most) => [0, chart.top || (most > 0 ? most * 1.05 : 1)];
    figure.classList.add("live");
    const u = new uPlot(
      {
        width: place.clientWidth + left, height: ABOVE + HEIGHT + AXIS, legend: { show: false }, padding: [ABOVE, 0, 0, 0],
        scales: { x: { time: false, range: () => [low, high] }, y: { distr: chart.log ? 3 : 1, range } },
        series: [{}, ...order.map((k) => series(chart, chart.curves[k], tops[k]))],
        axes: [
          { ...axis, size: AXIS, splits: ticks, grid: { show: false }, values: (_, splits) => splits.map(clock) },
          { ...axis, size: left, space: 34, grid, values: (_, splits) => splits.map((v) => (v === null ? "" : format(v, chart.unit))) },
        ],
        cursor: {
          sync: { key: "run", scales: ["x", null] }, drag: { x: true, y: false, setScale: false, dist: 6 }, y: false,
          points: chart.stacked ? { show: false } : { size: 7 }, bind: { dblclick: () => () => zoom(from, to) },
        },
        hooks: {
          drawClear: [drawShades],
          setCursor: [(u) => { for (const k of keys) k.e.textContent = u.cursor.idx === null ? "" : format(k.values[u.cursor.idx], chart.unit); showCursor(u); }],
          // All charts show the selection; only the one under the pointer zooms.
          setSelect: [(u) => {
            const { left, width } = u.select;
            u.setSelect({ left: 0, width: 0 }, false);
            if (pointed === u && width > 0) zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
          }],
        },
      },
      [times, ...order.map((k) => tops[k])],
      figure,
    );
    u.root.style.marginLeft = `${-left}px`;
    for (const mark of all(".mark", place)) u.over.append(mark.cloneNode()); // the drawn charts are printed
    bindTouchAndKeys(u);
    return u;
  }

  // Touch acts as a mouse, except that vertical moves scroll the page; arrow keys move the cursor line.
  function bindTouchAndKeys(u) {
    const { over } = u;
    const as = { pointerdown: "mousedown", pointermove: "mousemove", pointerup: "mouseup", pointercancel: "mouseup" };
    for (const [kind, mouse] of Object.entries(as)) {
      over.addEventListener(kind, (e) => {
        if (kind === "pointerdown") pointed = u;
        if (kind === "pointercancel") pointed = null;
        if (e.pointerType === "mouse") return;
        over.dispatchEvent(new MouseEvent(mouse, { clientX: e.clientX, clientY: e.clientY, button: 0, bubbles: true }));
      });
    }
    over.tabIndex = 0;
    over.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (e.key === "Escape") zoom(from, to);
      if (!by) return;
      e.preventDefault();
      const i = u.cursor.idx ?? u.valToIdx((low + high) / 2);
      const at = times[Math.min(u.valToIdx(high), Math.max(u.valToIdx(low), i + by))];
      u.setCursor({ left: u.valToPos(at, "x"), top: HEIGHT / 2 }, true, true);
    });
  }

  // Timeline and heatmaps follow the zoom and the cursor of the charts.
  const placed = [...all(".bar"), ...all(".mark")].map((e) => ({ e, left: parseFloat(e.style.left), width: parseFloat(e.style.width) || 0 }));
  const cursors = all(".lane, .heat .plot").map((p) => addElement("span", "cross", p));
  const share = (s) => ((s - from) / (to - from)) * 100;
  const axes = all(".lanes .axis, .heat .axis"), heat = all(".heat svg");

  function showCursor(u) {
    const i = u.cursor.idx;
    for (const e of cursors) {
      e.style.display = i === null ? "none" : "block";
      if (i !== null) e.style.left = `${(u.cursor.left / u.over.clientWidth) * 100}%`;
    }
    const at = i === null ? null : start + i * width;
    now.textContent = at === null ? "" : `at ${clock(at)}${utc === null ? "" : `, ${utcClock(at)}`}`;
  }

  function zoom(a, b) {
    const [s, e] = [Math.max(from, Math.min(a, b)), Math.min(to, Math.max(a, b))];
    if (e - s < 2 * width && e - s < to - from) return;
    [low, high] = [s, e];
    for (const u of live) u.setScale("x", { min: low, max: high });
    const first = share(low), k = 100 / (share(high) - first);
    for (const p of placed) {
      const right = Math.min(100, (p.left + p.width - first) * k), left = Math.max(0, (p.left - first) * k);
      p.e.hidden = right < 0 || left > 100;
      p.e.style.left = `${left}%`;
      if (p.width) p.e.style.width = `${Math.max(0, right - left)}%`;
    }
    for (const e of heat) e.setAttribute("viewBox", `${first * 10} 0 ${1000 / k} 100`); // per cent of 1000
    for (const axis of axes) {
      axis.replaceChildren();
      for (const t of ticks()) {
        const e = addElement("span", "", axis);
        e.textContent = clock(t);
        e.style.left = `${(share(t) - first) * k}%`;
      }
    }
    whole.hidden = low === from && high === to;
  }

  const figures = all(".wide:not(.heat)");
  const live = figures.map(plotted).filter(Boolean);
  document.getElementById("hint").hidden = live.length === 0;
  whole.addEventListener("click", () => zoom(from, to));
  addEventListener("beforeprint", () => zoom(from, to));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = {};
    for (const u of live) u.redraw();
  });
  new ResizeObserver(() => {
    for (const u of live) {
      const figure = u.root.parentNode, style = getComputedStyle(figure);
      const width = figure.clientWidth - parseFloat(style.paddingRight);
      if (width > 0 && width !== u.width) u.setSize({ width, height: ABOVE + HEIGHT + AXIS });
    }
  }).observe(home);
})();
