/* What is wrong with the table (doctor), and which queries read too much (audit). */
(function (F) {
  "use strict";

  const LEVELS = ["manifests", "files", "row_groups", "rows", "bytes"];

  F.views = F.views || {};
  F.views.health = async function (main, shared) {
    F.fill(main, F.el("p", { class: "wait" }, "Examining the table…"));
    const found = await shared.doctor();
    const said = found.findings.length ? F.counted(found.findings.length, "finding") : "";
    F.fill(main, F.card("Health", { said }, found.findings.length ? found.findings.map(finding) : F.el("p", { class: "empty" }, "Nothing is wrong with it, as far as metadata tell."), F.command(`floeplan doctor ${shared.overview.table}`)),
      F.card("Sizes of data files", {}, sizes(shared.overview.sizes)));
  };

  function finding(one) {
    const files = one.files ? F.el("span", { class: "soft small" }, F.counted(one.files, "file")) : null;
    const spec = one.spec_id === null || one.spec_id === undefined ? null : F.el("span", { class: "soft small" }, F.dot(one.spec_id), `spec ${one.spec_id}`);
    const fix = one.fix ? F.command(one.fix) : null;
    const examples = one.examples && one.examples.length ? F.el("details", {}, F.el("summary", {}, "Examples"), one.examples.map((path) => F.el("p", { class: "mono faint small" }, path))) : null;
    return F.el("div", { class: "finding" }, F.el("p", { class: "title" }, F.tag(one.severity, one.severity), one.kind, files, spec), F.el("p", {}, one.message), fix, examples);
  }

  function sizes(found) {
    if (!found.histogram.length) return F.el("p", { class: "empty" }, "There are no data files.");
    const names = found.histogram.map((one) => `≤ ${F.bytes(one.up_to_bytes)}`);
    const option = () => ({
      ...F.base(),
      grid: { left: 8, right: 12, top: 10, bottom: 8, containLabel: true },
      tooltip: { ...F.base().tooltip, trigger: "axis", axisPointer: { type: "shadow", shadowStyle: { opacity: 0.15 } }, formatter: (items) => F.tip(items[0].name, [F.counted(items[0].value, "file")]) },
      xAxis: F.axis({ type: "category", data: names }),
      yAxis: F.values({ minInterval: 1, axisLabel: { color: F.colour("soft"), formatter: F.about } }),
      series: [{ type: "bar", barMaxWidth: 56, data: found.histogram.map((one) => one.files), itemStyle: { color: F.colour("accent"), borderRadius: [3, 3, 0, 0] } }],
    });
    const table = () => F.table("Files by size", [{ name: "Size" }, { name: "Files", num: true }], found.histogram.map((one, at) => [names[at], F.count(one.files)]));
    return F.chart({ label: "Number of data files by size", height: 180, option, table });
  }

  F.views.audit = async function (main, shared) {
    if (!shared.session.audit) {
      F.fill(main, F.card("Audit", {}, F.el("p", { class: "empty" }, "No scan reports were given. Plans leave reports behind; point the explorer at them to see which queries read more than they want."),
        F.command(`floeplan ${F.source.live ? "serve" : "report"} ${shared.overview.table} ${F.source.live ? "" : "-o site "}--reports DIR`)));
      return;
    }
    F.fill(main, F.el("p", { class: "wait" }, "Auditing the reports; Spark is being started for it…"));
    const found = await shared.audit();
    F.fill(main, F.card("Audit", { said: "queries whatever their literals were" }, F.facts([
      ["queries", F.count(found.queries)], ["runs", F.count(found.runs)], ["read", F.bytes(found.bytes_kept)], ["flagged", F.count(found.flagged_total)],
    ])), found.flagged.length ? [bytesChart(found), F.card("Flagged", {}, found.flagged.map(flagged))] : F.card("Flagged", {}, F.el("p", { class: "empty" }, "No query reads much more than it wants.")));
  };

  /** The queries that read most, with the change from the first half of their days to the second. */
  function bytesChart(found) {
    const shown = found.flagged.slice(0, 12);
    const option = () => ({
      ...F.base(),
      grid: { left: 8, right: 60, top: 8, bottom: 8, containLabel: true },
      tooltip: { ...F.base().tooltip, trigger: "item", formatter: (event) => F.tip(shown[event.dataIndex].filter, [`${F.bytes(shown[event.dataIndex].bytes_kept)} in ${F.counted(shown[event.dataIndex].runs, "run")}`, trend(shown[event.dataIndex].trend).text]) },
      xAxis: F.values({ axisLabel: { color: F.colour("soft"), formatter: F.bytes, hideOverlap: true } }),
      yAxis: F.axis({ type: "category", inverse: true, data: shown.map((one) => one.fingerprint), axisLabel: { color: F.colour("soft"), fontFamily: F.colour("mono") } }),
      series: [{ type: "bar", barMaxWidth: 22, data: shown.map((one) => ({ value: one.bytes_kept, itemStyle: { color: F.colour(one.trend > 1.1 ? "bad" : "accent"), borderRadius: [0, 3, 3, 0] } })),
        label: { show: true, position: "right", color: F.colour("soft"), formatter: (event) => trend(shown[event.dataIndex].trend).mark } }],
    });
    const table = () => F.table("Bytes by query", [{ name: "Query", text: true }, { name: "Bytes", num: true }, { name: "Trend" }], shown.map((one) => [one.filter, F.bytes(one.bytes_kept), trend(one.trend).text]));
    return F.card("Bytes read by flagged queries", { said: "growing ones in red" }, F.chart({ label: "Bytes read by flagged queries", height: Math.max(110, shown.length * 32 + 40), option, table }));
  }

  function trend(ratio) {
    if (ratio === null || ratio === undefined) return { mark: "", text: "within one day", kind: "" };
    if (ratio >= 0.9 && ratio <= 1.1) return { mark: "→", text: "steady", kind: "" };
    return ratio > 1 ? { mark: `↑ ${ratio.toFixed(1)}×`, text: `growing ${ratio.toFixed(1)}×`, kind: "bad" } : { mark: `↓ ${ratio.toFixed(1)}×`, text: `shrinking to ${ratio.toFixed(1)}×`, kind: "good" };
  }

  function flagged(one) {
    const direction = trend(one.trend);
    const levels = LEVELS.filter((level) => one.ratios[level] !== null && one.ratios[level] !== undefined);
    return F.el("div", { class: "finding" },
      F.el("p", { class: "title" }, F.el("code", {}, one.filter), F.tag("warn", one.reason), direction.text ? F.tag(direction.kind, direction.text) : null),
      F.el("p", { class: "soft small" }, `${one.table} · ${one.fingerprint} · ${F.counted(one.runs, "run")}, ${F.bytes(one.bytes_per_run)} each${one.selectivity === null ? "" : `, about ${F.percent(one.selectivity, 1)} of the rows wanted`}`),
      F.el("div", { class: "ratios" }, levels.map((level) => F.el("div", {}, `${level.replace("_", " ")} ${F.percent(one.ratios[level], 1)}`,
        F.el("div", { class: "share" }, F.el("i", { style: { width: `${100 * one.ratios[level]}%` } }))))),
      F.note(one.advice));
  }
})((window.Floeplan = window.Floeplan || {}));
