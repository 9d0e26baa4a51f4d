/* The figure of docs/concepts/fade.md: a slider over a training. Its data stands in the page. */
(function () {
  const source = document.getElementById("fading-data");
  const place = document.querySelector(".fading");
  if (!source || !place) return;
  const { frames, highest, sparsity } = JSON.parse(source.textContent);
  const NS = "http://www.w3.org/2000/svg";
  const W = 640, H = 250, LEFT = 20, SPLIT = 380, BASE = 210, TOP = 34;
  const BLUE = "#2f86dd", GREY = "#9aa4b2", ORANGE = "#d9730d";

  function put(parent, kind, attributes, text) {
    const element = document.createElementNS(NS, kind);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (text) element.textContent = text;
    parent.appendChild(element);
    return element;
  }
  const words = (x, y, text, more) =>
    put(svg, "text", Object.assign({ x, y, "font-size": 12, fill: "currentColor" }, more), text);

  const svg = put(place, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
  const title = put(svg, "title", {}, "");
  words(LEFT, 16, "The latent weights, by size", { "font-weight": "bold" });
  words(LEFT, H - 8, "0");
  words(SPLIT - 30, H - 8, highest.toFixed(1), { "text-anchor": "end" });
  words((LEFT + SPLIT - 30) / 2, H - 8, "|u|", { "text-anchor": "middle" });
  words(SPLIT + 10, 16, "Through the training", { "font-weight": "bold" });
  words(SPLIT + 10, H - 8, "start");
  words(W - 20, H - 8, "end", { "text-anchor": "end" });

  // left: a bar for each size; roots, or the few that stay would not be seen
  const bins = frames[0].stays.length, wide = (SPLIT - 30 - LEFT) / bins;
  const scale = (BASE - TOP) / Math.sqrt(1500);
  const bars = [GREY, BLUE].map((fill) =>
    Array.from({ length: bins }, (_, i) => put(svg, "rect", { x: LEFT + i * wide, width: wide - 0.6, fill })));
  put(svg, "line", { x1: LEFT, x2: SPLIT - 30, y1: BASE, y2: BASE, stroke: "currentColor", "stroke-opacity": 0.4 });

  // right: accuracy, and the share that is zero
  const x = (p) => SPLIT + 10 + p * (W - 30 - SPLIT), y = (percent) => BASE - (percent / 100) * (BASE - TOP);
  for (const level of [0, 50, 100]) {
    put(svg, "line", { x1: x(0), x2: x(1), y1: y(level), y2: y(level), stroke: "currentColor", "stroke-opacity": 0.2 });
    words(SPLIT + 4, y(level) + 4, level ? `${level} %` : "0", { "text-anchor": "end", "font-size": 10 });
  }
  const line = (value, stroke) => put(svg, "polyline", {
    points: frames.map((f) => `${x(f.progress)},${y(value(f))}`).join(" "), fill: "none", stroke, "stroke-width": 2 });
  line((f) => f.accuracy, ORANGE);
  line((f) => 100 * f.zero, GREY);
  words(x(1), y(97) + 17, "accuracy", { fill: ORANGE, "text-anchor": "end" });
  words(x(1), y(90) + 28, "weights that are zero", { "text-anchor": "end" });
  const cursor = put(svg, "line", { y1: TOP - 6, y2: BASE, stroke: "currentColor", "stroke-dasharray": "3 3" });

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
    title.textContent = said.textContent;
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
