// One page, two uses: a report carries its content in #payload; the dashboard asks the server for it every few seconds.
"use strict";
(() => {
  const POLL = 3000;
  const ONE_ROW = 30; // pixels of a legend that need no room
  const BAR = 34; // pixels of a bar and its name
  const SPARE = 2; // figures out of view that are drawn again with each answer
  const $ = (id) => document.getElementById(id);
  const cards = new Map(); // id -> {element, plot, wanted: figure as text, drawn: figure as text, near}
  const states = {
    running: "a process writes it now", finished: "all frames played", stopped: "stopped with a checkpoint; dicerl resume goes on",
    failed: "ended with an error; see its events", dead: "its process is gone without a last checkpoint; dicerl resume goes on",
  };

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (name in element && typeof value !== "string") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const count = (value) => Number(value).toLocaleString("en-US", { maximumFractionDigits: 0 });
  const amount = (value) => Number(value).toLocaleString("en-US", { maximumFractionDigits: Math.abs(value) < 1000 ? 2 : 0 });

  // --- figures

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const [text, grid, card, line, font] = ["--text", "--grid", "--card", "--line", "--font"].map((n) => style.getPropertyValue(n).trim());
    const axis = { title: { font: { size: 12 } }, gridcolor: grid, zerolinecolor: grid, linecolor: line, tickcolor: line };
    return { layout: {
      font: { color: text, family: font, size: 12 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      modebar: { bgcolor: card, color: text },
      hoverlabel: { bgcolor: card, bordercolor: line, font: { color: text } }, xaxis: axis, yaxis: axis,
    } };
  }

  // --- what the reader chose for all figures: time instead of frames, and means over a part of the axis

  const UNITS = [["h", 3600], ["min", 60], ["s", 1]];
  const chosen = { time: false, smooth: 0 };

  // Mean over the points within half of `width` to either side: it does not lag behind.
  function smoothed(x, y, width) {
    return y.map((own, i) => {
      if (own === null) return null;
      let [sum, n] = [0, 0];
      x.forEach((at, j) => { if (y[j] !== null && Math.abs(at - x[i]) <= width / 2) { sum += y[j]; n += 1; } });
      return sum / n;
    });
  }

  function asChosen(figure) {
    const axis = figure.layout.xaxis;
    if (axis.title.text !== "frames") return figure;
    const times = figure.data.map((t) => (t.meta && t.meta.seconds) || [null]);
    const last = Math.max(...times.flat());
    if (chosen.time && last > 0 && !times.flat().includes(null)) {
      const [unit, size] = UNITS.find(([, s]) => last >= 3 * s) || UNITS.at(-1);
      figure.data.forEach((trace, i) => {
        trace.x = times[i].map((s) => s / size);
        if (trace.hovertemplate) trace.hovertemplate = trace.hovertemplate.replace(/^frames %{x[^}]*}/, `%{x:.3~g} ${unit}`);
      });
      axis.title.text = `training time (${unit})`;
      axis.tickformat = axis.hoverformat = ".3~g";
      if (axis.range) axis.range = [0, last / size];
    }
    if (chosen.smooth > 0) {
      const width = Math.max(...figure.data.flatMap((t) => t.x)) * chosen.smooth / 100;
      for (const trace of figure.data.filter((t) => t.meta && t.meta.smooth)) {
        const half = trace.fill ? trace.x.length / 2 : trace.x.length; // a shade goes along its upper edge and back
        const parts = [[0, half], [half, trace.x.length]].filter(([from, to]) => to > from);
        trace.y = parts.flatMap(([from, to]) => smoothed(trace.x.slice(from, to), trace.y.slice(from, to), width));
      }
    }
    figure.layout.uirevision = axis.title.text; // a zoom is kept, but not from frames to time
    return figure;
  }

  function showControls() {
    const pick = (value, words) => {
      const box = make("input", { type: "radio", name: "axis", value: words, checked: chosen.time === value });
      box.addEventListener("change", () => { chosen.time = value; drawAnew(); });
      return make("label", {}, box, words);
    };
    const said = make("output", {}, "none");
    const slider = make("input", { type: "range", min: "0", max: "30", step: "1", value: "0", "aria-label": "smoothing, in percent of the axis" });
    slider.addEventListener("input", () => {
      chosen.smooth = Number(slider.value);
      said.textContent = chosen.smooth ? `means over ${chosen.smooth} %` : "none";
      drawAnew();
    });
    $("controls").replaceChildren(make("span", {}, "x axis:", pick(false, "frames"), pick(true, "time")), make("label", {}, "smoothing", slider, said));
  }

  function drawAnew() {
    cards.forEach((card) => { card.drawn = null; });
    drawAll();
  }

  // A long name in several rows: Plotly cuts what does not fit.
  function wrapped(name, letters) {
    const rows = [""];
    for (const part of name.split(" · ")) {
      const row = rows.at(-1) ? `${rows.at(-1)} · ${part}` : part;
      if (row.length > letters && rows.at(-1)) rows.push(part);
      else rows[rows.length - 1] = row;
    }
    return rows.join("<br>");
  }

  const nextFrame = () => new Promise((go) => setTimeout(go, 0));
  const plotly = window.Plotly ? Promise.resolve() : new Promise((go) => $("plotly").addEventListener("load", go));

  async function draw(card) {
    card.drawn = card.wanted;
    const figure = asChosen(JSON.parse(card.wanted));
    const letters = Math.max(20, card.plot.clientWidth / 7 - 8); // that fit into a legend's row
    for (const trace of figure.data) if (trace.name) trace.name = wrapped(trace.name, letters);
    const mouse = matchMedia("(hover: hover)").matches; // a finger scrolls the page instead of zooming
    const layout = { ...figure.layout, template: theme(), autosize: true, ...(mouse ? {} : { dragmode: false }) };
    const config = { responsive: true, displaylogo: false, displayModeBar: mouse ? "hover" : false, modeBarButtons: [["toImage", "resetScale2d"]] };
    await Plotly.react(card.plot, figure.data, layout, config);
    await makeRoom(card);
  }

  // A legend of several rows stands above the plot, not in its place; so do many bars.
  async function makeRoom(card) {
    const legend = card.plot.querySelector(".legend .bg");
    const extra = legend ? Math.max(0, Math.round(legend.getBoundingClientRect().height) - ONE_ROW) : 0;
    const { rows } = card.plot.layout.meta || { rows: 0 };
    const height = extra || rows ? `calc(max(var(--plot), ${BAR * rows + 80}px) + ${extra}px)` : "";
    if (card.plot.style.height === height) return;
    card.plot.style.height = height;
    await Plotly.relayout(card.plot, { autosize: true });
  }

  let drawing = false;
  async function drawAll() {
    if (drawing) return;
    drawing = true;
    try {
      await plotly;
      // New figures and those in view at once; of the others a few each time, so that a live page stays light.
      let spare = SPARE;
      for (;;) {
        const due = [...cards.values()].filter((c) => c.wanted !== c.drawn);
        const next = due.find((c) => c.near) || due.find((c) => c.drawn === null) || (spare-- > 0 && due[0]);
        if (!next) break;
        await draw(next);
        await nextFrame();
      }
    } finally {
      drawing = false;
    }
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.target.card.near = entry.isIntersecting;
    drawAll();
  }, { rootMargin: "300px" });

  let shape = "";
  let subject = "";
  function showSections(sections, runs) {
    if (runs !== subject) cards.forEach((card) => { card.drawn = null; }); // other runs: draw all anew
    subject = runs;
    const ids = new Set(sections.flatMap((s) => s.cards.map((c) => c.id)));
    for (const [id, card] of cards) {
      if (ids.has(id)) continue;
      watcher.unobserve(card.element);
      if (window.Plotly) Plotly.purge(card.plot);
      cards.delete(id);
    }
    for (const one of sections.flatMap((s) => s.cards)) {
      let card = cards.get(one.id);
      if (!card) {
        const plot = make("div", { class: "plot" });
        const element = make("article", { class: "card", "data-id": one.id }, make("h3", {}, one.title), plot, make("p", { class: "caption" }, one.caption));
        card = { element, plot, drawn: null, near: false };
        element.card = card;
        cards.set(one.id, card);
        watcher.observe(element);
      }
      card.wanted = JSON.stringify(one.figure);
    }
    $("controls").hidden = !cards.size;
    const now = JSON.stringify(sections.map((s) => [s.title, s.missing, s.cards.map((c) => c.id)]));
    if (now !== shape) {
      shape = now;
      $("figures").replaceChildren(...sections.map((s) => make("section", {}, make("h2", {}, s.title),
        make("div", { class: "cards" }, ...s.cards.map((c) => cards.get(c.id).element)),
        ...(s.missing.length ? [make("p", { class: "missing" }, `Left out: ${s.missing.join("; ")}.`)] : []))));
    }
    drawAll();
  }

  // --- runs

  function runRow(run, box) {
    const facts = [make("span", { class: `state ${run.state}`, title: states[run.state] || "" }, run.state)];
    facts.push(run.total_frames ? `${count(run.frames)} of ${count(run.total_frames)} frames` : `${count(run.frames)} frames`);
    if (run.score !== null && run.score !== undefined) {
      const error = run.stderr ? ` ± ${amount(run.stderr)}` : "";
      facts.push(`${run.score_of === "evaluation" ? "evaluation" : "recent return"} ${amount(run.score)}${error}`);
    }
    if (run.problem) facts.push(run.problem);
    const done = run.total_frames ? Math.min(100, (100 * run.frames) / run.total_frames) : 0;
    const fill = make("div");
    fill.style.width = `${done}%`;
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = run.colour;
    return make(box ? "label" : "div", { class: "run", "data-run": run.id }, box || "", make("div", {},
      make("div", { class: "name" }, swatch, run.name),
      make("div", { class: "facts" }, ...facts.map((f) => (typeof f === "string" ? make("span", {}, f) : f))),
      make("div", { class: "bar", role: "progressbar", "aria-valuenow": done.toFixed(0) }, fill)));
  }

  const shown = (value) => (typeof value === "string" ? value || "–" : JSON.stringify(value));

  function details(run) {
    const about = [`${run.env}, ${run.variant}, seed ${shown(run.seed)}`];
    about.push(run.version ? `dicerl ${run.version}${run.commit ? `, commit ${run.commit}` : ", commit unknown"}` : "version and commit unknown");
    if (run.damaged) about.push(`${run.damaged} damaged line${run.damaged > 1 ? "s" : ""} of metrics.jsonl passed over`);
    if (run.problem) about.push(run.problem);
    const parts = [make("p", { class: "caption" }, about.join(" · "))];
    if (run.video) {
      if (run.video.src) parts.push(make("video", { src: run.video.src, controls: true, muted: true, loop: true, preload: "metadata" }));
      parts.push(make("p", { class: "caption" }, "Video: ", make("a", { href: run.video.href }, run.video.name)));
    }
    if (run.events.length) parts.push(make("p", { class: "caption" }, `Events: ${run.events.join("; ")}`));
    parts.push(make("ul", { class: "settings" }, ...Object.entries(run.config).map(([k, v]) => make("li", {}, make("span", {}, k), make("span", {}, shown(v))))));
    return make("details", { "data-run": run.id, ...(run.video ? { open: true } : {}) }, make("summary", {}, run.name), ...parts);
  }

  let detailed = "";
  function showDetails(content) {
    const now = JSON.stringify(content.runs.map((r) => [r.id, r.config, r.events, r.video, r.damaged, r.version, r.commit, r.problem]));
    if (now === detailed) return; // a video that plays is not disturbed
    detailed = now;
    const open = new Set([...$("details").querySelectorAll("details[open]")].map((d) => d.dataset.run));
    const parts = content.runs.length ? [make("h2", {}, "Configuration and commit")] : [];
    if (content.differences.length) {
      parts.push(make("details", { open: true }, make("summary", {}, "What differs between these runs"), make("div", { class: "scroll" }, make("table", {},
        make("tr", {}, make("th", {}, ""), ...content.runs.map((r) => make("th", {}, r.name))),
        ...content.differences.map((n) => make("tr", {}, make("th", {}, n), ...content.runs.map((r) => make("td", {}, shown(r.config[n])))))))));
    }
    for (const run of content.runs) {
      const part = details(run);
      if (open.has(run.id)) part.open = true;
      parts.push(part);
    }
    $("details").replaceChildren(...parts);
  }

  function showMessage(...parts) {
    $("message").hidden = !parts.length;
    $("message").replaceChildren(...parts);
  }

  addEventListener("beforeprint", () => cards.forEach((card) => { if (card.wanted !== card.drawn) draw(card); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
  showControls();

  if ($("payload")) {
    const content = JSON.parse($("payload").textContent);
    $("list").replaceChildren(...content.runs.map((run) => runRow(run, null)));
    showSections(content.sections, "");
    showDetails(content);
    return;
  }

  // --- the dashboard: which runs are picked stands in the address, so a reload or a bookmark keeps it

  const readHash = () => (location.hash.length > 1 ? location.hash.slice(1).split(",").filter((n) => n !== "none").map(decodeURIComponent) : null);
  let asked = 0;
  let version = "";
  let timer = 0;
  let filter = "";
  let listed = [];
  let picked = [];

  function pick(names) {
    history.replaceState(null, "", `#${names.length ? names.map(encodeURIComponent).join(",") : "none"}`);
    poll();
  }

  function showList() {
    if (!listed.length) return $("list").replaceChildren();
    const rows = listed.filter((r) => `${r.name} ${r.env} ${r.state}`.toLowerCase().includes(filter)).map((run) => {
      const box = make("input", { type: "checkbox", checked: picked.includes(run.id), "aria-label": run.name });
      box.addEventListener("change", () => {
        picked = box.checked ? [...picked, run.id] : picked.filter((id) => id !== run.id);
        pick(picked);
      });
      return runRow(run, box);
    });
    let tools = $("list").querySelector(".tools");
    if (!tools) {
      const words = make("input", { type: "search", placeholder: "filter", "aria-label": "filter runs" });
      words.addEventListener("input", () => { filter = words.value.toLowerCase(); showList(); });
      const none = make("button", { type: "button" }, "none");
      none.addEventListener("click", () => pick([]));
      const all = make("button", { type: "button" }, "all");
      all.addEventListener("click", () => pick([...$("list").querySelectorAll(".run")].map((r) => r.dataset.run)));
      tools = make("div", { class: "tools" }, words, all, none);
      $("list").replaceChildren(tools);
    }
    const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
    while (tools.nextSibling) tools.nextSibling.remove();
    $("list").append(...rows);
    const again = focused && [...$("list").querySelectorAll(".run input")].find((i) => i.getAttribute("aria-label") === focused);
    if (again) again.focus({ preventScroll: true });
  }

  async function poll() {
    clearTimeout(timer);
    const mine = ++asked;
    const wanted = readHash();
    const query = new URLSearchParams([["have", version], ...(wanted === null ? [["default", "1"]] : wanted.map((name) => ["run", name]))]);
    try {
      const answer = await fetch(`api/state?${query}`, { cache: "no-store" });
      if (answer.status === 403) throw new Error("not allowed: open the address with its token, as the terminal printed it");
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const content = await answer.json();
      if (mine !== asked) return; // a newer question is under way
      $("live").className = "";
      $("live").textContent = `${content.runs_dir} · live, ${content.time}`;
      listed = content.list;
      picked = content.picked;
      showList();
      if (!listed.length) {
        showMessage(make("strong", {}, "No runs yet."), make("p", {}, `Nothing was found in ${content.runs_dir}. Try, in its parent directory:`),
          make("code", {}, "dicerl train CartPole-v1"), make("p", {}, "This page shows the run as soon as it starts."));
      } else if (!picked.length) showMessage("Pick one or more runs in the list.");
      else showMessage();
      if (content.sections) {
        version = content.version;
        showSections(content.sections, picked.join());
        showDetails(content);
      }
    } catch (error) {
      if (mine !== asked) return;
      $("live").className = "lost";
      $("live").textContent = error instanceof TypeError ? "no answer from the dashboard; trying again" : error.message;
    }
    timer = setTimeout(poll, document.hidden ? 10 * POLL : POLL);
  }

  addEventListener("hashchange", poll);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  poll();
})();
