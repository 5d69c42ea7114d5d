"use strict";
(() => {
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = place => ink(`--c${place % 8}`);
  const number = new Intl.NumberFormat("en-US", {maximumSignificantDigits: 6});
  const short = new Intl.NumberFormat("en-US", {maximumSignificantDigits: 4, notation: "compact"});
  const show = value => value == null ? "–" : number.format(value);
  const axisWidth = (_, values) => 18 + 8 * Math.max(0, ...(values || []).map(value => value.length));
  // Without a pointer on the chart, the legend shows the last value.
  const last = values => values.findLastIndex(value => value != null);
  const plots = [];

  // What is drawn: one line for each series, two invisible ones around its interval.
  function columns(chart) {
    const tables = [], series = [{label: chart.unit, value: (plot, value, _, index) => show(index == null ? plot.data[0].at(-1) : value)}], bands = [];
    chart.series.forEach(one => {
      const stroke = () => colour(one.colour), ys = [one.y], first = series.length;
      const line = {
        label: one.name, stroke, spanGaps: true, width: one.style === "thin" ? 1 : 2,
        points: {show: one.style === "dots" || one.x.length === 1, size: 5}, value: (plot, value, place, index) => show(index == null ? plot.data[place][last(plot.data[place])] : value),
      };
      if (one.style === "step") line.paths = uPlot.paths.stepped({align: -1});
      series.push(line);
      if (one.low && one.low[0] !== null) {
        ys.push(one.high, one.low);
        for (const bound of ["to", "from"])
          series.push({label: `${one.name}, ${bound}`, spanGaps: true, width: 0, points: {show: false}, class: "bound"});
        line.value = (plot, value, place, index) => {
          const at = index ?? last(plot.data[place]), shown = plot.data[place][at];
          return shown == null ? "–" : `${show(shown)} (${show(plot.data[place + 2][at])} … ${show(plot.data[place + 1][at])})`;
        };
        bands.push({series: [first + 1, first + 2], fill: () => colour(one.colour) + "33"});
      }
      tables.push([one.x, ...ys]);
    });
    return {data: tables.length ? uPlot.join(tables) : [[]], series, bands};
  }

  // There is no round 1.5.
  const WHOLE = [1, 2, 5].flatMap(digit => [...Array(9).keys()].map(zeros => digit * 10 ** zeros)).sort((a, b) => a - b);

  function draw(chart) {
    const place = document.getElementById(chart.id), {data, series, bands} = columns(chart);
    if (!data[0].length) {
      place.textContent = "Nothing to draw: no record has these values.";
      return;
    }
    const axis = {stroke: () => ink("--quiet"), grid: {stroke: () => ink("--grid"), width: 1},
                  ticks: {stroke: () => ink("--grid"), width: 1}};
    const sizes = () => ({width: Math.max(200, place.clientWidth), height: 230});
    const plot = new uPlot({
      ...sizes(), series, bands, padding: [8, 14, 0, 0],
      scales: {x: {time: false}},
      axes: [{...axis, ...(chart.x === "round" ? {incrs: WHOLE} : {}), space: 60, size: 30,
              values: (_, ticks) => ticks.map(tick => short.format(tick))},
             {...axis, size: axisWidth, values: (_, ticks) => ticks.map(tick => short.format(tick))}],
      legend: {mount: (_, legend) => document.getElementById(`${chart.id}-legend`).append(legend)},
      // Its interval comes and goes with a line.
      hooks: {setSeries: [(plot, index, change) => {
        if (change.show != null && series[index + 1]?.class === "bound" && series[index].class !== "bound")
          for (const bound of [index + 1, index + 2]) plot.setSeries(bound, {show: change.show});
      }]},
      cursor: {hover: {skip: [null, undefined]}, ...(chart.x === "round" ? {sync: {key: "round"}} : {})},
    }, data, place);
    plots.push(() => plot.setSize(sizes()), () => plot.redraw());
  }

  JSON.parse(document.getElementById("charts").textContent).forEach(draw);
  const again = () => plots.forEach(step => step());
  addEventListener("resize", again);
  document.querySelectorAll(".tabs input").forEach(input => input.addEventListener("change", again));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  document.documentElement.dataset.drawn = document.querySelectorAll(".chart .uplot canvas").length;
})();
