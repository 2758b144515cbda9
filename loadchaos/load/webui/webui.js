// Adds to Locust's page: a status strip on top, panels for our tabs, and a panel below Locust's charts. Puts our tabs first,
// hides what has no content in a run of a profile, and gives the form the words of the profile.
// The panels are escaped on the server. A shadow root keeps both pages' styles apart.
(() => {
  "use strict";
  const REFRESH_MS = 1000, TAB_POLL_MS = 150, MAX_STALE = 3;
  const PANELS = { server: "server", attacks: "attacks", capacity: "capacity", charts: "charts" };
  const PHASE_TEXTS = { idle: "ready", starting: "starting", preparing: "preparing the server and the load", load: "running", judging: "judging the run" };
  const TAB_ORDER = ["Server", "Attacks", "Failures", "Statistics", "Charts", "Capacity", "Workers", "Download Data"];
  const EMPTY_TABS = ["Exceptions", "Current Ratio", "Logs"]; // of Locust's own users and processes, which do nothing here
  const { token, profile, users } = window.loadchaos;
  const FORM_TEXTS = {
    "Start new load test": `Start a run of ${profile}`,
    "Number of users (peak concurrency)": `Users at once (the profile: ${users})`,
    "Ramp up (users started/second)": "Users started each second",
    "Host": "Server (set by --target)",
  };
  const root = document.getElementById("root");
  const query = new URLSearchParams(location.search);
  if (!query.has("tab")) { // Locust reads it when its module starts, which is after this script
    query.set("tab", "server");
    history.replaceState(null, "", `?${query}`);
  }

  const strip = document.createElement("div");
  strip.id = "loadchaos-strip";
  strip.style.cssText = "font:14px/1.6 system-ui,sans-serif;padding:6px 24px;background:#10302a;color:#e8f3ef;display:flex;gap:0 18px;flex-wrap:wrap";
  document.body.insertBefore(strip, root);

  const host = document.createElement("div");
  host.id = "loadchaos-panel";
  host.hidden = true;
  host.style.cssText = "max-width:1536px;margin:0 auto;padding:0 24px 48px";
  document.body.appendChild(host);
  const fit = document.createElement("style");
  fit.textContent = "#root>*{min-height:0!important}"; // Locust fills the window: our panel would begin below it
  document.head.appendChild(fit);
  const shadow = host.attachShadow({ mode: "open" });
  let shown = "", newest = "", stale = 0;

  const tab = () => (document.querySelector('[role="tab"]') ? new URLSearchParams(location.search).get("tab") || "stats" : "");

  function addPart(text, href, bold) {
    const e = document.createElement(href ? "a" : "span");
    e.textContent = text;
    if (href) { e.href = href; e.target = "_blank"; e.style.color = "#7fd8c0"; }
    if (bold) e.style.fontWeight = "600";
    strip.appendChild(e);
  }

  async function refresh_strip() {
    const s = await (await fetch("./loadchaos/state")).json();
    strip.replaceChildren();
    addPart(`loadchaos ${s.profile}`, "", true);
    strip.dataset.phase = s.phase;
    // Locust's page learns of a load by its own Start only. An answer that was in flight then may report no load: the page
    // shows its form, no tabs, and stops polling. A reload repairs this.
    stale = s.phase === "load" && !tab() ? stale + 1 : 0;
    if (stale > MAX_STALE) location.reload();
    strip.dataset.verdict = s.verdict || "";
    addPart(s.verdict ? `${s.verdict.toUpperCase()} (exit code ${s.exit_code})` : PHASE_TEXTS[s.phase] || s.phase, "", Boolean(s.verdict));
    if (s.error) addPart(s.error);
    if (!s.run) addPart(s.about);
    for (const link of s.links) addPart(link.title, `./loadchaos/runs/${encodeURIComponent(s.run)}/${link.href}`);
    if (s.run) addPart(s.run);
    if (s.search) addPart(s.search.about, `./loadchaos/searches/${encodeURIComponent(s.search.name)}/report.html`);
    for (const older of s.older) addPart(`report of ${older}`, `./loadchaos/runs/${encodeURIComponent(older)}/report.html`);
  }

  async function refresh_panel() {
    const name = PANELS[tab()];
    host.hidden = !name;
    if (!name) return;
    const text = await (await fetch(`./loadchaos/panel/${name}`)).text();
    const page = text || `<p>${name === "charts" ? "" : "No data yet: the run is being prepared, or no run was started."}</p>`;
    if (name !== PANELS[tab()]) return;
    if (name !== shown || page !== newest) draw(name, page);
    const dark = getComputedStyle(document.body).colorScheme === "dark" || isDark();
    for (const e of shadow.children) e.classList.toggle("dark", dark); // also of a page that has not changed
  }

  function draw(name, page) {
    // Keep the focused button and opened details when the panel is redrawn.
    const open = new Set([...shadow.querySelectorAll("details[open]")].map((d) => d.id));
    const focus = shadow.activeElement && shadow.activeElement.id;
    shadow.innerHTML = page;
    [shown, newest] = [name, page];
    for (const d of shadow.querySelectorAll("details")) d.open = open.has(d.id) || d.open;
    if (focus && shadow.getElementById(focus)) shadow.getElementById(focus).focus();
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
    setTimeout(() => { button.disabled = false; }, REFRESH_MS);
  });

  function arrange() {
    for (const t of document.querySelectorAll('[role="tab"]')) {
      t.style.order = TAB_ORDER.indexOf(t.textContent.trim());
      t.hidden = EMPTY_TABS.includes(t.textContent.trim());
      t.style.display = t.hidden ? "none" : "";
    }
    for (const a of root.querySelectorAll('a[href*="aka.ms"]')) a.style.display = "none"; // an advertisement
    const host = root.querySelector('input[name="host"]');
    if (host) host.readOnly = true;
    const locust_profile = root.querySelector('input[name="profile"]'); // a name in Locust's own reports: not our profile
    if (locust_profile) locust_profile.closest(".MuiFormControl-root").style.display = "none";
    for (const e of root.querySelectorAll("form label, form legend span, h2")) {
      const text = e.firstChild;
      const ours = text && text.nodeType === Node.TEXT_NODE && FORM_TEXTS[text.nodeValue.trim()];
      if (ours) text.nodeValue = ours;
    }
  }

  const repeat = (work, ms) => {
    const step = async () => {
      try { await work(); } catch (e) { strip.dataset.phase = "lost"; }
      setTimeout(step, ms);
    };
    step();
  };
  new MutationObserver(arrange).observe(root, { childList: true, subtree: true });
  repeat(refresh_strip, REFRESH_MS);
  repeat(refresh_panel, REFRESH_MS);
  // Locust fires no event when its tab changes: poll the address.
  let last = "";
  setInterval(() => { const now = tab(); if (now !== last) { last = now; refresh_panel().catch(() => {}); } }, TAB_POLL_MS);
})();
