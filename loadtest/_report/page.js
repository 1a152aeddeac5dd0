/* Draws the figures of the page, in its colours; those over time are zoomed together. */
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".plot")];
  const timed = places.filter((place) => "time" in place.dataset);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const theme = () => {
    const line = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line") };
    return { line, text: css("--text"), card: css("--card") };
  };
  const dressed = (layout) => {
    const { line, text, card } = theme();
    const out = {
      margin: { l: 60, r: 12, t: 30, b: 42 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: 12 }, hoverlabel: { bgcolor: card, font: { color: text } },
      legend: { orientation: "h", x: 1, xanchor: "right", y: 1.01, yanchor: "bottom" }, showlegend: true, ...layout,
    };
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) out[key] = { ...line, ...layout[key] };
    return out;
  };
  const draw = (place, how = "react") => {
    const { data, layout } = figures[place.dataset.figure];
    return Plotly[how](place, data, dressed(layout), {
      responsive: true, displaylogo: false, displayModeBar: false,
    });
  };

  let syncing = false;
  const follow = (place) => place.on("plotly_relayout", (change) => {
    if (syncing) return;
    const range = "xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null;
    if (!range && !change["xaxis.autorange"]) return;
    syncing = true;
    const to = range || figures[place.dataset.figure].layout.xaxis.range;
    Promise.all(timed.map((other) => Plotly.relayout(other, { "xaxis.range": [...to] }))).finally(() => { syncing = false; });
  });

  Promise.all(places.map((place) => draw(place, "newPlot"))).then(() => {
    timed.forEach(follow);
    document.documentElement.dataset.drawn = String(places.length);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => places.forEach((place) => draw(place)));
  // Paper has its own colours and width; the media query is in force when this is called.
  matchMedia("print").addEventListener("change", () => places.forEach((place) => { draw(place); Plotly.Plots.resize(place); }));
})();
