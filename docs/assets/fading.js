/* The figure of docs/concepts/fade.md: a slider over a training. Its data stands in the page. */
(function () {
  const source = document.getElementById("fading-data");
  const place = document.querySelector(".fading");
  if (!source || !place) return;
  const { frames, highest, sparsity } = JSON.parse(source.textContent);
  const NS = "http://www.w3.org/2000/svg";
  const W = 320, H = 240, LEFT = 12, RIGHT = 310, BASE = 205, TOP = 34;
  const BLUE = "#2f86dd", GREY = "#9aa4b2", ORANGE = "#d9730d";

  function put(parent, kind, attributes, text) {
    const element = document.createElementNS(NS, kind);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (text) element.textContent = text;
    parent.appendChild(element);
    return element;
  }
  const words = (panel, x, y, text, more) =>
    put(panel, "text", Object.assign({ x, y, "font-size": 12, fill: "currentColor" }, more), text);
  const panels = document.createElement("div");
  panels.className = "panels";
  place.append(panels);
  const [sizes, training] = ["The latent weights, by size", "Through the training"].map((name) => {
    const panel = put(panels, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": name });
    words(panel, LEFT, 16, name, { "font-weight": "bold", "font-size": 13 });
    return panel;
  });

  // a bar for each size; roots, or the few that stay would not be seen
  const bins = frames[0].stays.length, wide = (RIGHT - LEFT) / bins;
  const scale = (BASE - TOP) / Math.sqrt(1500);
  const bars = [GREY, BLUE].map((fill) =>
    Array.from({ length: bins }, (_, i) => put(sizes, "rect", { x: LEFT + i * wide, width: wide - 0.6, fill })));
  put(sizes, "line", { x1: LEFT, x2: RIGHT, y1: BASE, y2: BASE, stroke: "currentColor", "stroke-opacity": 0.4 });
  words(sizes, LEFT, BASE + 18, "0");
  words(sizes, (LEFT + RIGHT) / 2, BASE + 18, "|u|", { "text-anchor": "middle" });
  words(sizes, RIGHT, BASE + 18, highest.toFixed(1), { "text-anchor": "end" });
  words(sizes, RIGHT, TOP + 12, "in the network", { "text-anchor": "end", style: "fill: var(--md-typeset-a-color)" });
  words(sizes, RIGHT, TOP + 28, "zero in the network", { "text-anchor": "end" });

  // accuracy, and the share that is zero
  const x = (p) => 48 + p * (RIGHT - 48), y = (percent) => BASE - (percent / 100) * (BASE - TOP);
  for (const level of [0, 50, 100]) {
    put(training, "line", { x1: x(0), x2: x(1), y1: y(level), y2: y(level), stroke: "currentColor", "stroke-opacity": 0.2 });
    words(training, x(0) - 5, y(level) + 4, level ? `${level} %` : "0", { "text-anchor": "end", "font-size": 11 });
  }
  const line = (value, stroke) => put(training, "polyline", {
    points: frames.map((f) => `${x(f.progress)},${y(value(f))}`).join(" "), fill: "none", stroke, "stroke-width": 2 });
  line((f) => f.accuracy, ORANGE);
  line((f) => 100 * f.zero, GREY);
  words(training, x(0.06), y(82), "accuracy", { style: "fill: var(--md-accent-fg-color)" });
  words(training, x(1), y(75), "weights that are zero", { "text-anchor": "end" });
  words(training, x(0), BASE + 18, "start");
  words(training, x(1), BASE + 18, "end", { "text-anchor": "end" });
  const cursor = put(training, "line", { y1: TOP - 6, y2: BASE, stroke: "currentColor", "stroke-dasharray": "3 3" });

  const label = document.createElement("label");
  label.append("Training");
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: frames.length - 1, value: 14 });
  slider.setAttribute("aria-label", "how far the training is");
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Play", className: "md-button" });
  label.append(slider, button);
  const said = document.createElement("output");
  said.setAttribute("aria-live", "polite");
  place.append(label, said);

  function show() {
    const frame = frames[slider.value];
    for (let i = 0; i < bins; i++) {
      const goes = Math.min(scale * Math.sqrt(frame.goes[i]), BASE - TOP);
      const both = Math.min(scale * Math.sqrt(frame.goes[i] + frame.stays[i]), BASE - TOP);
      bars[0][i].setAttribute("y", BASE - goes);
      bars[0][i].setAttribute("height", goes);
      bars[1][i].setAttribute("y", BASE - both);
      bars[1][i].setAttribute("height", both - goes);
    }
    cursor.setAttribute("x1", x(frame.progress));
    cursor.setAttribute("x2", x(frame.progress));
    const p = frame.progress;
    const when = p <= 0.1 ? "nothing is targeted yet"
      : p < 0.5 ? "the threshold rises; what is grey is zero in the network, but its latent weight trains on, and may come back"
      : p < 0.75 ? `the target of ${100 * sparsity} % is reached; weights still change places`
      : "the set is settled: there are no latents any more, and what stays trains as it is";
    said.textContent = `${Math.round(100 * p)} % of the training, ${(100 * frame.zero).toFixed(1)} % of the weights are zero, `
      + `accuracy ${frame.accuracy.toFixed(1)} %: ${when}.`;
  }
  let timer = null;
  function stop() { clearInterval(timer); timer = null; button.textContent = "Play"; }
  button.addEventListener("click", function () {
    if (timer) return stop();
    button.textContent = "Stop";
    if (+slider.value === frames.length - 1) slider.value = 0;
    timer = setInterval(function () {
      slider.value = +slider.value + 1;
      show();
      if (+slider.value === frames.length - 1) stop();
    }, 200);
  });
  slider.addEventListener("input", show);
  show();
})();
