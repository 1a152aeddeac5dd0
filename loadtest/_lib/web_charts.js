/* Draws the last half hour of the running load test, a point a second, from ./data. */
(() => {
  const blue = "#3b82f6", orange = "#e08a1e", green = "#16a34a", red = "#e5484d", violet = "#8b5cf6", grey = "#8b93a1";
  const charts = [
    ["Requests per second", "/s", [["offered", grey], ["completed", green], ["good", blue], ["failed", red]]],
    ["In flight", "", [["in_flight", blue]]],
    ["TTFT of each second", "s", [["ttft_p50", blue], ["ttft_p99", red]], "ttft"],
    ["Gaps between chunks", "s", [["itl_p50", blue], ["itl_p99", red]], "itl"],
    ["Time per output token", "s", [["tpot_p50", blue], ["tpot_p99", red]], "tpot"],
    ["Whole answer", "s", [["e2e_p50", blue], ["e2e_p99", red]], "e2e"],
    ["Is the client late", "s", [["lag_p99", violet], ["delay_max", orange]]],
    ["Client CPU, busiest process", "%", [["cpu_max", blue]]],
  ];
  const plots = document.getElementById("plots");
  const places = charts.map(() => plots.appendChild(Object.assign(document.createElement("div"), { className: "plot" })));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const draw = (told) => {
    document.getElementById("run").textContent = told.run || "no run yet";
    document.getElementById("void").textContent = told.void.length ? "void: " + told.void.join("; ") : "";
    const at = told.points.map((point) => new Date(point.at * 1000));
    charts.forEach(([title, unit, lines, limit], i) => {
      const scale = unit === "%" ? 100 : 1;
      const data = lines.map(([key, color]) => ({
        x: at, y: told.points.map((p) => (p[key] === null ? null : p[key] * scale)), name: key.replace("_", " "),
        mode: told.points.length < 2 ? "markers" : "lines", line: { color, width: 1.6 },
      }));
      const axis = { gridcolor: css("--line"), linecolor: css("--line"), zerolinecolor: css("--line") };
      const shapes = limit && told.slo[limit] ? [{
        type: "line", xref: "paper", x0: 0, x1: 1, y0: told.slo[limit], y1: told.slo[limit],
        line: { color: red, width: 1.5, dash: "dot" },
      }] : [];
      Plotly.react(places[i], data, {
        title: { text: title, font: { size: 13 }, x: 0.01, xanchor: "left" }, margin: { l: 55, r: 10, t: 34, b: 30 }, hovermode: "x unified",
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--text"), size: 11 },
        xaxis: axis, yaxis: { ...axis, rangemode: "tozero", ticksuffix: unit }, showlegend: true, shapes,
        legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" },
      }, { responsive: true, displaylogo: false, displayModeBar: false });
    });
  };
  const ask = async () => {
    try {
      const answer = await fetch("./data");
      if (answer.ok && !document.hidden) draw(await answer.json());
    } catch (error) { /* locust has ended: the last picture stays */ }
    setTimeout(ask, 2000);
  };
  ask();
})();
