// Draws what the follower made into Locust's own page: a strip on top, and panels for our tabs and under its charts.
// The panels come escaped from the server and stand in a shadow root, so that neither page's style reaches the other.
(() => {
  "use strict";
  const EVERY_MS = 1000, LOOK_MS = 150, ASTRAY = 3;
  const PANELS = { server: "server", attacks: "attacks", charts: "charts" };
  const WORDS = { idle: "ready", starting: "starting", preparing: "preparing the server and the load", load: "running", judging: "judging" };
  const { token } = window.loadchaos;
  const root = document.getElementById("root");

  const strip = document.createElement("div");
  strip.id = "loadchaos-strip";
  strip.style.cssText = "font:14px/1.6 system-ui,sans-serif;padding:6px 24px;background:#10302a;color:#e8f3ef;display:flex;gap:18px;flex-wrap:wrap";
  document.body.insertBefore(strip, root);

  const host = document.createElement("div");
  host.id = "loadchaos-panel";
  host.hidden = true;
  host.style.cssText = "max-width:1536px;margin:0 auto;padding:0 24px 48px";
  document.body.appendChild(host);
  const fit = document.createElement("style");
  fit.textContent = "#root>*{min-height:0!important}"; // Locust fills the window, and ours would begin below it
  document.head.appendChild(fit);
  const shadow = host.attachShadow({ mode: "open" });
  let shown = "", newest = "", astray = 0;

  const tab = () => (document.querySelector('[role="tab"]') ? new URLSearchParams(location.search).get("tab") || "stats" : "");

  function part(text, href, bold) {
    const e = document.createElement(href ? "a" : "span");
    e.textContent = text;
    if (href) { e.href = href; e.target = "_blank"; e.style.color = "#7fd8c0"; }
    if (bold) e.style.fontWeight = "600";
    strip.appendChild(e);
  }

  async function strip_now() {
    const s = await (await fetch("./loadchaos/state")).json();
    strip.replaceChildren();
    part(`loadchaos ${s.profile}`, "", true);
    strip.dataset.phase = s.phase;
    // Locust's page hears of a load by its own Start alone, and an answer that was on its way then tells it that there is
    // none: it shows its form, no tabs, and asks no more. Loaded anew it knows.
    astray = s.phase === "load" && !tab() ? astray + 1 : 0;
    if (astray > ASTRAY) location.reload();
    strip.dataset.verdict = s.verdict || "";
    part(s.verdict ? `${s.verdict.toUpperCase()} (exit code ${s.exit_code})` : WORDS[s.phase] || s.phase, "", Boolean(s.verdict));
    if (s.error) part(s.error);
    if (!s.run) part(s.about);
    for (const link of s.links) part(link.title, `./loadchaos/runs/${encodeURIComponent(s.run)}/${link.href}`);
    if (s.run) part(s.run);
    for (const older of s.older) part(`report of ${older}`, `./loadchaos/runs/${encodeURIComponent(older)}/report.html`);
  }

  async function panel_now() {
    const name = PANELS[tab()];
    host.hidden = !name;
    if (!name) return;
    const text = await (await fetch(`./loadchaos/panel/${name}`)).text();
    const page = text || `<p>${name === "charts" ? "" : "Nothing yet: the run is still being prepared, or none was started."}</p>`;
    if (name !== PANELS[tab()] || (name === shown && page === newest)) return;
    // A pressed or focused button and opened details outlive the redrawing.
    const open = new Set([...shadow.querySelectorAll("details[open]")].map((d) => d.id));
    const focus = shadow.activeElement && shadow.activeElement.id;
    shadow.innerHTML = page;
    [shown, newest] = [name, page];
    for (const d of shadow.querySelectorAll("details")) d.open = open.has(d.id) || d.open;
    if (focus && shadow.getElementById(focus)) shadow.getElementById(focus).focus();
    const dark = getComputedStyle(document.body).colorScheme === "dark" || isDark();
    for (const e of shadow.children) e.classList.toggle("dark", dark);
  }

  function isDark() {
    const [r, g, b] = (getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
    return r + g + b < 380;
  }

  shadow.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-attack]");
    if (!button) return;
    button.disabled = true;
    const answer = await fetch("./loadchaos/attack", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Loadchaos-Token": token },
      body: button.dataset.attack,
    });
    if (!answer.ok) { button.textContent = `${button.textContent}: ${await answer.text()}`; return; }
    setTimeout(() => { button.disabled = false; }, EVERY_MS);
  });

  const forever = (work, ms) => {
    const turn = async () => {
      try { await work(); } catch (e) { strip.dataset.phase = "lost"; }
      setTimeout(turn, ms);
    };
    turn();
  };
  forever(strip_now, EVERY_MS);
  forever(panel_now, EVERY_MS);
  // Locust changes its tab without a word to anybody: look at the address.
  let last = "";
  setInterval(() => { const now = tab(); if (now !== last) { last = now; panel_now().catch(() => {}); } }, LOOK_MS);
})();
